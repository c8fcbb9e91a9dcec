"""Following what happens: bells for workers, the end of a run, a journal and an output as they grow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import pytest

from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Bell, BellKind, Ending, Listener, Parking, Store, TailChunk
from pyrula.testing.store_contract.base import Contract
from pyrula.testing.store_contract.scenes import (
    KEEP,
    WORKFLOW,
    claimed,
    claims,
    finished,
    message,
    note,
    parked,
    set_aside,
    submit,
)

__all__ = ["Following"]

_HOUR = 3_600_000_000  # microseconds
_PATIENCE = 20  # seconds


async def _next(listener: Listener) -> Bell:
    """The next bell that says something; LOOK may come at any time."""
    with anyio.fail_after(_PATIENCE):
        while (bell := await listener.next()).kind == BellKind.LOOK:
            pass
    return bell


async def _heard(listener: Listener, kind: str) -> Bell:
    while (bell := await _next(listener)).kind != kind:
        pass
    return bell


async def _chunk(chunks: AsyncIterator[TailChunk]) -> list[tuple[int, bytes]]:
    """The next chunk that holds something."""
    with anyio.fail_after(_PATIENCE):
        while not (chunk := await chunks.__anext__()):
            pass
    return list(chunk)


class Following(Contract):
    """`bells`, `wait_end` and `tail`."""

    # --- bells --------------------------------------------------------------------------

    async def test_a_submitted_run_is_announced(self, store: Store) -> None:
        async with store.bells([WORKFLOW, "invoices"]) as listener:
            await submit(store, "r1")
            assert (await _next(listener)).workflow == WORKFLOW
            await submit(store, "r1", workflow="invoices")
            bell = await _next(listener)
            assert (bell.kind, bell.workflow) == (BellKind.QUEUED, "invoices")

    async def test_a_bell_is_heard_while_waiting_for_it(self, store: Store) -> None:
        heard: list[Bell] = []
        async with store.bells([WORKFLOW]) as listener, anyio.create_task_group() as group:

            async def listen() -> None:
                heard.append(await _next(listener))

            group.start_soon(listen)
            await anyio.wait_all_tasks_blocked()
            await submit(store, "r1")
        assert [bell.kind for bell in heard] == [BellKind.QUEUED]

    async def test_every_listener_hears(self, store: Store) -> None:
        async with store.bells([WORKFLOW]) as one, store.bells([WORKFLOW]) as other:
            await submit(store, "r1")
            assert (await _next(one)).kind == BellKind.QUEUED
            assert (await _next(other)).kind == BellKind.QUEUED

    async def test_other_workflows_are_not_heard(self, store: Store) -> None:
        async with store.bells([WORKFLOW]) as listener:
            await submit(store, "r1", workflow="invoices")
            await submit(store, "r2")
            assert (await _next(listener)).workflow == WORKFLOW

    @pytest.mark.parametrize("how", ["requeue", "wake", "deliver", "revive", "sweep", "park"])
    async def test_a_run_that_is_queued_again_is_announced(self, store: Store, how: str) -> None:
        actions: dict[str, Callable[[], Awaitable[object]]] = {}
        if how in ("requeue", "park"):
            claim = await claimed(store)
            actions["requeue"] = lambda: store.requeue(claim, 2)
            actions["park"] = lambda: store.park(claim, 2, [], Parking(RunStatus.WAITING, "x", inbox_seen=-1))
        elif how == "wake":
            timers = self.timers(store)
            await parked(store, wake_at=1)
            actions["wake"] = lambda: self.until(store, lambda: timers.wake(WORKFLOW, limit=9))
        elif how == "deliver":
            await parked(store)
            actions["deliver"] = lambda: store.deliver(WORKFLOW, "r1", message("m1"))
        elif how == "revive":
            await finished(store, status=RunStatus.FAILED)
            actions["revive"] = lambda: store.revive(WORKFLOW, "r1", b"{}")
        else:
            await claimed(store, lease_ms=1)
            actions["sweep"] = lambda: self.until(
                store, lambda: store.sweep(WORKFLOW, limit=9, requeue_budget=9, keep_ms=0)
            )
        async with store.bells([WORKFLOW]) as listener:
            await actions[how]()
            assert (await _heard(listener, BellKind.QUEUED)).workflow == WORKFLOW
        assert len(await claims(store, 1)) == 1

    async def test_a_message_for_a_claimed_run_is_announced(self, store: Store) -> None:
        await claimed(store)
        async with store.bells([WORKFLOW]) as listener:
            await store.deliver(WORKFLOW, "r1", message("m1"))
            bell = await _next(listener)
            assert (bell.kind, bell.workflow, bell.run_id) == (BellKind.INBOX, WORKFLOW, "r1")

    async def test_the_end_of_a_claimed_run_is_announced(self, store: Store) -> None:
        await claimed(store)
        async with store.bells([WORKFLOW]) as listener:
            await store.terminate(WORKFLOW, "r1", b"{}", keep_ms=KEEP)
            bell = await _next(listener)
            assert (bell.kind, bell.workflow, bell.run_id) == (BellKind.ENDED, WORKFLOW, "r1")

    async def test_a_nearer_timer_is_announced(self, store: Store) -> None:
        self.need_one_queue()
        now = await store.now()
        async with store.bells([WORKFLOW]) as listener:
            for n, run_id in ((3, "r1"), (4, "r2"), (2, "r3")):
                await parked(store, run_id, status=RunStatus.SLEEPING, topic="", wake_at=now + n * _HOUR)
            assert (await _heard(listener, BellKind.TIMER)).due == now + 3 * _HOUR
            assert (await _heard(listener, BellKind.TIMER)).due == now + 2 * _HOUR

    async def test_a_run_held_back_is_announced_as_a_timer(self, store: Store) -> None:
        async with store.bells([WORKFLOW]) as listener:
            start = await store.now() + _HOUR
            await submit(store, "r1", start_at=start)
            bell = await _next(listener)
            assert (bell.kind, bell.due) == (BellKind.TIMER, start)

    async def test_what_nobody_needs_to_know_is_not_announced(self, store: Store) -> None:
        await parked(store, "r1")
        await submit(store, "r2", delay_ms=3_600_000)
        async with store.bells([WORKFLOW]) as listener:
            await store.deliver(WORKFLOW, "r1", message("m1", "signal:other"))
            await store.terminate(WORKFLOW, "r1", b"{}", keep_ms=KEEP)
            await store.deliver(WORKFLOW, "r2", message("m2"))
            await submit(store, "r3")
            assert (await _next(listener)).kind == BellKind.QUEUED

    # --- the end of a run ---------------------------------------------------------------

    async def test_a_finished_run_is_told(self, store: Store) -> None:
        claim = await claimed(store)
        async with store.wait_end(WORKFLOW, "r1") as listener, store.wait_end(WORKFLOW, "r1") as other:
            await store.finish(claim, 2, [note(claim, "", "run.completed")], Ending(RunStatus.COMPLETED, KEEP))
            for each in (listener, other):
                bell = await _next(each)
                assert (bell.kind, bell.workflow, bell.run_id) == (BellKind.ENDED, WORKFLOW, "r1")

    async def test_the_news_of_an_end_may_bring_the_event_along(self, store: Store) -> None:
        claim = await claimed(store)
        async with store.wait_end(WORKFLOW, "r1") as listener:
            raw = note(claim, "", "run.completed", result=[1, 2])
            await store.finish(claim, 2, [note(claim, "a"), raw], Ending(RunStatus.COMPLETED, KEEP))
            bell = await _next(listener)
        assert (bell.seq, bell.entry) in ((4, raw), (4, b""), (0, b""))

    async def test_the_news_that_a_run_is_set_aside_brings_none(self, store: Store) -> None:
        async with store.wait_end(WORKFLOW, "r1") as listener:
            await set_aside(store)
            bell = await _next(listener)
        assert (bell.seq, bell.entry) == (0, b"")

    async def test_a_run_that_ends_while_someone_waits_is_told(self, store: Store) -> None:
        heard: list[Bell] = []
        await submit(store, "r1")
        async with store.wait_end(WORKFLOW, "r1") as listener, anyio.create_task_group() as group:

            async def listen() -> None:
                heard.append(await _next(listener))

            group.start_soon(listen)
            await anyio.wait_all_tasks_blocked()
            await store.terminate(WORKFLOW, "r1", b"{}", keep_ms=KEEP)
        assert [bell.run_id for bell in heard] == ["r1"]

    async def test_a_run_that_is_set_aside_is_told(self, store: Store) -> None:
        async with store.wait_end(WORKFLOW, "r1") as listener:
            await set_aside(store)
            assert (await _next(listener)).run_id == "r1"

    async def test_a_run_failed_by_a_sweep_is_told(self, store: Store) -> None:
        async with store.wait_end(WORKFLOW, "r1") as listener:
            await claimed(store, lease_ms=1)
            await self.until(store, lambda: store.sweep(WORKFLOW, limit=9, requeue_budget=0, keep_ms=KEEP))
            assert (await _next(listener)).run_id == "r1"

    async def test_the_end_of_another_run_is_not_told(self, store: Store) -> None:
        async with store.wait_end(WORKFLOW, "r1") as listener:
            await finished(store, "r2")
            await finished(store, "r1", workflow="invoices")
            await finished(store, "r1")
            bell = await _next(listener)
            assert (bell.workflow, bell.run_id) == (WORKFLOW, "r1")

    # --- tail ---------------------------------------------------------------------------

    async def test_a_journal_is_followed_from_before_its_beginning(self, store: Store) -> None:
        found: list[int] = []
        async with store.tail(WORKFLOW, "r1") as chunks, anyio.create_task_group() as group:

            async def follow() -> None:
                with anyio.fail_after(_PATIENCE):
                    async for chunk in chunks:
                        found.extend(seq for seq, _ in chunk)
                        if len(found) == 6:
                            break

            group.start_soon(follow)
            claim = await claimed(store)
            await store.append(claim, 2, [note(claim, "a")])
            await store.append(claim, 3, [note(claim, "b"), note(claim, "c")])
            await store.finish(claim, 5, [note(claim, "", "run.completed")], Ending(RunStatus.COMPLETED, KEEP))
        assert found == [1, 2, 3, 4, 5, 6]

    async def test_what_is_there_comes_at_once_and_then_what_comes(self, store: Store) -> None:
        claim = await claimed(store)
        await store.append(claim, 2, [note(claim, "a"), note(claim, "b")])
        async with store.tail(WORKFLOW, "r1", after=1) as chunks:
            assert [seq for seq, _ in await _chunk(chunks)] == [2, 3, 4]
            raw = note(claim, "c")
            await store.append(claim, 4, [raw])
            assert await _chunk(chunks) == [(5, raw)]

    async def test_a_long_journal_is_followed_in_order(self, store: Store) -> None:
        claim = await claimed(store)
        await store.append(claim, 2, [note(claim, f"k{n}") for n in range(3000)])
        found: list[int] = []
        async with store.tail(WORKFLOW, "r1") as chunks:
            while len(found) < 3002:
                found += [seq for seq, _ in await _chunk(chunks)]
        assert found == list(range(1, 3003))

    async def test_an_output_is_followed(self, store: Store) -> None:
        claim = await claimed(store)
        await store.write_output(claim, 1, b"one")
        async with store.tail(WORKFLOW, "r1", output=True) as chunks:
            assert await _chunk(chunks) == [(1, b"one")]
            await store.append(claim, 2, [note(claim, "a")])
            await store.write_output(claim, 2, b"two")
            assert await _chunk(chunks) == [(2, b"two")]

    async def test_a_reader_can_look_whether_the_run_still_exists(self, store: Store) -> None:
        async with store.tail(WORKFLOW, "nobody") as chunks:
            with anyio.fail_after(_PATIENCE):
                assert list(await chunks.__anext__()) == []

    async def test_two_readers_do_not_disturb_each_other(self, store: Store) -> None:
        claim = await claimed(store)
        async with store.tail(WORKFLOW, "r1") as one, store.tail(WORKFLOW, "r1", after=2) as other:
            assert len(await _chunk(one)) == 2
            await store.append(claim, 2, [note(claim, "a")])
            assert [seq for seq, _ in await _chunk(one)] == [3]
            assert [seq for seq, _ in await _chunk(other)] == [3]

    async def test_a_store_is_used_again_after_it_was_closed(self, store: Store) -> None:
        await submit(store, "r1")
        await store.aclose()
        assert (await store.load(WORKFLOW, "r1")).status is RunStatus.QUEUED
        async with store.bells([WORKFLOW]) as listener:
            await submit(store, "r2")
            assert (await _next(listener)).kind == BellKind.QUEUED
