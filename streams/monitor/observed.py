"""Observed: everything that the sources said, at one moment; what a snapshot is made of."""

from __future__ import annotations

import msgspec

from streams.freshness import ClockOffset
from streams.kafka import DeadLetter
from streams.monitor.backlog import Movements
from streams.monitor.history import Histories
from streams.monitor.log import GroupReading, SeenRecord
from streams.monitor.processes import Rates
from streams.monitor.samples import Sample
from streams.monitor.scrape import TritonReading, WorkerReading
from streams.monitor.snapshot import Canary, Source
from streams.monitor.totals import Sums
from streams.representations import EncoderVersion
from streams.settings import Settings


class Groups(msgspec.Struct, frozen=True):
    """The two consumer groups on the way of an event."""

    sequence: GroupReading
    encoder: GroupReading


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """A field of None couldn't be measured; `problems` says why, by source name.

    `now` in seconds by this machine's clock; `broker_offset` is how far the broker's is ahead of
    it, 0 as long as that isn't known.
    `window` and `cost_window` hold what was counted in so many seconds.
    """

    settings: Settings
    number: int
    started_at: float
    now: float
    broker_offset: float
    workers: tuple[WorkerReading, ...] | None
    groups: Groups | None
    cassandra_seconds: float | None
    triton: TritonReading | None
    versions: tuple[EncoderVersion, ...] | None
    sample: Sample | None
    dead_letters: tuple[DeadLetter, ...] | None
    tail: tuple[SeenRecord, ...] | None
    canary: Canary
    monitor_clock: ClockOffset | None
    worker_clocks: dict[str, ClockOffset]
    window: tuple[float, Sums]
    cost_window: tuple[float, Sums]
    movements: Movements
    rates: Rates
    histories: Histories
    sources: tuple[Source, ...]
    problems: dict[str, str]

    def readable(self, role: str) -> list[WorkerReading]:
        """The processes of a role that answered."""
        found = self.workers or ()
        return [r for r in found if r.exposed is not None and r.state.get("role") == role]

    def blind(self, role: str) -> str:
        """Why it can't be told what the processes of a role count now; "" if it can."""
        if not self.readable(role):
            return self.problems.get("workers") or f"no {role} worker answers"
        # One that runs and doesn't answer may have counted anything; a dead one counts no more.
        silent = [
            r
            for r in self.workers or ()
            if r.exposed is None and r.target.runs and r.target.role == role
        ]
        return f"{silent[0].target.id}: {silent[0].error}" if silent else ""
