"""Reading runs, journals and listings."""

from __future__ import annotations

import pytest

from pyrula.contracts.errors import InvalidInput, RunNotFound
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import RunRecord, Store
from pyrula.testing.store_contract.base import Contract
from pyrula.testing.store_contract.scenes import (
    LEASE,
    WORKFLOW,
    claimed,
    finished,
    note,
    parked,
    set_aside,
    submit,
)

__all__ = ["Reading"]


async def _pages(store: Store, *workflows: str, limit: int, **criteria: object) -> list[list[RunRecord]]:
    pages: list[list[RunRecord]] = []
    cursor: str | None = None
    while cursor is not None or not pages:
        page = await store.listing(workflows or [WORKFLOW], limit=limit, cursor=cursor, **criteria)  # type: ignore[arg-type]
        pages.append(list(page.runs))
        cursor = page.cursor
        assert len(pages) < 1000, "the pages have no end"
    return pages


async def _found(store: Store, **criteria: object) -> list[str]:
    names = [record.run_id for page in await _pages(store, limit=100, **criteria) for record in page]
    assert await store.count([WORKFLOW], **criteria) == len(names)  # type: ignore[arg-type]
    return names


class Reading(Contract):
    """`load`, `read_journal`, `listing`, `count` and `workflows`."""

    async def test_a_run_with_the_ends_of_its_journal(self, store: Store) -> None:
        claim = await claimed(store)
        last = note(claim, "c")
        await store.append(claim, 2, [note(claim, "a"), note(claim, "b"), last])
        record = await store.load(WORKFLOW, "r1")
        assert record.first == tuple(claim.entries[0])
        assert record.last == (5, last)
        plain = await store.load(WORKFLOW, "r1", ends=False)
        assert (plain.first, plain.last, plain.seq) == (None, None, 5)

    async def test_no_run_to_load(self, store: Store) -> None:
        for ends in (True, False):
            with pytest.raises(RunNotFound):
                await store.load(WORKFLOW, "nobody", ends=ends)

    async def test_a_journal_in_parts(self, store: Store) -> None:
        claim = await claimed(store)
        await store.append(claim, 2, [note(claim, f"k{n}") for n in range(8)])
        whole = list(await store.read_journal(WORKFLOW, "r1"))
        assert [seq for seq, _ in whole] == list(range(1, 11))
        assert list(await store.read_journal(WORKFLOW, "r1", limit=3)) == whole[:3]
        assert list(await store.read_journal(WORKFLOW, "r1", after=3, limit=3)) == whole[3:6]
        assert list(await store.read_journal(WORKFLOW, "r1", after=9, limit=3)) == whole[9:]
        assert list(await store.read_journal(WORKFLOW, "r1", after=10)) == []
        assert list(await store.read_journal(WORKFLOW, "r1", after=99)) == []

    async def test_a_journal_that_has_not_begun(self, store: Store) -> None:
        await submit(store, "r1")
        assert list(await store.read_journal(WORKFLOW, "r1")) == []
        assert list(await store.read_journal(WORKFLOW, "nobody")) == []

    # --- listings -----------------------------------------------------------------------

    async def test_nothing_to_list(self, store: Store) -> None:
        page = await store.listing([WORKFLOW])
        assert (list(page.runs), page.cursor) == ([], None)
        assert await store.count([WORKFLOW]) == 0
        assert list((await store.listing([])).runs) == []
        assert await store.count([]) == 0

    async def test_the_newest_run_is_first(self, store: Store) -> None:
        names = ["r3", "r1", "r5", "r2", "r4"]
        await submit(store, *names)
        assert await _found(store) == names[::-1]

    async def test_a_listed_run_is_the_loaded_one(self, store: Store) -> None:
        await parked(store, "r1", wake_at=await store.now() + 3_600_000_000)
        await finished(store, "r2", owner="acme", attributes=b'{"a":1}')
        await claimed(store, "r3", priority=2)
        for record in (await store.listing([WORKFLOW])).runs:
            loaded = await store.load(WORKFLOW, record.run_id, ends=False)
            for field in ("workflow", "status", "owner", "epoch", "attempt", "seq", "priority", "requeues"):
                assert getattr(record, field) == getattr(loaded, field)
            for field in ("submitted_at", "started_at", "finished_at", "wake_at", "topic", "worker", "attributes"):
                assert getattr(record, field) == getattr(loaded, field)
            assert (record.first, record.last) == (None, None)

    async def test_by_status(self, store: Store) -> None:
        await claimed(store, "running")
        await parked(store, "waiting")
        await finished(store, "completed")
        await set_aside(store, "aside")
        await finished(store, "failed", status=RunStatus.FAILED)
        await submit(store, "queued")
        expected = {"running": ["running"], "waiting": ["waiting"], "completed": ["completed"], "queued": ["queued"]}
        expected |= {"failed": ["failed", "aside"], "cancelled": []}
        for status, names in expected.items():
            assert await _found(store, status=RunStatus(status)) == names

    async def test_by_owner(self, store: Store) -> None:
        await submit(store, "a1", owner="a")
        await submit(store, "none")
        await submit(store, "a2", owner="a")
        await submit(store, "b1", owner="b")
        assert await _found(store, owner="a") == ["a2", "a1"]
        assert await _found(store, owner="") == ["none"]
        assert await _found(store, owner="c") == []

    async def test_by_attributes(self, store: Store) -> None:
        values = {"text": b'"1"', "number": b"1", "float": b"1.0", "true": b"true", "null": b"null", "other": b"2"}
        for name, value in values.items():
            await submit(store, name, attributes=b'{"x":%b,"y":"z"}' % value)
        await submit(store, "without", attributes=b'{"y":"z"}')
        await submit(store, "plain")
        assert await _found(store, attributes={"x": "1"}) == ["text"]
        assert await _found(store, attributes={"x": 1}) == ["float", "number"]
        assert await _found(store, attributes={"x": True}) == ["true"]
        assert await _found(store, attributes={"x": None}) == ["null"]
        assert await _found(store, attributes={"x": 1, "y": "z"}) == ["float", "number"]
        assert await _found(store, attributes={"x": 1, "y": "q"}) == []
        assert len(await _found(store, attributes={"y": "z"})) == 7
        assert len(await _found(store, attributes={})) == 8

    async def test_by_attributes_with_parts(self, store: Store) -> None:
        await submit(store, "list", attributes=b'{"x":[1,"a",{"b":true}]}')
        await submit(store, "object", attributes=b'{"x":{"b":[1],"c":null}}')
        assert await _found(store, attributes={"x": [1, "a", {"b": True}]}) == ["list"]
        assert await _found(store, attributes={"x": [1, "a"]}) == []
        assert await _found(store, attributes={"x": {"c": None, "b": [1]}}) == ["object"]
        assert await _found(store, attributes={"x": {"b": [1]}}) == []

    async def test_attributes_of_a_running_run_are_found_as_they_are_now(self, store: Store) -> None:
        claim = await claimed(store, attributes=b'{"x":1}')
        assert await _found(store, attributes={"x": 1}) == ["r1"]
        await store.set_attributes(claim, b'{"x":2}')
        assert await _found(store, attributes={"x": 1}) == []
        assert await _found(store, attributes={"x": 2}) == ["r1"]

    async def test_by_time(self, store: Store) -> None:
        times: list[int] = []
        for n in range(5):
            [answer] = await submit(store, f"r{n}")
            times.append(answer.submitted_at)
            await self.passed(store, times[-1])
        assert await _found(store, submitted_after=times[1], submitted_before=times[3]) == ["r2"]
        assert await _found(store, submitted_after=times[1] - 1, submitted_before=times[3] + 1) == ["r3", "r2", "r1"]
        assert await _found(store, submitted_after=times[4]) == []
        assert await _found(store, submitted_before=times[0]) == []

    async def test_all_criteria_at_once(self, store: Store) -> None:
        for n in range(8):
            attributes = b'{"x":%d}' % (n % 2)
            await claimed(store, f"r{n}", owner="ab"[n // 4], attributes=attributes)
        criteria = {"status": RunStatus.RUNNING, "owner": "b", "attributes": {"x": 1}}
        assert await _found(store, **criteria) == ["r7", "r5"]
        assert await _found(store, **{**criteria, "status": RunStatus.QUEUED}) == []

    async def test_several_workflows_are_merged_by_time(self, store: Store) -> None:
        for n in range(6):
            await submit(store, f"r{n}", workflow=("orders", "invoices", "letters")[n % 3])
        [page] = await _pages(store, "orders", "letters", limit=10)
        assert [(record.workflow, record.run_id) for record in page] == [
            ("letters", "r5"), ("orders", "r3"), ("letters", "r2"), ("orders", "r0"),
        ]  # fmt: skip
        assert await store.count(["orders", "letters"]) == 4
        assert await store.count(["orders", "nothing"]) == 2

    @pytest.mark.parametrize("limit", [1, 3, 7, 12, 50])
    async def test_pages_are_the_whole(self, store: Store, limit: int) -> None:
        names = [f"r{n}" for n in range(12)]
        for n, name in enumerate(names):
            await submit(store, name, workflow=(WORKFLOW, "invoices")[n % 2])
        pages = await _pages(store, WORKFLOW, "invoices", limit=limit)
        assert all(len(page) <= limit for page in pages)
        assert [record.run_id for page in pages for record in page] == names[::-1]

    async def test_pages_of_few_among_many(self, store: Store) -> None:
        for n in range(60):
            await submit(store, f"r{n}", owner="rare" if n % 20 == 7 else "common")
        pages = await _pages(store, limit=2, owner="rare")
        assert [record.run_id for page in pages for record in page] == ["r47", "r27", "r7"]

    async def test_pages_stay_exact_while_runs_come_and_change(self, store: Store) -> None:
        names = [f"r{n}" for n in range(20)]
        await submit(store, *names)
        seen: list[str] = []
        cursor: str | None = None
        for turn in range(100):
            page = await store.listing([WORKFLOW], limit=3, cursor=cursor)
            seen += [record.run_id for record in page.runs]
            cursor = page.cursor
            if cursor is None:
                break
            await submit(store, f"new{turn}", f"newer{turn}")
            await store.claim(WORKFLOW, worker="w1", limit=1, lease_ms=LEASE)
        assert seen == names[::-1]

    async def test_pages_go_on_behind_a_deleted_run(self, store: Store) -> None:
        names = [f"r{n}" for n in range(6)]
        await submit(store, *names)
        page = await store.listing([WORKFLOW], limit=3)
        last = page.runs[-1].run_id
        await store.terminate(WORKFLOW, last, b"{}", keep_ms=1)

        async def deleted() -> bool:
            await store.sweep(WORKFLOW, limit=10, requeue_budget=9, keep_ms=0)
            return await store.count([WORKFLOW]) == 5

        await self.until(store, deleted)
        rest = await store.listing([WORKFLOW], limit=10, cursor=page.cursor)
        assert [record.run_id for record in rest.runs] == ["r2", "r1", "r0"]

    @pytest.mark.parametrize("cursor", ["", "nonsense", "x.y"])
    async def test_a_cursor_of_no_listing_is_refused(self, store: Store, cursor: str) -> None:
        await submit(store, "r1")
        with pytest.raises(InvalidInput):
            await store.listing([WORKFLOW], cursor=cursor)

    async def test_a_listing_shows_at_least_one(self, store: Store) -> None:
        with pytest.raises(InvalidInput):
            await store.listing([WORKFLOW], limit=0)

    async def test_the_workflows_seen(self, store: Store) -> None:
        assert await store.workflows() == []
        await submit(store, "r1")
        await submit(store, "r1", workflow="invoices")
        await submit(store, "r2")
        assert await store.workflows() == ["invoices", WORKFLOW]
        await store.load(WORKFLOW, "r1")
        await store.count(["never"])
        await store.read_journal("never", "r1")
        assert await store.workflows() == ["invoices", WORKFLOW]
