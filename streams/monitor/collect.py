"""The collector: remembers what the sources say, and makes a snapshot per interval."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from streams import metrics as catalogue
from streams.errors import DeliveryFailed
from streams.freshness import FEATURES, num_within, round_trip_offset
from streams.metrics import Metrics
from streams.monitor.answers import History, UserLookup
from streams.monitor.assemble import assemble, staleness_of
from streams.monitor.backlog import Movements
from streams.monitor.canary import Result
from streams.monitor.clocks import RecentOffsets
from streams.monitor.exposed import Exposer
from streams.monitor.figures import objective_seconds
from streams.monitor.history import Histories, SeriesKey
from streams.monitor.observed import Groups, Observed
from streams.monitor.processes import Rates
from streams.monitor.scrape import WorkerReading
from streams.monitor.snapshot import Canary, Snapshot
from streams.monitor.source import Clock
from streams.monitor.sources import Sources
from streams.monitor.totals import Sums, Totals
from streams.producer import Delivered
from streams.settings import Settings

_STEPS_PER_WINDOW = 12


class Collector:
    """One monitor's memory. Belongs to one event loop; see `page.feed.SnapshotSource`."""

    def __init__(
        self,
        settings: Settings,
        sources: Sources,
        metrics: Metrics,
        now: Clock,
        canary: Callable[[float], Canary],
        look_up: Callable[[str], Awaitable[UserLookup]],
        counts_from: float | None = None,
    ) -> None:
        """`counts_from` (seconds, default now): what workers counted since then is counted."""
        own = settings.monitor
        self._settings = settings
        self._sources = sources
        self._metrics = metrics
        self._now = now
        self._canary = canary
        self._look_up = look_up
        self._started_at = now() if counts_from is None else counts_from
        step = max(own.interval_seconds, own.window_seconds / _STEPS_PER_WINDOW)
        self._totals = Totals(self._started_at, own.cost_window_seconds, step)
        self._recorded = Sums()
        self._lost: dict[str, int] = {}
        self._histories = Histories()
        self._movements = Movements(own.window_seconds)
        self._rates = Rates(own.window_seconds)
        self._exposer = Exposer(metrics)
        self._broker = RecentOffsets()  # the broker's clock against ours
        self._workers: dict[str, RecentOffsets] = {}
        self._snapshot: Snapshot | None = None
        self._number = 0

    # -- what is asked for ---------------------------------------------------------------------

    def snapshot(self) -> Snapshot | None:
        """The newest snapshot, None before the first one."""
        return self._snapshot

    async def history(self, range_seconds: int) -> History:
        """Freshness of the last `range_seconds`."""
        objective = self._settings.monitor
        return self._histories.answer(
            self._now(), range_seconds, lambda feature: objective_seconds(objective, feature)
        )

    async def user(self, user_id: str) -> UserLookup:
        """What a reader gets for a user."""
        return await self._look_up(user_id)

    # -- what is heard -------------------------------------------------------------------------

    def on_workers(self, readings: tuple[WorkerReading, ...]) -> None:
        """The processes were read."""
        for reading in readings:
            name = reading.target.id
            if reading.exposed is not None:
                self._totals.take(name, reading.exposed)
            if reading.clock is not None:
                self._workers.setdefault(name, RecentOffsets()).add(reading.clock)
        names = {reading.target.id for reading in readings}
        self._totals.keep_only(names)
        self._workers = {name: found for name, found in self._workers.items() if name in names}
        self._rates.take(readings, self._now())

    def on_groups(self, groups: Groups) -> None:
        """Kafka was asked."""
        for reading in (groups.sequence, groups.encoder):
            self._movements.take(reading, reading.read_at)

    def on_canary(self, result: Result) -> None:
        """A canary came back, or didn't."""
        self._metrics.add(catalogue.CANARIES, 1, result.feature, result.outcome)
        if result.outcome == "lost":
            self._lost[result.feature] = self._lost.get(result.feature, 0) + 1
        if result.seconds is None:
            return
        self._metrics.observe(catalogue.CANARY_SECONDS, [result.seconds], result.feature)
        if result.feature == FEATURES[-1] and result.read_seconds is not None:
            stage = (catalogue.STAGE_SECONDS, result.read_seconds, "stored_to_read", "live")
            self._totals.observe(*stage)
            self._metrics.observe(stage[0], [stage[1]], *stage[2:])

    async def on_delivered(self, delivered: Delivered, sent_at: float, acked_at: float) -> None:
        """A canary's record was appended between the two moments: by which clock of the broker?"""
        wanted = {delivered.partition: (delivered.offset, delivered.offset + 1)}
        sources, topic = self._sources, self._settings.kafka.events_topic
        try:
            read = await sources.in_kafka_thread(sources.watch.read_records, topic, wanted)
        except DeliveryFailed:
            return  # Kafka's own source says so; the offset stays what it was
        for record in read.get(delivered.partition, ()):
            appended_at = record.appended_at / 1000
            self._broker.add(round_trip_offset(sent_at, appended_at, acked_at))

    # -- making snapshots ----------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            self.make_snapshot()
            took = loop.time() - started
            self._metrics.observe(catalogue.SNAPSHOT_SECONDS, [took])
            await asyncio.sleep(max(0.0, self._settings.monitor.interval_seconds - took))

    def make_snapshot(self) -> Snapshot:
        """Of this moment."""
        now = self._now()
        self._number += 1
        seen = self._observed(now)
        self._record(seen)
        snapshot = self._snapshot = assemble(seen)
        self._totals.mark(now)
        self._exposer.take(snapshot, seen.groups)
        return snapshot

    def _observed(self, now: float) -> Observed:
        sources, own = self._sources, self._settings.monitor
        broker = self._broker.best()
        found = {name: offsets.best() for name, offsets in self._workers.items()}
        return Observed(
            settings=self._settings,
            number=self._number,
            started_at=self._started_at,
            now=now,
            broker_offset=0.0 if broker is None else broker.seconds,
            workers=sources.workers.value(now),
            groups=sources.kafka.value(now),
            cassandra_seconds=sources.cassandra.value(now),
            triton=sources.triton.value(now),
            versions=sources.versions.value(now),
            sample=sources.sample.value(now),
            dead_letters=sources.dead_letters.value(now),
            tail=sources.clocks.value(now),
            canary=self._canary(now),
            monitor_clock=None if broker is None else broker.reversed(),
            worker_clocks={name: clock for name, clock in found.items() if clock is not None},
            window=self._totals.window(now, own.window_seconds),
            cost_window=self._totals.window(now, own.cost_window_seconds),
            movements=self._movements,
            rates=self._rates,
            histories=self._histories,
            sources=sources.shown(now),
            problems=sources.problems(now),
        )

    def _record(self, seen: Observed) -> None:
        """What was measured since the last snapshot goes into the history and the objectives."""
        grown = self._totals.now.since(self._recorded)
        self._recorded = self._totals.now.copy()
        lost, self._lost = self._lost, {}
        stale = {found.feature: found.waiting_seconds for found in staleness_of(seen)}
        for feature in FEATURES:
            metric = catalogue.FRESHNESS_SECONDS
            counts = grown.histogram(metric, feature, "ingested_at", "live")
            limit = objective_seconds(self._settings.monitor, feature)
            total = float(counts.sum()) + lost.get(feature, 0)
            good = num_within(counts, limit)
            self._metrics.add(catalogue.OBJECTIVE_EVENTS, total, feature)
            self._metrics.add(catalogue.OBJECTIVE_GOOD_EVENTS, good, feature)
            key: SeriesKey = (feature, "", "")
            self._histories.add(key, seen.now, counts, stale[feature], good, total)
        by_version = catalogue.REPRESENTATION_FRESHNESS_SECONDS
        for encoder, version, since in grown.label_sets(by_version):
            if since == "ingested_at":
                counts = grown.histogram(by_version, encoder, version, since)
                key = ("representation", encoder, version)
                self._histories.add(key, seen.now, counts, stale["representation"])
