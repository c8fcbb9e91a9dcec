"""The function library: submit and claim."""

from __future__ import annotations

import json

import pytest

from tests.integration.lua_shard import SPAN, Shard, both_protocols, entry

pytestmark = both_protocols


def test_a_submitted_run_is_queued_with_all_it_needs(shard: Shard) -> None:
    created, status, digest, at = shard.submit(
        "r1", "acme", input='{"a":[1]}', digest="abc", attributes='{"k":1}', headers='{"h":2}'
    )
    assert (created, status, digest) == (1, "queued", "abc")
    assert shard.fields("r1") == {
        "st": "queued",
        "cur": "0",
        "sub": at,
        "in": '{"a":[1]}',
        "ih": "abc",
        "own": "acme",
        "attr": '{"k":1}',
        "hdr": '{"h":2}',
    }
    assert shard.scores("queue:acme") == {"r1": int(at)}
    assert shard.scores("index") == {"r1": int(at)}
    assert list(shard.scores("tenants")) == ["acme"]


def test_submitting_a_run_again_answers_with_the_first_and_changes_nothing(shard: Shard) -> None:
    first = shard.submit("r1", "acme", digest="abc")
    before = shard.snapshot()
    assert shard.submit("r1", "acme", digest="abc") == [0, "queued", "abc", first[3]]
    assert shard.submit("r1", "other", input="[]", digest="xyz", delay_ms=5) == [0, "queued", "abc", first[3]]
    assert shard.snapshot() == before


@pytest.mark.parametrize("state", ["running", "waiting", "completed", "terminated"])
def test_submitting_a_run_that_is_past_the_queue_changes_nothing(shard: Shard, state: str) -> None:
    at = shard.submit("r1")[3]
    if state == "terminated":
        shard.terminate("r1")
    else:
        held = shard.claim()
        if state == "waiting":
            shard.park(held, entry("signal.awaited"), topic="signal:go")
        elif state == "completed":
            shard.finish(held, entry("run.completed"))
    before = shard.snapshot()
    assert shard.submit("r1") == [0, state, "d1", at]
    assert shard.snapshot() == before


@pytest.mark.parametrize("how", ["delay_ms", "start_at"])
def test_a_run_that_is_not_due_yet_waits_for_its_timer(shard: Shard, how: str) -> None:
    seconds, micros = shard.client.time()
    now = seconds * 1_000_000 + micros
    delay = 60_000 if how == "delay_ms" else ""
    start = now + 60_000_000 if how == "start_at" else ""
    created, status, _, at = shard.submit("r1", delay_ms=delay, start_at=start)
    assert (created, status) == (1, "queued")
    wake = int(at) + 60_000_000 if how == "delay_ms" else now + 60_000_000
    assert shard.fields("r1")["wake"] == str(wake)
    assert shard.scores("timers") == {"r1": wake}
    assert shard.claims() == []
    assert shard.wake() == [0, str(wake)]


@pytest.mark.parametrize("when", [{"delay_ms": 0}, {"start_at": 1}])
def test_a_run_that_is_due_already_is_queued_at_once(shard: Shard, when: dict[str, int]) -> None:
    shard.submit("r1", **when)  # type: ignore[arg-type]
    assert shard.scores("timers") == {}
    assert shard.claim().run_id == "r1"


