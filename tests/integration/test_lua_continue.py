"""A run that goes on in a new journal: the right claim, a stale one, a repeat, one that is not held."""

from __future__ import annotations

from pyrula.testing.audit_valkey import audit_namespace
from tests.integration.lua_shard import Shard, both_protocols, entry

pytestmark = both_protocols

GOES_ON = entry("run.continued", "")


def test_the_journal_is_put_aside_and_an_empty_one_queued(shard: Shard) -> None:
    shard.submit("r1")
    held = shard.claim()
    shard.append(held, entry())
    moved = shard.call(
        "append", *shard.append_args("continue", held, held.cursor(3), [GOES_ON], (), '{"n":1}', '"link":2')
    )
    assert moved == "OK"
    client = shard.client
    assert client.xlen(f"{shard.prefix}old:1:r1") == 4
    assert client.exists(f"{shard.prefix}log:r1") == 0
    again = shard.claim()
    assert (again.epoch, again.seq) == (held.epoch + 2, 2)
    assert [each[1][1] for each in again.entries] == ["run.submitted", "run.started"]
    assert again.entries[0][1][5] == {"input": {"n": 1}, "link": 2}
    shard.finish(again, entry("run.completed", "", attempt=2))
    findings = [each for each in audit_namespace(client, shard.namespace) if "not registered" not in each]
    assert [each for each in findings if "old" in each or "journal" in each] == []


def test_a_stale_claim_and_a_repeat_are_refused(shard: Shard) -> None:
    shard.submit("r1")
    held = shard.claim()
    before = shard.snapshot()
    assert shard.go_on(held, GOES_ON, epoch=held.epoch + 2) == "LOST"
    assert shard.snapshot() == before
    assert shard.go_on(held, GOES_ON) == "OK"
    before = shard.snapshot()
    assert shard.go_on(held, GOES_ON) == "LOST"
    assert shard.append(held, entry()) == "LOST"
    assert shard.snapshot() == before


def test_a_run_that_nobody_holds_does_not_go_on(shard: Shard) -> None:
    shard.submit("r1")
    held = shard.claim()
    shard.park(held, topic="signal:go")
    before = shard.snapshot()
    assert shard.go_on(held, GOES_ON) == "LOST"
    assert shard.snapshot() == before
