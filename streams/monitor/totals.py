"""Totals: what all workers counted since the monitor started, over restarts of the workers. Pure.

Each process exposes counts since its own start. `Totals` adds up their growth, so that a worker
that ends keeps what it counted, and one that starts again doesn't count backwards. A process that
the monitor meets for the first time counts from then on, unless it is younger than the monitor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

import numpy as np

from streams.freshness import Counts, counts_of
from streams.metrics import BOUNDS, Counter, Histogram, quantile
from streams.monitor.exposition import Exposed, Key

_NONE: Counts = np.zeros(len(BOUNDS) + 1, np.int64)


class Sums:
    """Counters and histograms by series; the difference of two of them is what a window saw."""

    __slots__ = ("counts", "numbers", "seconds")

    def __init__(self) -> None:
        self.numbers: dict[Key, float] = {}
        self.counts: dict[Key, Counts] = {}
        self.seconds: dict[Key, float] = {}

    def copy(self) -> Sums:
        """A copy that later growth doesn't touch: arrays are replaced, never written into."""
        made = Sums()
        made.numbers = dict(self.numbers)
        made.counts = dict(self.counts)
        made.seconds = dict(self.seconds)
        return made

    def add(self, new: Exposed, old: Exposed | None) -> None:
        """Add a process's growth between two readings; a value that shrank began again at 0."""
        for key, value in new.counters.items():
            before = old.counters.get(key, 0.0) if old else 0.0
            self.numbers[key] = self.numbers.get(key, 0.0) + _growth(value, before)
        for key, counts in new.histograms.items():
            before_counts = old.histograms.get(key, _NONE) if old else _NONE
            restarted = bool((counts < before_counts).any())
            grown = counts if restarted else counts - before_counts
            self.counts[key] = self.counts.get(key, _NONE) + grown
            before = old.sums.get(key, 0.0) if old and not restarted else 0.0
            self.seconds[key] = self.seconds.get(key, 0.0) + new.sums.get(key, 0.0) - before

    def since(self, earlier: Sums) -> Sums:
        """What was counted between the two."""
        made = Sums()
        made.numbers = {k: v - earlier.numbers.get(k, 0.0) for k, v in self.numbers.items()}
        made.counts = {k: v - earlier.counts.get(k, _NONE) for k, v in self.counts.items()}
        made.seconds = {k: v - earlier.seconds.get(k, 0.0) for k, v in self.seconds.items()}
        return made

    # Labels may be given from the front only; the rest is summed up.

    def number(self, metric: Counter, *labels: str) -> float:
        """A counter, summed over the labels that aren't given."""
        return sum(
            value
            for (name, values), value in self.numbers.items()
            if name == metric.name and values[: len(labels)] == labels
        )

    def by_label(self, metric: Counter, place: int) -> dict[str, float]:
        """A counter by the values of one of its labels."""
        found: dict[str, float] = {}
        for (name, values), value in self.numbers.items():
            if name == metric.name:
                found[values[place]] = found.get(values[place], 0.0) + value
        return found

    def histogram(self, metric: Histogram, *labels: str) -> Counts:
        """A histogram's counts for exactly these labels."""
        return self.counts.get((metric.name, labels), _NONE)

    def sum_seconds(self, metric: Histogram, *labels: str) -> float:
        """The sum of the delays of exactly these labels."""
        return self.seconds.get((metric.name, labels), 0.0)

    def label_sets(self, metric: Histogram) -> list[tuple[str, ...]]:
        """The labels under which a histogram was exposed."""
        return sorted(values for name, values in self.counts if name == metric.name)


def quantiles(counts: Counts) -> tuple[int, float | None, float | None]:
    """(count, p50, p99) in seconds; None where nothing was counted."""
    count = int(counts.sum())
    return (count, quantile(counts, 0.5), quantile(counts, 0.99)) if count else (0, None, None)


class Totals:
    """The running totals, and what they were during the last `max_seconds`."""

    def __init__(self, started_at: float, max_seconds: float, step_seconds: float) -> None:
        self.now = Sums()
        self._started_at = started_at
        self._step_seconds = step_seconds
        self._past: deque[tuple[float, Sums]] = deque([(started_at, Sums())])
        self._max_seconds = max_seconds
        self._last: dict[str, Exposed] = {}

    def take(self, process: str, exposed: Exposed) -> None:
        """A process was read."""
        last = self._last.get(process)
        young = exposed.process.get("process_start_time_seconds", 0.0) > self._started_at
        if last is not None or young:
            self.now.add(exposed, last)
        else:
            self.now.add(exposed, exposed)  # makes its series known, at 0
        self._last[process] = exposed

    def observe(self, metric: Histogram, seconds: float, *labels: str) -> None:
        """Count one delay that was measured here."""
        key = (metric.name, labels)
        self.now.counts[key] = self.now.counts.get(key, _NONE) + counts_of([seconds])
        self.now.seconds[key] = self.now.seconds.get(key, 0.0) + seconds

    def keep_only(self, processes: Collection[str]) -> None:
        """Let go of the readings of processes that are no more."""
        self._last = {name: last for name, last in self._last.items() if name in processes}

    def mark(self, at: float) -> None:
        """Remember the totals of this moment for later windows."""
        if at - self._past[-1][0] >= self._step_seconds:
            self._past.append((at, self.now.copy()))
        while len(self._past) > 2 and self._past[1][0] <= at - self._max_seconds:
            self._past.popleft()

    def window(self, at: float, seconds: float) -> tuple[float, Sums]:
        """(length in seconds, what was counted) of the last `seconds`, or since the start."""
        chosen = self._past[0]
        for moment in reversed(self._past):
            chosen = moment
            if moment[0] <= at - seconds:
                break
        return max(at - chosen[0], 1e-3), self.now.since(chosen[1])


def _growth(value: float, before: float) -> float:
    return value - before if value >= before else value