def test_the_first_claim_begins_the_journal(shard: Shard) -> None:
    at = shard.submit("r1", "acme", input='{"a":1e2}', attributes='{"k":1}', headers='{"h":2}')[3]
    now, more, claim = shard.claim_reply("w1", lease_ms=30_000)
    run_id, epoch, seq, owner, submitted, attributes, headers, entries, inbox, life = claim
    assert int(life) <= int(now)
    assert (run_id, epoch, seq, owner, submitted, attributes, headers, inbox) == (
        "r1",
        "1",
        "2",
        "acme",
        at,
        '{"k":1}',
        '{"h":2}',
        [],
    )
    assert more == 0
    assert [raw for _, raw in entries] == [
        f'[1,"run.submitted",{at},0,"",{{"input":{{"a":1e2}}}}]',
        f'[1,"run.started",{now},1,"",{{"worker":"w1"}}]',
    ]
    assert shard.journal("r1") == [json.loads(raw) for _, raw in entries]
    fields = shard.fields("r1")
    assert (fields["st"], fields["cur"], fields["w"], fields["fst"], fields["in"]) == (
        "running",
        str(SPAN + 2),
        "w1",
        now,
        "",
    )
    assert shard.scores("claims") == {"r1": int(now) // 1000 + 30_000}
    assert shard.scores("queue:acme") == shard.scores("tenants") == {}


def test_defaults_come_back_for_what_was_left_out(shard: Shard) -> None:
    shard.submit("r1")
    held = shard.claim()
    assert (held.owner, held.attributes, held.headers) == ("", "{}", "{}")


def test_a_later_claim_brings_the_whole_journal_and_the_inbox(shard: Shard) -> None:
    shard.submit("r1")
    first = shard.claim()
    shard.append(first, entry(key="a"), entry(key="b"))
    shard.park(first, entry("signal.awaited"), seq=4, topic="signal:go")
    shard.deliver("r1", "m1", "signal:go", raw='["one"]')
    shard.deliver("r1", "m2", "signal:no", raw='["two"]')
    again = shard.claim("w2")
    assert (again.epoch, again.seq, again.inbox) == (3, 6, ['["one"]', '["two"]'])
    assert [(n, e[1], e[3]) for n, e in again.entries] == [
        (1, "run.submitted", 0),
        (2, "run.started", 1),
        (3, "step.completed", 1),
        (4, "step.completed", 1),
        (5, "signal.awaited", 1),
        (6, "run.resumed", 2),
    ]
    assert again.entries[5][1][5] == {"worker": "w2"}
    assert [e for _, e in again.entries] == shard.journal("r1")
    assert shard.fields("r1")["w"] == "w2"


def test_claiming_where_nothing_is_queued_changes_nothing(shard: Shard) -> None:
    assert shard.claim_reply()[1:] == [0]
    assert shard.snapshot() == {}
    shard.submit("r1")
    shard.claim()
    shard.submit("r2", delay_ms=60_000)
    before = shard.snapshot()
    assert shard.claim_reply(limit=16)[1:] == [0]
    assert shard.snapshot() == before


@pytest.mark.parametrize(
    ("runs", "limit", "given", "more"), [(5, 3, 3, 1), (3, 3, 3, 0), (2, 3, 2, 0), (2, 1, 1, 1), (1, 1, 1, 0)]
)
@pytest.mark.parametrize("owners", [1, 2])
def test_a_claim_gives_up_to_its_limit_and_tells_whether_runs_are_left(
    shard: Shard, runs: int, limit: int, given: int, more: int, owners: int
) -> None:
    for n in range(runs):
        shard.submit(f"r{n}", f"t{n % owners}")
    reply = shard.claim_reply(limit=limit)
    assert [c[0] for c in reply[2:]] == [f"r{n}" for n in range(given)]
    assert reply[1] == more
    rest = shard.claim_reply(limit=100)
    assert [c[0] for c in rest[2:]] == [f"r{n}" for n in range(given, runs)]
    assert rest[1] == 0


def test_a_run_is_given_to_one_worker_only(shard: Shard) -> None:
    for n in range(20):
        shard.submit(f"r{n:02}")
    given = [h.run_id for w in ("w1", "w2", "w1", "w2") for h in shard.claims(w, limit=6)]
    assert given == [f"r{n:02}" for n in range(20)]


# --- a given run -------------------------------------------------------------------------


def test_a_given_run_is_claimed_as_any_other_and_leaves_the_queue(shard: Shard) -> None:
    for n in range(3):
        shard.submit(f"r{n}", "acme", input='{"a":1}')
    (held,) = shard.claim_run("r1", "w2")
    assert (held.run_id, held.epoch, held.seq, held.owner) == ("r1", 1, 2, "acme")
    assert [e for _, e in held.entries] == shard.journal("r1")
    assert shard.types("r1") == ["run.submitted", "run.started"]
    assert shard.fields("r1")["w"] == "w2"
    assert list(shard.scores("claims")) == ["r1"]
    assert list(shard.scores("queue:acme")) == ["r0", "r2"]
    assert shard.append(held, entry()) == "OK"
    before = shard.snapshot()
    assert shard.claim_run("r1", "w2") == []
    assert shard.snapshot() == before
    assert [h.run_id for h in shard.claims(limit=9)] == ["r0", "r2"]


def test_the_last_run_of_a_tenant_takes_its_turn_along(shard: Shard) -> None:
    shard.submit("r1", "acme")
    assert len(shard.claim_run("r1")) == 1
    assert shard.scores("tenants") == shard.scores("queue:acme") == {}


@pytest.mark.parametrize("state", ["missing", "held back", "running", "waiting", "paused", "failed", "terminated"])
def test_a_given_run_that_cannot_run_is_left_alone(shard: Shard, state: str) -> None:
    shard.submit("other")
    if state == "held back":
        shard.submit("r1", delay_ms=60_000)
    elif state != "missing":
        shard.submit("r1")
        (held,) = shard.claim_run("r1")
        if state in ("waiting", "paused"):
            shard.park(held, entry("signal.awaited"), status=state, topic="signal:go")
        elif state == "failed":
            shard.finish(held, status="failed", error='{"code":"x"}')
        elif state == "terminated":
            shard.terminate("r1")
    before = shard.snapshot()
    assert shard.claim_run("r1") == []
    assert shard.snapshot() == before


# --- bad data ----------------------------------------------------------------------------


def test_a_run_that_the_server_cannot_start_is_set_aside_and_the_others_go_on(shard: Shard) -> None:
    for run_id in ("r1", "bad", "r2"):
        shard.submit(run_id)
    # A journal that is ahead of its run, as after a clumsy restore.
    shard.client.xadd(f"{shard.prefix}log:bad", {"e": "[]"}, id="9-0")
    assert [h.run_id for h in shard.claims(limit=16)] == ["r1", "r2"]
    fields = shard.fields("bad")
    assert fields["st"] == "failed"
    error = json.loads(fields["err"])
    assert error["code"] == "damaged_run"
    assert "equal or smaller" in error["message"]
    assert shard.claims() == []


def test_a_queue_entry_without_a_run_is_dropped(shard: Shard) -> None:
    shard.submit("r1")
    shard.client.zadd(f"{shard.prefix}queue:", {"ghost": 1})
    assert [h.run_id for h in shard.claims(limit=16)] == ["r1"]
    assert shard.scores("tenants") == shard.scores("queue:") == {}
    assert not shard.client.exists(f"{shard.prefix}run:ghost")


def test_the_attempt_numbers_stay_exact_near_the_end_of_their_range(shard: Shard) -> None:
    shard.submit("r1")
    held = shard.claim()
    shard.requeue(held)
    # 2^25 epochs of 2^28 events: the largest cursor still fits a double.
    epoch, seq = 2**25 - 4, 2**28 - 10
    shard.client.hset(f"{shard.prefix}run:r1", "cur", epoch * SPAN + seq)
    shard.client.xadd(f"{shard.prefix}log:r1", {"e": entry()}, id=f"{seq}-0")
    again = shard.claim()
    assert (again.epoch, again.seq) == (epoch + 1, seq + 1)
    assert again.entries[-1][1][3] == (epoch + 2) // 2
    assert shard.fields("r1")["cur"] == str((epoch + 1) * SPAN + seq + 1)
    assert shard.append(again, entry()) == "OK"
    assert shard.append(again, entry()) == "OK"
    assert shard.append(again, entry(), epoch=epoch - 1) == "LOST"
    assert shard.fields("r1")["cur"] == str((epoch + 1) * SPAN + seq + 2)
    assert shard.requeue(again, seq=seq + 2) == "OK"
    assert shard.fields("r1")["cur"] == str((epoch + 2) * SPAN + seq + 2)
