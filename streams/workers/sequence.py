"""The sequence worker: events in, sequences and refresh requests out.

    fetch → take in → load users → fold → write → ask for refreshes, send dead letters → acknowledge

Per partition batch, in log order. A batch is acknowledged when all that derives from it is stored
and delivered (R3); whatever fails on the way is repeated until it works, with the partition paused
(R6). Which epoch the log positions belong to is checked at the start, with every assignment and
every few seconds (R2).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any, Protocol, TypeVar

import msgspec

from streams import metrics as catalogue
from streams.cassandra import Session
from streams.errors import DeliveryFailed, HeadwaterError, StoreRejected, StoreUnavailable
from streams.kafka import again_headers, topic_identity
from streams.log_store import LogStore
from streams.metrics import Metrics
from streams.producer import OutgoingRecord, RecordSender
from streams.sequence_store import SequenceStore
from streams.sequences import Row, StoredUser, UserFlush, UserState
from streams.settings import Settings
from streams.workers.dead_letters import dead_letters
from streams.workers.declarations import Declarations, Views, read_views
from streams.workers.epoch import EpochGuard
from streams.workers.fault_points import VARIABLE, FaultPoints
from streams.workers.intake import DeadLetterWatch, Intake, take_in
from streams.workers.lanes import Lane
from streams.workers.runtime import Clock, Running, Runtime, run_to_end
from streams.workers.sequence_report import SequenceReport
from streams.workers.transport import Consuming, RecordBatch
from streams.workers.users import Applied, UserCache, UserWork

log = logging.getLogger(__name__)

T = TypeVar("T")
_STORE = (StoreUnavailable, StoreRejected)
# How often a user is read again whose directory names a chunk that isn't there.
_RELOADS = 3


class Store(Protocol):
    """What the worker needs of `SequenceStore`."""

    async def load(self, user_id: str, views: Any) -> StoredUser: ...
    async def load_chunks(self, user_id: str, view: str, chunks: Any) -> list[Row]: ...
    async def load_all(self, user_id: str) -> StoredUser: ...
    async def write(self, flush: UserFlush) -> None: ...


class Sender(Protocol):
    """What the worker needs of `RecordSender`."""

    async def deliver(self, records: Iterable[OutgoingRecord]) -> None: ...
    async def close(self, timeout: float) -> int: ...


class SequenceWorker:
    """The handler of one sequence worker's process; see `runtime.Handler`."""

    def __init__(
        self,
        settings: Settings,
        declarations: Declarations,
        store: Store,
        guard: EpochGuard,
        sender: Sender,
        metrics: Metrics,
        now: Clock,
        faults: FaultPoints,
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self._settings = settings
        own = self._own = settings.sequence_worker
        self._declarations = declarations
        self._store = store
        self._guard = guard
        self._sender = sender
        self._metrics = metrics
        self._now = now
        self._faults = faults
        self._close = close
        self._watch = DeadLetterWatch(own.max_dead_letter_share, own.dead_letter_window)
        self._report = SequenceReport(metrics, own.catch_up_seconds)
        self._cache = self._new_cache()

    # -- see runtime.Handler -------------------------------------------------------------------

    async def start(self) -> None:
        """Find or open the topic's epoch. Raises LogMismatch, ConfigError, StoreRejected."""
        await self._guard.open()

    async def assigned(self) -> None:
        """The epoch must be the recorded one before anything is folded."""
        await self._guard.verify()

    def revoked(self) -> None:
        """Others may write these users from now on: nothing that is held of them is true."""
        self._cache = self._new_cache()

    def new_state(self) -> UserCache:
        """The lanes of one assignment share a cache: a user is at home in one partition."""
        return self._cache

    async def check(self) -> None:
        """Raises LogMismatch if the topic was recreated or repartitioned meanwhile."""
        await self._guard.verify_sometimes()
        if await self._declarations.refresh():
            self._cache.clear()
            log.info("views changed: %s", ", ".join(self._declarations.views.set.names))

    def refresh_metrics(self) -> None:
        """See `runtime.Handler`."""
        self._metrics.set(catalogue.CACHED_USERS, len(self._cache))
        self._metrics.set(catalogue.CACHED_EVENTS, self._cache.num_events)
        self._metrics.set(catalogue.PACKED_USERS, self._cache.num_packed)
        self._metrics.set(catalogue.PACKED_BYTES, self._cache.packed_bytes)

    def state(self) -> dict[str, Any]:
        """See `runtime.Handler`."""
        return {
            "epoch": self._guard.epoch,
            "topic_id": self._guard.topic_id,
            "views": list(self._declarations.views.set.names),
            "declared": self._declarations.views.digest,
            "cached_users": len(self._cache),
            "cached_events": self._cache.num_events,
            "packed_users": self._cache.num_packed,
            **self._report.state(),
        }

    async def close(self, seconds: float) -> None:
        """See `runtime.Handler`."""
        await self._sender.close(seconds)
        await self._close()

    # -- the arrow -----------------------------------------------------------------------------

    async def handle(self, lane: Lane, batch: RecordBatch) -> None:
        """See `runtime.Handler`, and the top of this file."""
        received_at = self._now()
        views, cache = self._declarations.views, lane.state
        intake = self._take_in(batch)
        self._watch.check(len(batch.records), len(intake.refused))
        work = [UserWork(user) for user in intake.users.values()]
        applied = Applied()
        await self._faults.reach("before_fold")
        await self._load(lane, cache, views, work)
        await self._fold(lane, views, work, applied)
        folded_at = self._now()
        await self._faults.reach("after_fold")
        await self._write(lane, work)
        stored_at = self._now()
        await self._faults.reach("after_writes")
        await self._faults.reach("before_refresh")
        requests = [
            request
            for user in work
            if (
                request := user.refresh_request(
                    views.sources, int(folded_at * 1000), int(stored_at * 1000)
                )
            )
        ]
        topic = self._settings.kafka.refresh_topic
        refreshes = [OutgoingRecord(topic, r.user_id.encode(), r.encode()) for r in requests]
        await self._deliver(lane, refreshes + self._bad_and_foreign(batch, intake))
        if views is self._declarations.views:
            for user in work:
                cache.put(user.state)
        self._report.batch_done(
            batch, intake, work, applied, requests, received_at, folded_at, stored_at, self._now()
        )

    def _take_in(self, batch: RecordBatch) -> Intake:
        return take_in(
            batch.records,
            epoch=self._guard.epoch,
            partition=batch.partition,
            partitions=self._guard.partitions,
            future_allowance_ms=int(self._own.future_allowance_seconds * 1000),
        )

    async def _load(self, lane: Lane, cache: UserCache, views: Views, work: list[UserWork]) -> None:
        """Give every user of the batch a state: from the cache, or from the store."""
        unknown = []
        for user in work:
            state = cache.get(user.user_id, views.set)
            if state is None:
                unknown.append(user)
            else:
                user.begin(state)

        async def load(user: UserWork) -> None:
            user.begin(await self._read_user(lane, views, user.user_id))

        await self._for_each(unknown, load)
        self._metrics.add(catalogue.USERS_LOADED, len(unknown))

    async def _read_user(self, lane: Lane, views: Views, user_id: str) -> UserState:
        names = views.set.names
        stored = await self._stored(lane, lambda: self._store.load(user_id, names))
        return UserState(user_id, views.set, stored)

    async def _fold(self, lane: Lane, views: Views, work: list[UserWork], applied: Applied) -> None:
        """Fold all users; those that need stored chunks wait for them and go on."""
        waiting = []
        for number, user in enumerate(work):
            needed = user.fold(views.set, views.source_types, applied)
            if needed:
                waiting.append((user, needed))
            else:
                user.flush = user.state.flush()
            if number % 256 == 255:
                await asyncio.sleep(0)  # heartbeats and other partitions' answers

        async def go_on(item: tuple[UserWork, list[tuple[str, int]]]) -> None:
            await self._fold_late(lane, views, *item, applied)

        await self._for_each(waiting, go_on)

    async def _fold_late(
        self,
        lane: Lane,
        views: Views,
        user: UserWork,
        needed: list[tuple[str, int]],
        applied: Applied,
    ) -> None:
        reloads = 0
        while needed:
            if not await self._load_chunks(lane, views, user, needed):
                # Another writer, ahead of us in the log, has rearranged the chunks meanwhile.
                reloads += 1
                if reloads > _RELOADS:
                    raise HeadwaterError(
                        f"a user's directory names chunks {needed} that aren't stored; "
                        "rebuild the view with `headwater rebuild`"
                    )
                user.begin(await self._read_user(lane, views, user.user_id))
            needed = user.fold(views.set, views.source_types, applied)
        user.flush = user.state.flush()

    async def _load_chunks(
        self, lane: Lane, views: Views, user: UserWork, needed: list[tuple[str, int]]
    ) -> bool:
        """Load the named chunks into the user's state; False if one of them isn't there."""
        state = user.state
        by_view: dict[str, list[int]] = {}
        for view, chunk in needed:
            by_view.setdefault(view, []).append(chunk)
        found = 0
        for view, chunks in by_view.items():
            rows = await self._stored(
                lane,
                lambda view=view, chunks=chunks: self._store.load_chunks(  # type: ignore[misc]
                    state.user_id, view, chunks
                ),
            )
            for row in rows:
                state.load_row(row, views.set)
            found += len(rows)
        self._metrics.add(catalogue.CHUNKS_LOADED, found)
        return found == len(needed)

    async def _write(self, lane: Lane, work: list[UserWork]) -> None:
        flushes = [user.flush for user in work if user.flush is not None]

        async def write(flush: UserFlush) -> None:
            await self._stored(lane, lambda: self._store.write(flush))
            if self._faults.armed:
                await self._faults.reach("mid_writes")

        await self._for_each(flushes, write)

    def _bad_and_foreign(self, batch: RecordBatch, intake: Intake) -> list[OutgoingRecord]:
        topic, failed_at = self._settings.kafka.dead_letters_topic, int(self._now() * 1000)
        letters = dead_letters(batch, intake.refused, topic, failed_at)
        return letters + [
            OutgoingRecord(batch.topic, record.key, record.value, again_headers(record))
            for record in intake.foreign
        ]

    # -- patience ------------------------------------------------------------------------------

    def _stored(self, lane: Lane, call: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """A store call's result, however long it takes."""
        return lane.until_done(call, _STORE, self._count_retry)

    async def _deliver(self, lane: Lane, records: list[OutgoingRecord]) -> None:
        if records:
            await lane.until_done(
                lambda: self._sender.deliver(records), (DeliveryFailed,), self._count_retry
            )

    def _count_retry(self, error: HeadwaterError) -> None:
        self._metrics.add(catalogue.RETRIES, 1, type(error).__name__)

    async def _for_each(self, items: Collection[T], call: Callable[[T], Awaitable[None]]) -> None:
        """Call for every item, many at a time; all or an error.

        A partition takes a quarter of the store's slots, so that a few busy ones fill them without
        queueing for them.
        """
        if not items:
            return
        left = iter(items)

        async def work() -> None:
            for item in left:
                await call(item)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(len(items), max(1, self._own.max_writes_in_flight // 4))):
                    group.create_task(work())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def _new_cache(self) -> UserCache:
        own = self._own
        return UserCache(own.max_cached_users, own.max_cached_events, own.max_packed_bytes)


def run_sequence_worker(settings: Settings) -> int:
    """Run a sequence worker in this process until SIGTERM; answers the exit code."""
    return run_to_end(lambda: make_sequence_worker(settings))


def make_sequence_worker(
    settings: Settings,
    *,
    views: Views | None = None,
    faults: FaultPoints | None = None,
    now: Clock = time.time,
) -> Runtime:
    """One sequence worker over the real services; on the running loop."""
    own, metrics = settings.sequence_worker, Metrics()
    session = Session(
        msgspec.structs.replace(settings.cassandra, max_requests_in_flight=own.max_writes_in_flight)
    )
    faults = faults or FaultPoints(os.environ.get(VARIABLE, ""))
    topic = settings.kafka.events_topic
    handler = SequenceWorker(
        settings,
        Declarations(settings, views or read_views(settings)),
        SequenceStore(session),
        EpochGuard(
            topic,
            LogStore(session),
            lambda: topic_identity(settings.kafka, topic),
            now,
            own.epoch_check_seconds,
        ),
        RecordSender(settings, "headwater-sequence-worker"),
        metrics,
        now,
        faults,
        session.close,
    )
    running = Running(
        consuming=Consuming(
            role="sequence", topic=topic, group=own.group, max_batch_records=own.max_batch_records
        ),
        drain_seconds=own.drain_seconds,
        stall_seconds=own.stall_seconds,
        metrics_host=own.metrics_host,
        metrics_port=own.metrics_port,
    )
    return Runtime(settings, running, handler, metrics, now, faults)
