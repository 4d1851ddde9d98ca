"""Lanes: one assigned partition's batches, worked on in log order, one at a time.

Partitions run side by side; a partition never overtakes itself, which the fold's positions need.
What arrives while a lane is busy is taken as one larger batch afterwards: the busier a partition,
the more records share a row of the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from faust.types import TP

from streams.errors import HeadwaterError
from streams.workers.offsets import Claim, PartitionLedger
from streams.workers.transport import RecordBatch

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 2.0


class Ledgers(Protocol):
    """What a lane needs of the transport's consumer."""

    ledgers: dict[TP, PartitionLedger]

    def begin(self, tp: TP, first: int, next_offset: int) -> Claim | None: ...
    def release(self, tp: TP, count: int) -> None: ...


class Lane:
    """One partition during one assignment. `state` belongs to the worker's handler."""

    def __init__(self, tp: TP, state: Any, now: float) -> None:
        self.tp = tp
        self.state = state
        self.pending: deque[RecordBatch] = deque()
        # Why the lane makes no progress, if it waits for something outside; for readiness.
        self.waiting_for: str | None = None
        self._waiting = 0
        self.progress_at = now  # the loop's clock
        self.busy = False
        self.more = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    @property
    def partition(self) -> int:
        return int(self.tp.partition)

    async def until_done(
        self,
        call: Callable[[], Awaitable[T]],
        errors: tuple[type[HeadwaterError], ...],
        on_retry: Callable[[HeadwaterError], None],
    ) -> T:
        """The result of `call`, repeated with growing pauses while it raises one of `errors`.

        There is no last attempt: the partition's records stay where they are, nothing is lost by
        waiting, and the reason is visible (R6). A rebalance or a stop cancels it.
        """
        try:
            return await call()
        except errors as error:
            on_retry(error)
            self._wait(error)
        try:
            return await self._again(call, errors, on_retry)
        finally:
            self._waiting -= 1
            if not self._waiting:
                log.info("partition %d goes on", self.partition)
                self.waiting_for = None

    async def _again(
        self,
        call: Callable[[], Awaitable[T]],
        errors: tuple[type[HeadwaterError], ...],
        on_retry: Callable[[HeadwaterError], None],
    ) -> T:
        pause = FIRST_PAUSE_SECONDS
        while True:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            try:
                return await call()
            except errors as error:
                on_retry(error)
                self.waiting_for = str(error)

    def _wait(self, error: HeadwaterError) -> None:
        """One more of the lane's calls waits; the first one is worth a line."""
        if not self._waiting:
            log.warning("partition %d waits: %s", self.partition, error)
        self._waiting += 1
        self.waiting_for = str(error)


class Lanes:
    """The lanes of the current assignment."""

    def __init__(
        self,
        ledgers: Callable[[], Ledgers],
        handle: Callable[[Lane, RecordBatch], Awaitable[None]],
        new_state: Callable[[], Any],
        on_failure: Callable[[BaseException], None],
        max_batch_records: int,
    ) -> None:
        self._ledgers = ledgers
        self._handle = handle
        self._new_state = new_state
        self._on_failure = on_failure
        self._max_records = max_batch_records
        self._lanes: dict[TP, Lane] = {}
        self._closing = False

    def __iter__(self) -> Iterator[Lane]:
        return iter(list(self._lanes.values()))

    def open(self, tps: Iterable[TP]) -> None:
        """An assignment began."""
        self._closing = False
        now = asyncio.get_running_loop().time()
        for tp in tps:
            lane = self._lanes[tp] = Lane(tp, self._new_state(), now)
            lane.task = asyncio.create_task(self._run(lane), name=f"lane-{tp.partition}")

    def submit(self, batch: RecordBatch) -> None:
        """Records were fetched. Those of a partition without a lane are fetched again by whoever
        owns it."""
        lane = self._lanes.get(TP(batch.topic, batch.partition))
        if lane is not None:
            lane.pending.append(batch)
            lane.more.set()

    async def finish(self, seconds: float) -> bool:
        """Start nothing new; wait for what is being worked on. False if time ran out."""
        self._closing = True
        running = [lane.task for lane in self._lanes.values() if lane.busy and lane.task]
        for lane in self._lanes.values():
            lane.more.set()
        if not running:
            return True
        _, unfinished = await asyncio.wait(running, timeout=max(seconds, 0.0))
        return not unfinished

    async def drop(self, tps: Iterable[TP]) -> None:
        """The partitions are no longer ours: what still runs is cancelled, its state forgotten."""
        dropped = [self._lanes.pop(tp) for tp in tps if tp in self._lanes]
        tasks = [lane.task for lane in dropped if lane.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, lane: Lane) -> None:
        try:
            while True:
                await lane.more.wait()
                if self._closing:
                    return
                if not lane.pending:
                    lane.more.clear()
                    continue
                await self._work(lane)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 the runtime ends the worker with it
            self._on_failure(error)

    async def _work(self, lane: Lane) -> None:
        consumer = self._ledgers()
        batch = _take(lane.pending, self._max_records)
        claim = consumer.begin(lane.tp, batch.first, batch.next)
        consumer.release(lane.tp, len(batch.records))
        if claim is None:
            return
        ledger = consumer.ledgers[lane.tp]
        lane.busy = True
        try:
            await self._handle(lane, batch)
        finally:
            lane.busy = False
        ledger.finish(claim)
        lane.progress_at = asyncio.get_running_loop().time()


def _take(pending: deque[RecordBatch], max_records: int) -> RecordBatch:
    """The oldest batches as one, up to `max_records`; at least one of them."""
    first = pending.popleft()
    if not pending:
        return first
    records, end = list(first.records), first.end
    while pending and len(records) + len(pending[0].records) <= max_records:
        batch = pending.popleft()
        records += batch.records
        end = batch.end
    return RecordBatch(first.topic, first.partition, records, end)
