"""The function library: append in its four forms, and that a refused or repeated one changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.lua_shard import SPAN, Held, Shard, entry

Call = Callable[[Shard, Held, int, int], Any]


def _append(shard: Shard, held: Held, epoch: int, seq: int) -> Any:
    return shard.append(held, entry(key="a"), entry(key="b"), epoch=epoch, seq=seq)


def _park(shard: Shard, held: Held, epoch: int, seq: int) -> Any:
    return shard.park(held, entry("signal.awaited"), topic="signal:go", wake=9 * 10**15 // 4, epoch=epoch, seq=seq)


def _sleep(shard: Shard, held: Held, epoch: int, seq: int) -> Any:
    return shard.park(held, status="sleeping", wake=9 * 10**15 // 4, epoch=epoch, seq=seq)


def _finish(shard: Shard, held: Held, epoch: int, seq: int) -> Any:
    return shard.finish(held, entry("run.completed"), epoch=epoch, seq=seq)


def _set_aside(shard: Shard, held: Held, epoch: int, seq: int) -> Any:
    return shard.finish(held, status="failed", error='{"code":"version_skew"}', epoch=epoch, seq=seq)


def _requeue(shard: Shard, held: Held, epoch: int, seq: int) -> Any:
    return shard.requeue(held, epoch=epoch, seq=seq)


def _spent(shard: Shard, held: Held, epoch: int, seq: int) -> Any:
    return shard.requeue(held, spent=True, epoch=epoch, seq=seq)


# What each call is, what it answers, the status after it, and how many entries it adds.
CALLS: dict[str, tuple[Call, str, str, int]] = {
    "append": (_append, "OK", "running", 2),
    "park": (_park, "PARKED", "waiting", 1),
    "sleep": (_sleep, "PARKED", "sleeping", 0),
    "finish": (_finish, "OK", "completed", 1),
    "set aside": (_set_aside, "OK", "failed", 0),
    "requeue": (_requeue, "OK", "queued", 0),
    "requeue spent": (_spent, "OK", "queued", 0),
}
every_call = pytest.mark.parametrize("name", CALLS)


def _claimed(shard: Shard) -> Held:
    """A run in its second attempt, with a step done, beside other runs of the shard."""
    for run_id in ("r1", "other"):
        shard.submit(run_id, "acme")
    held = shard.claim()
    shard.append(held, entry(key="first"))
    shard.requeue(held, seq=3)
    again = shard.claim()
    assert (again.run_id, again.epoch, again.seq) == ("r1", 3, 4)
    return again


@every_call
def test_the_right_epoch_and_seq_are_accepted(shard: Shard, name: str) -> None:
    call, answer, status, added = CALLS[name]
    held = _claimed(shard)
    assert call(shard, held, held.epoch, held.seq) == answer
    fields = shard.fields("r1")
    assert fields["st"] == status
    epoch = held.epoch if name == "append" else held.epoch + 1
    assert fields["cur"] == str(epoch * SPAN + held.seq + added)
    assert len(shard.journal("r1")) == held.seq + added
    assert ("r1" in shard.scores("claims")) == (name == "append")
    assert ("r1" in shard.scores("queue:acme")) == (status == "queued")


@every_call
def test_a_repeat_answers_as_the_first_time_and_changes_nothing(shard: Shard, name: str) -> None:
    call, answer, *_ = CALLS[name]
    held = _claimed(shard)
    call(shard, held, held.epoch, held.seq)
    before = shard.snapshot()
    for _ in range(3):
        assert call(shard, held, held.epoch, held.seq) == answer
    assert shard.snapshot() == before


@every_call
@pytest.mark.parametrize(("epoch", "seq"), [(1, 2), (1, 3), (1, 4), (5, 4), (2, 4), (4, 4), (0, 0)])
def test_a_stale_epoch_is_refused_and_changes_nothing(shard: Shard, name: str, epoch: int, seq: int) -> None:
    held = _claimed(shard)
    before = shard.snapshot()
    assert CALLS[name][0](shard, held, epoch, seq) == "LOST"
    assert shard.snapshot() == before


@every_call
@pytest.mark.parametrize("seq", [5, 6, 1000])
def test_a_gap_is_refused_and_changes_nothing(shard: Shard, name: str, seq: int) -> None:
    held = _claimed(shard)
    before = shard.snapshot()
    assert CALLS[name][0](shard, held, held.epoch, seq) == "GAP"
    assert shard.snapshot() == before


@every_call
def test_giving_up_from_an_old_place_in_the_journal_is_a_gap(shard: Shard, name: str) -> None:
    held = _claimed(shard)
    assert shard.append(held, entry(key="c")) == "OK"
    before = shard.snapshot()
    # Only the plain form may be a repeat here: one that came before what was appended since.
    expected = "GAP" if name != "append" else None
    answer = CALLS[name][0](shard, held, held.epoch, held.seq)
    if expected:
        assert answer == expected
    else:
        assert answer in ("GAP", "OK")
    assert shard.snapshot() == before


@every_call
def test_a_run_that_does_not_exist_is_refused_and_leaves_no_key(shard: Shard, name: str) -> None:
    ghost = Held("ghost", 3, 4, "", 0, "{}", "{}", [], [])
    for epoch, seq in ((3, 4), (0, 0), (1, 2)):
        assert CALLS[name][0](shard, ghost, epoch, seq) == "LOST"
    assert shard.snapshot() == {}


def _queued(shard: Shard, held: Held) -> None:
    shard.requeue(held)


def _parked(shard: Shard, held: Held) -> None:
    shard.park(held, entry("timer.set"), status="sleeping", wake=9 * 10**15 // 4)


def _paused(shard: Shard, held: Held) -> None:
    shard.park(held, entry("run.paused"), status="paused")


def _completed(shard: Shard, held: Held) -> None:
    shard.finish(held, entry("run.completed", key="other"))


def _failed(shard: Shard, held: Held) -> None:
    shard.finish(held, entry("run.failed"), status="failed")


def _aside(shard: Shard, held: Held) -> None:
    shard.finish(held, status="failed", error='{"code":"replay_input_changed"}')


def _terminated(shard: Shard, held: Held) -> None:
    shard.terminate("r1")


def _swept(shard: Shard, held: Held) -> None:
    shard.expire_lease("r1")
    assert shard.sweep()[:2] == [1, 0]


def _swept_away(shard: Shard, held: Held) -> None:
    shard.expire_lease("r1")
    assert shard.sweep(budget=0)[:2] == [0, 1]


def _disowned(shard: Shard, held: Held) -> None:
    assert shard.disown("w1", "other") == 1


def _taken_over(shard: Shard, held: Held) -> None:
    _swept(shard, held)
    assert "r1" in [h.run_id for h in shard.claims("w2", limit=2)]


LOSSES: list[Callable[[Shard, Held], None]] = [
    _queued,
    _parked,
    _paused,
    _completed,
    _failed,
    _aside,
    _terminated,
    _swept,
    _swept_away,
    _disowned,
    _taken_over,
]


@pytest.mark.parametrize("lose", LOSSES)
@every_call
def test_whoever_lost_the_run_can_do_nothing_more(shard: Shard, name: str, lose: Callable[[Shard, Held], None]) -> None:
    """In every state that a run may have got into meanwhile, and with the same number of entries, too."""
    held = _claimed(shard)
    lose(shard, held)
    before = shard.snapshot()
    answer = CALLS[name][0](shard, held, held.epoch, held.seq)
    assert shard.snapshot() == before
    status = shard.fields("r1")["st"]
    unheld = shard.fields("r1")["cur"] == str((held.epoch + 1) * SPAN + held.seq)
    if name.startswith("requeue") and unheld:
        # It has been given up without a record: what is asked for is so.
        assert answer == "OK"
    elif name == "sleep" and unheld:
        assert answer == ("QUEUED" if status == "queued" else "PARKED")
    elif name == "set aside" and unheld and status == "failed":
        assert answer == "OK"
    else:
        assert answer == "LOST"


def test_entries_are_written_in_order_as_they_came(shard: Shard) -> None:
    shard.submit("r1")
    held = shard.claim()
    raws = [entry(key=f"k{n}", result="é\u2028\\" * n) for n in range(50)]
    assert shard.append(held, *raws) == "OK"
    stored = shard.client.xrange(f"{shard.prefix}log:r1", min=3)
    assert [fields[b"e"].decode() for _, fields in stored] == raws
    assert [i for i, _ in stored] == [f"{n}-0".encode() for n in range(3, 53)]


def test_binary_and_large_entries_pass_unchanged(shard: Shard) -> None:
    shard.submit("r1")
    held = shard.claim()
    raw = bytes(range(256)) * 8192
    assert shard.call("append", "append", "r1", held.cursor(), held.life, 1, raw, 0) == "OK"
    assert shard.client.xrange(f"{shard.prefix}log:r1", min=3)[0][1] == {b"e": raw}


def test_a_repeat_of_an_earlier_append_of_this_attempt_is_known(shard: Shard) -> None:
    shard.submit("r1")
    held = shard.claim()
    shard.append(held, entry(key="a"))
    shard.append(held, entry(key="b"), entry(key="c"), seq=3)
    before = shard.snapshot()
    assert shard.append(held, entry(key="a")) == "OK"
    assert shard.append(held, entry(key="b"), entry(key="c"), seq=3) == "OK"
    assert shard.snapshot() == before


def test_what_was_read_from_the_inbox_goes_with_the_append(shard: Shard) -> None:
    shard.submit("r1")
    held = shard.claim()
    for name in ("m1", "m2", "m3"):
        shard.deliver("r1", name)
    assert shard.append(held, entry(), consumed=['["m2"]']) == "OK"
    assert shard.inbox("r1") == ['["m1"]', '["m3"]']
    before = shard.snapshot()
    assert shard.append(held, entry(), consumed=['["m2"]']) == "OK"
    assert shard.append(held, entry(), consumed=['["m1"]'], epoch=5) == "LOST"
    assert shard.append(held, entry(), consumed=['["m1"]'], seq=9) == "GAP"
    assert shard.snapshot() == before
    assert shard.append(held, seq=3, consumed=['["m1"]', '["m3"]']) == "OK"
    assert shard.inbox("r1") == []
    assert shard.fields("r1")["cur"] == str(SPAN + 3)


def test_of_equal_messages_only_so_many_go_as_were_read(shard: Shard) -> None:
    shard.submit("r1")
    held = shard.claim()
    for name in ("m1", "m2", "m3"):
        shard.deliver("r1", name, raw="same")
    shard.append(held, entry(), consumed=["same"])
    assert shard.inbox("r1") == ["same", "same"]
    shard.append(held, entry(), seq=3, consumed=["same", "same"])
    assert shard.inbox("r1") == []


def test_an_append_of_nothing_is_fenced_too(shard: Shard) -> None:
    shard.submit("r1")
    held = shard.claim()
    shard.deliver("r1", "m1")
    before = shard.snapshot()
    assert shard.append(held, epoch=3, consumed=['["m1"]']) == "LOST"
    assert shard.append(held, seq=7, consumed=['["m1"]']) == "GAP"
    assert shard.snapshot() == before
    ghost = Held("ghost", 1, 2, "", 0, "{}", "{}", [], [])
    assert shard.append(ghost, consumed=['["m1"]']) == "LOST"
    assert shard.snapshot() == before


def test_a_park_keeps_what_the_run_waits_for(shard: Shard) -> None:
    shard.submit("r1", "acme")
    held = shard.claim()
    wake = 2 * 10**15 + 123_457
    assert shard.park(held, entry("signal.awaited"), topic="signal:go", wake=wake) == "PARKED"
    fields = shard.fields("r1")
    assert (fields["st"], fields["top"], fields["wake"]) == ("waiting", "signal:go", str(wake))
    assert shard.scores("timers") == {"r1": wake}
    assert shard.scores("claims") == shard.scores("queue:acme") == {}


@pytest.mark.parametrize(("seen", "consumed", "parks"), [(2, 0, True), (2, 1, True), (1, 0, False), (1, 1, False)])
def test_a_park_is_called_off_when_the_inbox_has_grown(shard: Shard, seen: int, consumed: int, parks: bool) -> None:
    shard.submit("r1", "acme")
    held = shard.claim()
    messages = ['["m1"]', '["m2"]']
    for name in ("m1", "m2"):
        shard.deliver("r1", name, "signal:other")
    args: dict[str, Any] = {"topic": "signal:go", "seen": seen, "consumed": messages[:consumed], "wake": 2 * 10**15}
    assert shard.park(held, entry("signal.awaited"), **args) == ("PARKED" if parks else "QUEUED")
    assert shard.fields("r1")["st"] == ("waiting" if parks else "queued")
    assert ("r1" in shard.scores("queue:acme")) != parks
    assert ("r1" in shard.scores("timers")) == parks
    before = shard.snapshot()
    assert shard.park(held, entry("signal.awaited"), **args) == ("PARKED" if parks else "QUEUED")
    assert shard.snapshot() == before
    if not parks:
        again = shard.claim("w2")
        assert again.inbox == messages[consumed:]
        assert [e[1] for _, e in again.entries][-2:] == ["signal.awaited", "run.resumed"]


def test_a_requeued_run_goes_back_to_its_old_place(shard: Shard) -> None:
    for n in range(3):
        shard.submit(f"r{n}", "acme")
    held = shard.claim()
    assert shard.requeue(held) == "OK"
    assert [h.run_id for h in shard.claims(limit=3)] == ["r0", "r1", "r2"]


def test_finishing_tells_subscribers_and_sets_the_time_of_deletion(shard: Shard) -> None:
    shard.submit("r1", "acme")
    held = shard.claim()
    shard.deliver("r1", "m1")
    raw = entry("run.completed", key="")
    assert shard.finish(held, entry(key="last"), raw, keep_ms=90_000) == "OK"
    fields = shard.fields("r1")
    seconds, _ = shard.client.time()
    ended = shard.scores("ended")["r1"]
    assert seconds * 1000 + 80_000 < ended < seconds * 1000 + 100_000
    assert ended == int(fields["fin"]) // 1000 + 90_000
    ((_, told),) = shard.client.xrange(f"{shard.prefix}terminal")
    assert told == {b"r": b"r1", b"s": b"completed", b"o": b"acme", b"q": b"4"}
    assert not shard.client.exists(f"{shard.prefix}inbox:r1")
    assert shard.types("r1")[-1] == "run.completed"
    assert shard.scores("claims") == {}


def test_a_run_that_is_set_aside_keeps_its_journal_its_messages_and_the_reason(shard: Shard) -> None:
    shard.submit("r1", "acme")
    held = shard.claim()
    shard.deliver("r1", "m1")
    journal = shard.journal("r1")
    assert shard.finish(held, status="failed", error='{"code":"version_skew"}') == "OK"
    fields = shard.fields("r1")
    assert (fields["st"], json.loads(fields["err"])) == ("failed", {"code": "version_skew"})
    assert shard.journal("r1") == journal
    assert shard.inbox("r1") == ['["m1"]']
    assert shard.scores("ended") == shard.scores("claims") == {}
    assert not shard.client.exists(f"{shard.prefix}terminal")


def test_a_failed_run_keeps_its_messages_for_a_revival(shard: Shard) -> None:
    shard.submit("r1")
    held = shard.claim()
    shard.deliver("r1", "m1")
    shard.finish(held, entry("run.failed"), status="failed")
    shard.revive("r1")
    assert shard.claim().inbox == ['["m1"]']
