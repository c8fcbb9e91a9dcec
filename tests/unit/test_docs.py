"""The Python of the documentation runs as printed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.doc_snippets import BadDocument, Program, blocks, pages, programs, run

PROGRAMS = [program for page in pages() for program in programs(page)]


@pytest.fixture
def server_url() -> Iterator[str]:
    """A private server for one program, so that no page sees what another left behind."""
    from pyrula.testing.servers import PrivateServer

    with PrivateServer() as server:
        yield server.url


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_page_runs_as_printed(program: Program, server_url: str) -> None:
    done = run(program, environment={"PYRULA_VALKEY_URL": server_url})
    assert done.returncode == 0, f"{program.name}\n{done.stdout}"


def test_blocks_of_a_page_are_one_program_with_the_lines_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\n```python\nanswer = 41\n```\n\nThen:\n\n```python\nprint(answer + 1)\nraise SystemExit(3)\n```\n"
    )
    [program] = programs(page)
    assert (program.name, program.source.splitlines()[9]) == ("page.md:4", "print(answer + 1)")
    done = run(program, environment={})
    assert (done.returncode, done.stdout) == (3, "42\n")


def test_a_failure_names_the_line_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "my-page.md"
    page.write_text("one\n\n```python\nx = 1\n\nx.missing\n```\n")
    [program] = programs(page)
    done = run(program, environment={})
    assert done.returncode == 1
    assert 'my_page_page.py", line 6' in done.stdout


def test_environment_and_folder_are_the_programs_own(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nimport os\nprint(os.environ['PYRULA_VALKEY_URL'], os.listdir())\n```\n")
    [program] = programs(page)
    done = run(program, environment={"PYRULA_VALKEY_URL": "unix:///nowhere"})
    assert done.stdout == "unix:///nowhere ['page_page.py']\n"


def test_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\na = 1\n```\n```python fresh\nb = 2\n```\n```python no-run\nserve()\n```\n"
        "- in a list\n\n  ```python\n  c = 3\n  ```\n\n```text\nnot python (\n```\n~~~python\nd = 4\n~~~\n"
    )
    assert [block.source for block in blocks(page)] == ["a = 1\n", "b = 2\n", "serve()\n", "c = 3\n", "d = 4\n"]
    assert [program.source.split() for program in programs(page)] == [
        ["a", "=", "1"],
        ["b", "=", "2", "c", "=", "3", "d", "=", "4"],
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```python maybe\nx\n```\n", "page.md:1: unknown mark 'maybe'"),
        ("text\n```python\nx\n", "page.md:2: the fence is never closed"),
        ("```python no-run\nx = 1\ny = (\n```\n", "page.md:3: "),
    ],
)
def test_a_bad_page_is_refused(tmp_path: Path, text: str, message: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(BadDocument, match=message):
        list(blocks(page))
