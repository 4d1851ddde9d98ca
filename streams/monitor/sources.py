"""All sources of the monitor: what is asked, how often, and the last answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from streams.errors import HeadwaterError
from streams.kafka import DeadLetter, list_dead_letters
from streams.monitor.log import LogWatch, SeenRecord
from streams.monitor.observed import Groups
from streams.monitor.samples import Sample, take_sample
from streams.monitor.scrape import Scraper, TritonReading, WorkerReading, find_targets
from streams.monitor.snapshot import Source
from streams.monitor.source import Clock, Poller, SourceState
from streams.representations import EncoderVersion
from streams.sample_store import SampleStore
from streams.settings import Settings
from streams.stores import StorePool
from streams.views import DeclaredViews, declared_views, feature_store

T = TypeVar("T")

_TAIL_RECORDS, _TAIL_PARTITIONS = 32, 8
_SHOWN_DEAD_LETTERS = 20
# Seconds between two readings of what changes seldom.
_SLOW_SECONDS = 10.0


class Sources:
    """Holds the clients and the last answers; `pollers` runs until it is cancelled."""

    def __init__(self, settings: Settings, pool: StorePool, now: Clock) -> None:
        self._settings = settings
        self._now = now
        self._pool = pool
        own = settings.monitor
        every, slow = own.interval_seconds, max(_SLOW_SECONDS, own.interval_seconds)
        self.workers: SourceState[tuple[WorkerReading, ...]] = SourceState("workers", every)
        self.kafka: SourceState[Groups] = SourceState("kafka", every)
        self.clocks: SourceState[tuple[SeenRecord, ...]] = SourceState("clocks", every)
        self.cassandra: SourceState[float] = SourceState("cassandra", every)
        self.triton: SourceState[TritonReading] = SourceState("triton", every)
        self.versions: SourceState[tuple[EncoderVersion, ...]] = SourceState("versions", slow)
        self.sample: SourceState[Sample] = SourceState("sample", own.sample_interval_seconds)
        self.dead_letters: SourceState[tuple[DeadLetter, ...]] = SourceState("dead_letters", slow)
        self.features: SourceState[DeclaredViews] = SourceState("features", slow)
        self._worker_errors: dict[str, tuple[int, float | None]] = {}
        self.scraper = Scraper(own.timeout_seconds, now)
        self.watch = LogWatch(settings.kafka, own.timeout_seconds, now)
        # Kafka's clients are used by one thread at a time, and a hung one blocks no other source.
        self._kafka_thread = ThreadPoolExecutor(1, "headwater-monitor-kafka")
        self._choice = random.Random()

    async def in_kafka_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        """A call of `watch`, which blocks."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._kafka_thread, lambda: call(*arguments))

    def pollers(
        self,
        on_workers: Callable[[tuple[WorkerReading, ...]], None],
        on_groups: Callable[[Groups], None],
    ) -> list[Coroutine[Any, Any, None]]:
        """What is to run side by side, for ever."""
        limit = self._settings.monitor.timeout_seconds
        return [
            self._poller(self.workers, self._read_workers, 4 * limit, on_workers).run(),
            # A reading of two groups is about ten requests.
            self._poller(self.kafka, self._read_groups, 4 * limit, on_groups).run(),
            self._poller(self.clocks, self._read_tail, 4 * limit).run(),
            self._poller(self.cassandra, self._ping, 2 * limit).run(),
            self._poller(self.triton, self._read_triton, 2 * limit).run(),
            self._poller(self.features, self._read_views, 15.0).run(),
            self._poller(self.versions, self._read_versions, 2 * limit).run(),
            self._poller(self.sample, self._take_sample, 30.0).run(),
            self._poller(self.dead_letters, self._read_dead_letters, 15.0).run(),
        ]

    async def ask_once(self) -> None:
        """One attempt each, side by side; the views first, since others need them."""
        limit = self._settings.monitor.timeout_seconds
        await self._poller(self.features, self._read_views, 15.0).once()
        await asyncio.gather(
            self._poller(self.workers, self._read_workers, 4 * limit).once(),
            self._poller(self.kafka, self._read_groups, 4 * limit).once(),
            self._poller(self.clocks, self._read_tail, 4 * limit).once(),
            self._poller(self.cassandra, self._ping, 2 * limit).once(),
            self._poller(self.triton, self._read_triton, 2 * limit).once(),
            self._poller(self.versions, self._read_versions, 2 * limit).once(),
            self._poller(self.sample, self._take_sample, 30.0).once(),
            self._poller(self.dead_letters, self._read_dead_letters, 15.0).once(),
        )

    def states(self) -> list[SourceState[Any]]:
        """All sources but the single workers."""
        return [
            *(self.kafka, self.cassandra, self.triton, self.workers, self.features),
            *(self.versions, self.sample, self.clocks, self.dead_letters),
        ]

    def problems(self, now: float) -> dict[str, str]:
        """Why a source has no value, by its name."""
        found = {state.name: state.problem(now) for state in self.states()}
        return {name: problem for name, problem in found.items() if problem}

    def shown(self, now: float) -> tuple[Source, ...]:
        """All sources, the single workers included, as the snapshot has them."""
        rows = [_source(state, now) for state in self.states()]
        for reading in self.workers.value(now) or ():
            errors, ok_at = self._worker_errors.get(reading.target.id, (0, None))
            rows.append(
                Source(
                    name=f"worker:{reading.target.id}",
                    ok=reading.exposed is not None,
                    last_ok_at=_ms(ok_at),
                    num_errors=errors,
                    duration_seconds=reading.duration_seconds,
                    error=reading.error,
                )
            )
        return tuple(rows)

    async def close(self) -> None:
        """Close the clients; a thread that hangs is left to the process's end."""
        await self.scraper.close()
        self._kafka_thread.submit(self.watch.close)
        self._kafka_thread.shutdown(wait=False)
        await self._pool.close()

    def _poller(
        self,
        state: SourceState[T],
        ask: Callable[[], Awaitable[T]],
        limit: float,
        on_answer: Callable[[T], None] = lambda _: None,
    ) -> Poller[T]:
        return Poller(state, ask, self._now, limit, on_answer)

    # -- the questions -------------------------------------------------------------------------

    async def _read_workers(self) -> tuple[WorkerReading, ...]:
        targets = await find_targets(self._settings)
        readings = tuple(await self.scraper.read_workers(targets))
        known, self._worker_errors = self._worker_errors, {}
        for reading in readings:
            errors, ok_at = known.get(reading.target.id, (0, None))
            answered = reading.exposed is not None
            self._worker_errors[reading.target.id] = (
                errors + (not answered),
                self._now() if answered else ok_at,
            )
        return readings

    async def _read_groups(self) -> Groups:
        kafka, settings = self._settings.kafka, self._settings
        read = self.watch.read_group
        # Upstream first: what is acknowledged there has been queued here by then, so that no event
        # falls between the two readings.
        sequence = await self.in_kafka_thread(
            read, settings.sequence_worker.group, kafka.events_topic
        )
        encoder = await self.in_kafka_thread(
            read, settings.encoder_worker.group, kafka.refresh_topic
        )
        return Groups(sequence, encoder)

    async def _read_tail(self) -> tuple[SeenRecord, ...]:
        topic = self._settings.kafka.events_topic
        return tuple(
            await self.in_kafka_thread(self.watch.read_tail, topic, _TAIL_RECORDS, _TAIL_PARTITIONS)
        )

    async def _ping(self) -> float:
        loop = asyncio.get_running_loop()
        started = loop.time()
        await SampleStore(self._pool.stores().session).ping()
        return loop.time() - started

    async def _read_triton(self) -> TritonReading:
        return await self.scraper.read_triton(self._settings.triton.http_url)

    async def _read_views(self) -> DeclaredViews:
        def read() -> DeclaredViews:
            return declared_views(feature_store(self._settings))

        return await asyncio.to_thread(read)

    async def _read_versions(self) -> tuple[EncoderVersion, ...]:
        declared = self._declared()
        store = self._pool.stores().representations
        encoders = sorted({view.encoder for view in declared.representations.values()})
        found: list[EncoderVersion] = []
        for encoder in encoders:
            found += await store.read_versions(encoder)
        return tuple(found)

    async def _take_sample(self) -> Sample:
        declared = self._declared()
        own, now = self._settings.monitor, self._now()
        return await take_sample(
            SampleStore(self._pool.stores().session),
            list(declared.sequences.values()),
            list(declared.representations.values()),
            await self._read_versions(),
            count=own.sample_users,
            active_window_seconds=own.active_window_seconds,
            now=now,
            choice=self._choice,
        )

    async def _read_dead_letters(self) -> tuple[DeadLetter, ...]:
        kafka = self._settings.kafka
        return tuple(await asyncio.to_thread(list_dead_letters, kafka, _SHOWN_DEAD_LETTERS))

    def _declared(self) -> DeclaredViews:
        declared = self.features.value(self._now())
        if declared is None:
            raise HeadwaterError(f"the declared views: {self.features.problem(self._now())}")
        return declared


def _source(state: SourceState[Any], now: float) -> Source:
    problem = state.problem(now)
    return Source(
        name=state.name,
        ok=not problem,
        last_ok_at=_ms(state.last_ok_at),
        num_errors=state.num_errors,
        duration_seconds=state.duration_seconds,
        error=problem,
    )


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
