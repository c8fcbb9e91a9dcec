"""The function library: what it tells without changing anything, on a replica too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from valkey.exceptions import ReadOnlyError, ResponseError

from pyrula.lua import library
from tests.integration.lua_shard import SPAN, Shard, both_protocols, entry, load_library

if TYPE_CHECKING:
    from pyrula.testing.servers import PrivateServer


def _fields(flat: list[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


# --- load --------------------------------------------------------------------------------


@both_protocols
def test_a_queued_run_is_read_with_its_input(shard: Shard) -> None:
    shard.submit("r1", "acme", input='{"a":1}', headers='{"h":1}', priority=2)
    flat, first, last = shard.call("load", "r1", 1, read_only=True)
    assert _fields(flat) == shard.fields("r1")
    assert _fields(flat)["in"] == '{"a":1}'
    assert (first, last) == ("", "")


@both_protocols
def test_a_claimed_run_is_read_with_the_ends_of_its_journal(shard: Shard) -> None:
    shard.submit("r1", "acme", input='{"a":1}')
    held = shard.claim()
    raws = [entry(key=f"k{n}") for n in range(5)]
    shard.append(held, *raws)
    flat, first, last = shard.call("load", "r1", 1, read_only=True)
    assert _fields(flat)["cur"] == str(SPAN + 7)
    assert first[0] == "1-0"
    assert json.loads(first[1])[1] == "run.submitted"
    assert last == ["7-0", raws[-1]]
    assert shard.call("load", "r1", 0, read_only=True) == [flat, "", ""]


def test_a_run_that_does_not_exist_is_empty(shard: Shard) -> None:
    for ends in (0, 1):
        assert shard.call("load", "ghost", ends, read_only=True) == [[], "", ""]
    assert shard.snapshot() == {}


# --- listing -----------------------------------------------------------------------------


def _names(reply: Any) -> list[str]:
    return [run_id for run_id, _ in reply[3:]]


def _some_runs(shard: Shard) -> dict[str, int]:
    """Six runs in several states; gives when each was submitted."""
    at = {}
    for n in range(6):
        owner = ("", "acme", "beta")[n % 3]
        attributes = json.dumps({"n": n, "even": n % 2 == 0, "tags": ["x", {"y": n % 2}], "none": None})
        at[f"r{n}"] = int(shard.submit(f"r{n}", owner, attributes=attributes)[3])
    shard.terminate("r0")
    shard.terminate("r4")
    assert shard.claim().run_id == "r3"
    return at


@both_protocols
def test_a_listing_gives_the_newest_first_with_what_a_list_shows(shard: Shard) -> None:
    at = _some_runs(shard)
    reply = shard.listing()
    assert reply[:3] == [6, "", ""]
    assert _names(reply) == [f"r{n}" for n in range(5, -1, -1)]
    for run_id, flat in reply[3:]:
        shown, stored = _fields(flat), shard.fields(run_id)
        assert int(shown["sub"]) == at[run_id]
        # Inputs and headers may be large; a list shows neither.
        assert shown == {k: v for k, v in stored.items() if k not in ("in", "hdr", "sc", "rqs", "rv", "lf")}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"status": "terminated"}, ["r4", "r0"]),
        ({"status": "running"}, ["r3"]),
        ({"status": "queued", "owner": "beta"}, ["r5", "r2"]),
        ({"owner": ""}, ["r3", "r0"]),
        ({"owner": "nobody"}, []),
        ({"attributes": '{"even":true}'}, ["r4", "r2", "r0"]),
        ({"attributes": '{"n":3}'}, ["r3"]),
        ({"attributes": '{"n":3,"even":true}'}, []),
        ({"attributes": '{"tags":["x",{"y":1}]}'}, ["r5", "r3", "r1"]),
        ({"attributes": '{"tags":["x"]}'}, []),
        ({"attributes": '{"tags":["x",{"y":1},2]}'}, []),
        ({"attributes": '{"none":null}'}, [f"r{n}" for n in range(5, -1, -1)]),
        ({"attributes": '{"absent":null}'}, []),
        ({"attributes": '{"n":"3"}'}, []),
    ],
)
def test_a_listing_holds_what_matches(shard: Shard, wanted: dict[str, str], expected: list[str]) -> None:
    _some_runs(shard)
    reply = shard.listing(**wanted)  # type: ignore[arg-type]
    assert _names(reply) == expected
    assert reply[0] == len(expected)
    assert shard.listing(**wanted, count_only=True) == [len(expected), "", ""]  # type: ignore[arg-type]


def test_a_listing_can_be_bounded_by_time_of_submission(shard: Shard) -> None:
    at = _some_runs(shard)
    assert _names(shard.listing(below=at["r3"], lowest=at["r1"])) == ["r3", "r2", "r1"]
    assert _names(shard.listing(lowest=f"({at['r4']}")) == ["r5"]
    assert _names(shard.listing(below=f"({at['r1']}")) == ["r0"]


@pytest.mark.parametrize("same_time", [False, True])
@pytest.mark.parametrize(("limit", "budget"), [(1, 1000), (2, 1000), (3, 7), (100, 4), (1, 5)])
def test_pages_join_without_holes_or_repeats(shard: Shard, limit: int, budget: int, same_time: bool) -> None:
    for n in range(20):
        shard.submit(f"r{n:02}", "acme" if n % 2 else "beta")
        if same_time and n % 3:
            # The same microsecond as the run before it.
            shard.client.zadd(f"{shard.prefix}index", {f"r{n:02}": shard.scores("index")[f"r{n - 1:02}"]})
    seen: list[str] = []
    place = ("+inf", "")
    for _ in range(50):
        reply = shard.listing(below=place[0], below_id=place[1], owner="acme", limit=limit, budget=budget)
        seen += _names(reply)
        if reply[1] == "":
            break
        place = (reply[1], reply[2])
    assert seen == [f"r{n:02}" for n in range(19, 0, -2)]


def test_attributes_that_cannot_be_read_match_nothing_and_stop_nothing(shard: Shard) -> None:
    shard.submit("deep", attributes='{"a":' + "[" * 2000 + "]" * 2000 + "}")
    shard.submit("odd", attributes="[1]")
    shard.submit("none", attributes="null")
    shard.submit("good", attributes='{"a":1}')
    assert _names(shard.listing(attributes='{"a":1}')) == ["good"]
    assert _names(shard.listing()) == ["good", "none", "odd", "deep"]


def test_an_index_entry_without_a_run_is_passed_over(shard: Shard) -> None:
    shard.submit("r1")
    shard.client.zadd(f"{shard.prefix}index", {"ghost": 5})
    assert shard.listing()[0] == 1
    assert _names(shard.listing()) == ["r1"]


@both_protocols
def test_reading_changes_nothing(shard: Shard) -> None:
    _some_runs(shard)
    shard.deliver("r1", "m1")
    before = shard.snapshot()
    shard.listing()
    shard.listing(attributes='{"n":1}', count_only=True)
    shard.call("load", "r1", 1, read_only=True)
    assert shard.inbox("r1") == ['["m1"]']
    assert shard.inbox("ghost") == []
    assert shard.snapshot() == before


# --- replicas ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[PrivateServer, PrivateServer]]:
    """A primary and its replica."""
    from pyrula.testing.servers import PrivateServer

    with PrivateServer({"repl-diskless-sync-delay": "0"}, tcp=True) as primary:
        follow = {"replicaof": f"127.0.0.1 {primary.port}", "repl-diskless-sync-delay": "0"}
        with PrivateServer(follow, tcp=True) as replica:
            yield primary, replica


def _wait_for_replica(primary: Any) -> None:
    """Until the replica has everything: the server counts for itself."""
    for _ in range(100):
        if primary.execute_command("WAIT", 1, 500):
            return
    raise AssertionError("the replica never caught up")


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_replica_has_the_library_and_answers_reads_only(
    pair: tuple[PrivateServer, PrivateServer], namespace: str, protocol: int
) -> None:
    primary: Any = pair[0].client(protocol=protocol)
    replica: Any = pair[1].client(protocol=protocol)
    load_library(primary)
    there, here = Shard(primary, namespace), Shard(replica, namespace)
    there.submit("r1", "acme")
    there.submit("r2", "acme")
    held = there.claim()
    there.deliver("r1", "m1")
    _wait_for_replica(primary)
    assert here.call("load", "r1", 1, read_only=True) == there.call("load", "r1", 1, read_only=True)
    assert here.listing() == there.listing()
    assert _names(here.listing()) == ["r2", "r1"]
    assert here.inbox("r1") == ['["m1"]']
    for refused in (lambda: here.submit("r3"), lambda: here.append(held, entry()), here.claims):
        with pytest.raises((ReadOnlyError, ResponseError)):
            refused()
    primary.close()
    replica.close()


def test_only_reading_functions_may_be_called_as_reading(shard: Shard) -> None:
    listed = shard.client.function_list(library=library().name)
    text = str(listed)
    names = {
        "append",
        "attributes",
        "claim",
        "claim_run",
        "commit",
        "deliver",
        "disown",
        "heartbeat",
        "inbox",
        "listing",
        "load",
    }
    for name in names | {"output", "revive", "submit", "sweep", "terminate", "wake"}:
        assert library().function(name) in text
    for name in ("submit", "append", "sweep", "heartbeat"):
        with pytest.raises(ResponseError, match="write flag"):
            shard.call(name, "r1", read_only=True)
