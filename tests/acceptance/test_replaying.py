"""A user's own ways to replay recorded histories: `pyrula replay`, and the pytest plugin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.conftest import WORKFLOWS, Desk, environment

SHOP = """
from pyrula.workflows import Context, workflow

def price(sku: str) -> int:
    raise AssertionError("a replay runs no step")

@workflow(name="order")
async def order(ctx: Context, sku: str) -> int:
    first = await ctx.step("price", price, sku)
    await ctx.sleep(60)
    return first
"""
HISTORY = [
    ("run.submitted", "", {"input": {"sku": "tea"}}),
    ("run.started", "", {"worker": "w"}),
    ("step.completed", "price", {"result": 4, "function": "price"}),
    ("timer.set", "@wait", {"wake": 1_767_225_660_000_000}),
    ("run.resumed", "", {"worker": "w"}),
    ("timer.fired", "@wait", {}),
    ("run.completed", "", {"result": 4}),
]


def history(*, workflow: str = "") -> str:
    lines = []
    for seq, (kind, key, data) in enumerate(HISTORY, 1):
        event = {"seq": seq, "type": kind, "at": "2026-01-01T00:00:00.000001Z", "attempt": 1, "key": key, "data": data}
        lines.append(json.dumps({"workflow": workflow, "run_id": "r-1", **event} if workflow else event))
    return "\n".join(lines) + "\n"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder of a user's: a module, and a recorded history."""
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "histories" / "order").mkdir(parents=True)
    (tmp_path / "histories" / "order" / "one.jsonl").write_text(history())
    (tmp_path / "histories" / "two.jsonl").write_text(history(workflow="order"))
    return tmp_path


def changed(shop: Path) -> None:
    (shop / "shop.py").write_text(SHOP.replace('ctx.step("price"', 'ctx.step("cost"'))


def pyrula(shop: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pyrula.cli", *argv],
        cwd=shop,
        check=False,
        env=environment(),
        capture_output=True,
        text=True,
    )


def pytested(shop: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Pytest in the user's folder, with the plugin whether it is installed as such or not."""
    plain = environment(PYTHONPATH=os.pathsep.join([str(shop), *sys.path]), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "pyrula.testing.plugin", "-p", "no:cacheprovider", "-v", *argv],
        cwd=shop,
        check=False,
        env=plain,
        capture_output=True,
        text=True,
    )


# --- the command ----------------------------------------------------------------------------


def test_histories_that_replay(shop: Path) -> None:
    done = pyrula(shop, "replay", "shop", "histories")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "histories/order/one.jsonl (order, 7 events): replays; reached completed",
        "histories/two.jsonl (order, 7 events): replays; reached completed",
    ]


def test_the_first_difference_is_shown_with_its_place(shop: Path) -> None:
    changed(shop)
    done = pyrula(shop, "replay", "shop.py", "histories/two.jsonl", "--name", "order")
    assert (done.returncode, done.stderr) == (1, "")
    first, recorded, now = done.stdout.splitlines()
    assert first.startswith(
        "histories/two.jsonl (order, 7 events): the code makes a step 'cost' before the step 'price'"
    )
    assert recorded == "  recorded: step 'price'  (seq 3)"
    assert now == f"  now:      step 'cost'  at {shop / 'shop.py'}:9"
    [record] = map(json.loads, pyrula(shop, "replay", "shop", "histories/two.jsonl", "--json").stdout.splitlines())
    assert (record["ok"], record["difference"]["asked"]) == (False, "step 'cost'")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["shop", "nothing.jsonl"], "cannot read nothing.jsonl"),
        (["shop", "histories", "--name", "no"], "shop defines no workflow 'no'"),
        (["nowhere", "histories"], "cannot import nowhere"),
        (["shop", "."], "shop.py"),
    ],
)
def test_a_mistake_is_one_line(shop: Path, argv: list[str], message: str) -> None:
    if argv[1] == ".":
        (shop / "bad.json").write_text("no\n")
        message = "bad.json:1 is no event"
    done = pyrula(shop, "replay", *argv)
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_the_command_line_prints_replays(served: Desk, tmp_path: Path) -> None:
    run_id = served.submit("steady", seconds=0)
    served.until("steady", run_id, "run.completed")
    file = tmp_path / "recorded.jsonl"
    file.write_text(served("runs", "events", run_id, "--json").out)
    done = pyrula(
        tmp_path, "replay", str(WORKFLOWS), str(file)
    )  # not in this process: it would know the workflows then
    assert done.returncode == 0, done.stderr
    assert "(steady, " in done.stdout


# --- the plugin -----------------------------------------------------------------------------


def test_each_history_is_a_test(shop: Path) -> None:
    (shop / "test_own.py").write_text("def test_own(): pass\n")
    done = pytested(shop, "--pyrula-histories", "histories", "--pyrula-workflows", "shop")
    assert done.returncode == 0, done.stdout
    assert "order/one.jsonl PASSED" in done.stdout
    assert "two.jsonl PASSED" in done.stdout
    assert "3 passed" in done.stdout


def test_workflows_may_come_from_a_conftest_and_a_difference_fails(shop: Path) -> None:
    changed(shop)
    (shop / "conftest.py").write_text("import shop\n")
    done = pytested(shop, "--pyrula-histories", "histories")
    assert done.returncode == 1
    assert "2 failed" in done.stdout
    assert "recorded: step 'price'  (seq 3)" in done.stdout
    assert f"now:      step 'cost'  at {shop / 'shop.py'}:9" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--pyrula-histories", "none"], "there is no such folder"),
        (["--pyrula-histories", "empty"], "there are no .jsonl files in it"),
        (["--pyrula-histories", "histories", "--pyrula-workflows", "nowhere"], "No module named 'nowhere'"),
    ],
)
def test_a_wrong_option_is_told(shop: Path, argv: list[str], message: str) -> None:
    (shop / "empty").mkdir()
    done = pytested(shop, *argv)
    assert done.returncode == 4
    assert message in done.stderr + done.stdout


def test_without_the_option_nothing_happens(shop: Path) -> None:
    (shop / "test_own.py").write_text("def test_own(): pass\n")
    done = pytested(shop)
    assert done.returncode == 0
    assert "1 passed" in done.stdout


def test_a_history_of_nobody_fails_alone(shop: Path) -> None:
    (shop / "histories" / "two.jsonl").write_text(history(workflow="gone"))
    done = pytested(shop, "--pyrula-histories", "histories", "--pyrula-workflows", "shop")
    assert "workflow 'gone' is not among those known here (order)" in done.stdout
    assert "1 failed, 1 passed" in done.stdout
