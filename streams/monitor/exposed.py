"""What the monitor itself exposes to Prometheus, out of its snapshots.

A figure that can't be told has no series: an alert that needs it finds it absent, never zero.
"""

from __future__ import annotations

from collections import Counter as Tally

from streams import metrics as catalogue
from streams.metrics import Gauge, Metrics
from streams.monitor.observed import Groups
from streams.monitor.snapshot import Snapshot, State


class Exposer:
    """Sets gauges from snapshots; series that a snapshot doesn't have are taken away."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._set: set[tuple[Gauge, tuple[str, ...]]] = set()
        self._errors: dict[str, int] = {}

    def take(self, snapshot: Snapshot, groups: Groups | None) -> None:
        """The newest snapshot, and the groups that it was made from."""
        before, self._set = self._set, set()
        self._put(catalogue.SNAPSHOT_TIME, snapshot.at / 1000)
        self._staleness(snapshot)
        self._groups(groups)
        self._sources(snapshot)
        self._clocks(snapshot)
        for objective in snapshot.objectives:
            self._put(catalogue.OBJECTIVE_SECONDS, objective.seconds, objective.feature)
            self._put(catalogue.OBJECTIVE_TARGET, objective.target, objective.feature)
        for found in snapshot.coverage.versions:
            active = "true" if found.is_active else "false"
            self._put(catalogue.COVERAGE, found.share, found.encoder, found.version, active)
            if found.is_active:
                self._put(catalogue.SAMPLED_ACTIVE_USERS, found.num_active_users)
        states = Tally((worker.role, str(worker.state)) for worker in snapshot.workers)
        for (role, state), count in states.items():
            self._put(catalogue.WORKERS_SEEN, count, role, state)
        for gauge, labels in before - self._set:
            self._metrics.forget(gauge, *labels)

    def _put(self, gauge: Gauge, value: float | None, *labels: str) -> None:
        if value is not None:
            self._metrics.set(gauge, value, *labels)
            self._set.add((gauge, labels))

    def _staleness(self, snapshot: Snapshot) -> None:
        for found in snapshot.staleness:
            known = found.state is not State.UNKNOWN
            self._put(catalogue.STALENESS_KNOWN, known, found.feature)
            self._put(catalogue.STALENESS, found.seconds, found.feature, "event_time")
            self._put(catalogue.STALENESS, found.waiting_seconds, found.feature, "ingested_at")

    def _groups(self, groups: Groups | None) -> None:
        if groups is None:
            return
        for role, reading in (("sequence", groups.sequence), ("encoder", groups.encoder)):
            self._put(catalogue.GROUP_MEMBERS, reading.num_members, role)
            for found in reading.partitions:
                labels = (role, str(found.partition))
                self._put(catalogue.GROUP_LAG, found.lag, *labels)
                self._put(catalogue.GROUP_POSITION, found.position, *labels)
                self._put(catalogue.GROUP_END, found.end, *labels)

    def _sources(self, snapshot: Snapshot) -> None:
        for source in snapshot.sources:
            # Processes come and go: they are counted by role, not named.
            if source.name.startswith("worker:"):
                continue
            self._put(catalogue.SOURCE_UP, source.ok, source.name)
            new = source.num_errors - self._errors.get(source.name, 0)
            self._errors[source.name] = source.num_errors
            self._metrics.add(catalogue.SOURCE_ERRORS, new, source.name)

    def _clocks(self, snapshot: Snapshot) -> None:
        worst: dict[str, float] = {}
        for clock in snapshot.clocks:
            offset = clock.offset_seconds
            if offset is not None and abs(offset) >= abs(worst.get(clock.kind, 0.0)):
                worst[clock.kind] = offset
        for kind, offset in worst.items():
            if kind != "broker":
                self._put(catalogue.CLOCK_OFFSET, offset, kind)
