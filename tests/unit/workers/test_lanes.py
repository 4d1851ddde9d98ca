"""Lanes: order within a partition, larger batches when busy, patience, and an end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from faust.types import TP

from streams.errors import HeadwaterError, StoreUnavailable
from streams.workers.lanes import Lane, Lanes
from streams.workers.offsets import Claim, PartitionLedger
from streams.workers.transport import RecordBatch
from tests.unit.workers.records import consumed

TPS = [TP("events", 0), TP("events", 1)]


class Ledgers:
    """What lanes need of the transport."""

    def __init__(self) -> None:
        self.ledgers = {tp: PartitionLedger(0) for tp in TPS}
        self.released: list[tuple[TP, int]] = []

    def begin(self, tp: TP, first: int, next_offset: int) -> Claim | None:
        ledger = self.ledgers.get(tp)
        return None if ledger is None else ledger.begin(first, next_offset)

    def release(self, tp: TP, count: int) -> None:
        self.released.append((tp, count))


def batch(partition: int, first: int, count: int) -> RecordBatch:
    records = [consumed(b"", b"", offset=first + n, partition=partition) for n in range(count)]
    return RecordBatch("events", partition, records, first + count)


class Bench:
    """Lanes with a handler of the test's."""

    def __init__(self, handle: Callable[[Lane, RecordBatch], Awaitable[None]]) -> None:
        self.ledgers = Ledgers()
        self.failures: list[BaseException] = []
        self.lanes = Lanes(lambda: self.ledgers, handle, lambda: "state", self.failures.append, 10)
        self.lanes.open(TPS)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_partitions_batches_are_worked_on_in_order_and_merged_when_it_is_busy() -> None:
    gate, seen = asyncio.Event(), []

    async def handle(lane: Lane, found: RecordBatch) -> None:
        seen.append((lane.partition, found.first, found.next))
        await gate.wait()

    bench = Bench(handle)
    for first in (0, 4, 8, 12):
        bench.lanes.submit(batch(0, first, 4))
        await settle()
    assert seen == [(0, 0, 4)]
    gate.set()
    await settle()
    assert seen == [(0, 0, 4), (0, 4, 12), (0, 12, 16)]
    assert bench.ledgers.ledgers[TPS[0]].committable() == 16
    assert sum(count for _, count in bench.ledgers.released) == 16


async def test_partitions_dont_wait_for_each_other() -> None:
    seen = []

    async def handle(lane: Lane, found: RecordBatch) -> None:
        if lane.partition == 0:
            await asyncio.Event().wait()
        seen.append(found.next)

    bench = Bench(handle)
    bench.lanes.submit(batch(0, 0, 3))
    bench.lanes.submit(batch(1, 0, 5))
    await settle()
    assert seen == [5]
    assert bench.ledgers.ledgers[TPS[0]].committable() is None


async def test_a_failed_call_is_repeated_and_the_lane_says_why() -> None:
    answers: list[Exception | str] = [StoreUnavailable("store away"), StoreUnavailable("x"), "ok"]
    reasons: list[str | None] = []
    retried: list[HeadwaterError] = []

    async def call() -> str:
        reasons.append(lane.waiting_for)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    lane = Lane(TPS[0], None, 0.0)
    assert await lane.until_done(call, (StoreUnavailable,), retried.append) == "ok"
    assert reasons == [None, "store away", "x"]
    assert lane.waiting_for is None
    assert len(retried) == 2


async def test_other_errors_end_the_worker_and_nothing_is_acknowledged() -> None:
    async def handle(_lane: Lane, _found: RecordBatch) -> None:
        raise RuntimeError("a fault of ours")

    bench = Bench(handle)
    bench.lanes.submit(batch(0, 0, 3))
    await settle()
    assert [str(error) for error in bench.failures] == ["a fault of ours"]
    assert bench.ledgers.ledgers[TPS[0]].committable() is None


async def test_finish_waits_for_what_is_worked_on_and_starts_nothing_new() -> None:
    gate, seen = asyncio.Event(), []

    async def handle(_lane: Lane, found: RecordBatch) -> None:
        await gate.wait()
        seen.append(found.first)

    bench = Bench(handle)
    bench.lanes.submit(batch(0, 0, 10))
    await settle()
    bench.lanes.submit(batch(0, 10, 10))
    assert not await bench.lanes.finish(0.01)
    gate.set()
    assert await bench.lanes.finish(1.0)
    assert seen == [0]
    assert bench.ledgers.ledgers[TPS[0]].committable() == 10


async def test_a_dropped_lane_is_cancelled_and_late_batches_are_left_to_others() -> None:
    started = asyncio.Event()

    async def handle(_lane: Lane, _found: RecordBatch) -> None:
        started.set()
        await asyncio.Event().wait()

    bench = Bench(handle)
    bench.lanes.submit(batch(0, 0, 1))
    await started.wait()
    await bench.lanes.drop(TPS)
    bench.lanes.submit(batch(0, 1, 1))
    assert not list(bench.lanes)
    assert not bench.failures


async def test_a_partition_that_was_revoked_meanwhile_is_not_begun() -> None:
    handled = []

    async def handle(_lane: Lane, found: RecordBatch) -> None:
        handled.append(found)

    bench = Bench(handle)
    bench.ledgers.ledgers.clear()
    bench.lanes.submit(batch(0, 0, 1))
    await settle()
    assert not handled
    assert not bench.failures


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.workers.lanes.FIRST_PAUSE_SECONDS", 0.001)
