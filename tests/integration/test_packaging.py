"""What lands in a user's environment: one package, whole, and nothing beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from pyrula import __version__

ROOT = Path(__file__).resolve().parents[2]
DATA = (".py", ".lua", ".sql", ".typed", ".html", ".css", ".js")
UV = Path(sysconfig.get_path("scripts")) / "uv"

# The first build fetches its backend from the package index.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def call(*command: str | Path, tries: int = 1, cwd: Path | None = None) -> str:
    """Run a command and return its output; again after a failure, where an index may have been away."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout
    if tries > 1:
        time.sleep(2.0)
        return call(*command, tries=tries - 1, cwd=cwd)
    pytest.fail(f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")


def package_files() -> set[str]:
    """What the source tree holds that a user needs, relative to the repository."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "pyrula").rglob("*")
        if path.suffix in DATA and path.is_file()
    }


def importable_tops(names: Sequence[str]) -> set[str]:
    """The top-level names that a Python would import from these files."""
    return {name.split("/")[0].removesuffix(".py") for name in names if name.endswith(".py")}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source archive, and the wheel built from that archive."""
    out = tmp_path_factory.mktemp("dist")
    call(UV, "build", "--quiet", "--python", sys.executable, "--out-dir", out, ROOT, tries=3)
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    [path] = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def sdist(built: Path) -> Path:
    [path] = built.glob("*.tar.gz")
    return path


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    assert wheel.name == f"pyrula-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    info = f"pyrula-{__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"pyrula", info}
    assert package_files() <= set(names)
    assert f"{info}/licenses/LICENSE" in names
    assert len(names) == len(set(names))


def test_the_source_archive_holds_each_file_once(sdist: Path) -> None:
    prefix = f"pyrula-{__version__}/"
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    assert all(member.isfile() for member in members), "no links, no devices"
    names = [member.name.removeprefix(prefix) for member in members]
    assert package_files() <= set(names)
    assert {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "PKG-INFO"} <= set(names)
    assert importable_tops(names) <= {"pyrula", "tests", "tools", "examples", "benchmarks"}
    assert {name.split("/")[0] for name in names}.isdisjoint({"actors", "projections", "lua", "sql", ".venv"})


def test_an_installation_adds_one_importable_name(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "venv"
    call(sys.executable, "-m", "venv", "--without-pip", home)
    scripts = home / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / "python"
    site = Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    before = {path.name for path in site.iterdir()}
    call(UV, "pip", "install", "--quiet", "--no-deps", "--offline", "--python", python, wheel)
    assert {path.name for path in site.iterdir()} - before == {"pyrula", f"pyrula-{__version__}.dist-info"}
    assert (scripts / "pyrula").is_file()

    probe = "import pyrula; print(pyrula.__file__, pyrula.__version__)"
    assert call(python, "-I", "-c", probe, cwd=tmp_path).split() == [str(site / "pyrula/__init__.py"), __version__]
    for name in ("actors", "projections", "lua", "sql", "tests", "tools"):
        missing = f"import importlib.util as u; assert u.find_spec({name!r}) is None"
        call(python, "-I", "-c", missing, cwd=tmp_path)
    # A namespace or a resource that only the checkout has would show here.
    installed = {path.relative_to(site).as_posix() for path in (site / "pyrula").rglob("*") if path.suffix in DATA}
    assert package_files() <= installed
