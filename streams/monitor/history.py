"""History: freshness over time, a week of it in bounded memory. Pure.

Three rings per series: 5 s steps for an hour, minutes for a day, ten minutes for a week. Histograms
are added up, never quantiles, so that a downsampled p99 is the p99 of its step. About 1.2 MB per
series; the number of series is bounded, the one that was silent the longest gives way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from streams.freshness import Counts
from streams.metrics import BOUNDS, quantile
from streams.monitor.answers import History, HistoryPoint, Series

# (step in seconds, number of steps)
RINGS = ((5, 720), (60, 1440), (600, 1008))
MAX_SERIES = 24

SeriesKey = tuple[str, str, str]  # feature, encoder, version
_NONE: NDArray[np.int32] = np.zeros(len(BOUNDS) + 1, np.int32)


class Step(msgspec.Struct):
    """What was measured in one step; `staleness` None if nothing could be told in it."""

    at: int  # s, the step's start
    counts: NDArray[np.int32] = _NONE
    staleness: float | None = None
    good: float = 0.0
    total: float = 0.0


class Ring:
    """The steps of one resolution, oldest first; steps without a measurement aren't kept."""

    def __init__(self, step_seconds: int, max_steps: int) -> None:
        self.step_seconds = step_seconds
        self._reach = step_seconds * max_steps
        self.steps: deque[Step] = deque()

    def add(
        self, at: float, counts: Counts, staleness: float | None, good: float, total: float
    ) -> None:
        """Add a measurement to the step that it falls into; moments come in order."""
        start = int(at) // self.step_seconds * self.step_seconds
        if not self.steps or self.steps[-1].at < start:
            self.steps.append(Step(start))
        step = self.steps[-1]
        step.counts = step.counts + counts.astype(np.int32)  # a new array: _NONE is shared
        step.good += good
        step.total += total
        if staleness is not None:
            step.staleness = max(staleness, step.staleness or staleness)
        while self.steps[0].at <= start - self._reach:
            self.steps.popleft()


class Histories:
    """All series. Moments are seconds since the epoch and come in order."""

    def __init__(self) -> None:
        self._series: dict[SeriesKey, tuple[Ring, ...]] = {}
        self._spoke: dict[SeriesKey, float] = {}

    def add(
        self,
        key: SeriesKey,
        at: float,
        counts: Counts,
        staleness: float | None,
        good: float = 0.0,
        total: float = 0.0,
    ) -> None:
        """Add what an interval measured; `good` of `total` events met the objective."""
        rings = self._series.setdefault(key, tuple(Ring(*shape) for shape in RINGS))
        if counts.any() or key not in self._spoke:
            self._spoke[key] = at
        for ring in rings:
            ring.add(at, counts, staleness, good, total)
        while len(self._series) > MAX_SERIES:
            silent = min(self._spoke, key=self._spoke.__getitem__)
            del self._series[silent], self._spoke[silent]

    def window(self, key: SeriesKey, at: float, seconds: float) -> tuple[float, float]:
        """(good, total) events of the last `seconds`, by the finest ring that reaches so far."""
        rings = self._series.get(key)
        if rings is None:
            return 0.0, 0.0
        ring = _ring_for(rings, seconds)
        chosen = [step for step in ring.steps if step.at > at - seconds]
        return sum(step.good for step in chosen), sum(step.total for step in chosen)

    def answer(self, at: float, range_seconds: int, objective: Callable[[str], float]) -> History:
        """The series of the last `range_seconds`, at the finest resolution that reaches so far."""
        step = _ring_for(tuple(Ring(*shape) for shape in RINGS), range_seconds).step_seconds
        series = []
        for (feature, encoder, version), rings in sorted(self._series.items()):
            ring = _ring_for(rings, range_seconds)
            chosen = (found for found in ring.steps if found.at > at - range_seconds)
            series.append(
                Series(
                    feature=feature,
                    encoder=encoder,
                    version=version,
                    objective_seconds=objective(feature),
                    points=tuple(_points(chosen)),
                )
            )
        return History(
            at=round(at * 1000),
            range_seconds=range_seconds,
            step_seconds=step,
            series=tuple(series),
        )


def _ring_for(rings: tuple[Ring, ...], seconds: float) -> Ring:
    for ring, (step, count) in zip(rings, RINGS, strict=True):
        if seconds <= step * count:
            return ring
    return rings[-1]


def _points(steps: Iterable[Step]) -> Iterable[HistoryPoint]:
    for step in steps:
        count = int(step.counts.sum())
        yield HistoryPoint(
            at=step.at * 1000,
            count=count,
            p50_seconds=quantile(step.counts, 0.5) if count else None,
            p99_seconds=quantile(step.counts, 0.99) if count else None,
            staleness_seconds=step.staleness,
        )
