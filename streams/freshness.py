"""Freshness: the stages of an event's way, and the arithmetic of delay, staleness and clocks.

Pure: no I/O, no clock. Time is an argument, in seconds since the epoch unless a name says ms (R10).

- freshness: from the event to the value that reflects it, a histogram per stage;
- staleness: now - event time of the oldest event that isn't reflected yet, 0 if there is none;
- objective: a share of events that are to be fresh within a time; its error budget burns at rate 1
  if it would last exactly as long as its period (Google SRE workbook, chapter 5).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streams.metrics import BOUNDS

# Users that the monitor makes up. They go the whole way of an event, and are left out wherever
# people are counted, learnt from or ranked.
CANARY_PREFIX = "__canary_"

Counts = NDArray[np.int64]


def is_canary(user_id: str) -> bool:
    """Whether a user is one of the monitor's."""
    return user_id.startswith(CANARY_PREFIX)


class Stage(msgspec.Struct, frozen=True):
    """One arrow of the way; `source` and `target` are boxes of the picture."""

    name: str
    label: str
    source: str
    target: str


STAGES = (
    Stage("produced_to_broker", "produced → broker", "producers", "events"),
    Stage("broker_to_folded", "broker → folded", "events", "sequence_worker"),
    Stage("folded_to_stored", "folded → sequence stored", "sequence_worker", "sequences"),
    Stage(
        "stored_to_requested", "sequence stored → refresh queued", "sequences", "refresh_requests"
    ),
    Stage("requested_to_encoded", "refresh queued → encoded", "refresh_requests", "encoder_worker"),
    Stage(
        "encoded_to_stored", "encoded → representation stored", "encoder_worker", "representations"
    ),
    Stage("stored_to_read", "representation stored → first read", "representations", "readers"),
)
SEQUENCE_STAGES = tuple(stage.name for stage in STAGES[:4])
FEATURES = ("sequence", "representation")


# -- histograms --------------------------------------------------------------------------------


def share_within(counts: Counts, seconds: float) -> float | None:
    """The share of counted delays up to `seconds`; None if nothing was counted.

    Linear within a bucket, like `metrics.quantile`.
    """
    total = int(counts.sum())
    return None if not total else num_within(counts, seconds) / total


def num_within(counts: Counts, seconds: float) -> float:
    """How many of the counted delays lie at or below `seconds`."""
    place = int(np.searchsorted(BOUNDS, seconds, side="left"))
    if place >= len(BOUNDS):
        return float(counts[:-1].sum())
    below = float(counts[:place].sum())
    if place == 0:
        return below + (float(counts[0]) if seconds >= BOUNDS[0] else 0.0)
    low, high = float(BOUNDS[place - 1]), float(BOUNDS[place])
    return below + float(counts[place]) * (seconds - low) / (high - low)


def burn_rate(good: float, total: float, target: float) -> float | None:
    """How fast an objective's error budget burns; None if nothing was measured."""
    if total <= 0:
        return None
    return (1 - good / total) / (1 - target) if target < 1 else (0.0 if good >= total else np.inf)


# -- staleness ---------------------------------------------------------------------------------


class OpenRecord(msgspec.Struct, frozen=True):
    """The first record of a partition that a group hasn't acknowledged; times in ms.

    `event_time` is None if the record is no event. For a refresh request both times are those of
    the oldest event in it.
    """

    partition: int
    event_time: int | None
    ingested_at: int
    queued_at: int


class Open(msgspec.Struct, frozen=True):
    """What a group hasn't reflected yet, over all partitions: the oldest times, in ms."""

    event_time: int
    ingested_at: int
    queued_at: int
    partition: int


def oldest_open(records: Iterable[OpenRecord]) -> Open | None:
    """The oldest open event; None if nothing is open, which is idle."""
    found = list(records)
    if not found:
        return None
    first = min(found, key=lambda record: record.ingested_at)
    times = [r.ingested_at if r.event_time is None else r.event_time for r in found]
    queued_at = min(record.queued_at for record in found)
    return Open(min(times), first.ingested_at, queued_at, first.partition)


def age_seconds(now: float, moment_ms: int) -> float:
    """now - moment. Negative where clocks differ: shown as it is, never clipped."""
    return now - moment_ms / 1000


# -- clocks ------------------------------------------------------------------------------------


class ClockOffset(msgspec.Struct, frozen=True):
    """A clock against a reference, seconds; positive is ahead. The truth is within ± error."""

    seconds: float
    error_seconds: float

    def plus(self, other: ClockOffset) -> ClockOffset:
        """A against B plus B against C is A against C; errors add up."""
        error = self.error_seconds + other.error_seconds
        return ClockOffset(self.seconds + other.seconds, error)

    def reversed(self) -> ClockOffset:
        """B against A."""
        return ClockOffset(-self.seconds, self.error_seconds)


def round_trip_offset(asked_at: float, their_time: float, answered_at: float) -> ClockOffset:
    """Offset of a clock that was read between two readings of ours (as NTP does it)."""
    return ClockOffset(their_time - (asked_at + answered_at) / 2, (answered_at - asked_at) / 2)


def best_offset(offsets: Sequence[ClockOffset]) -> ClockOffset | None:
    """The measurement with the smallest error."""
    return min(offsets, key=lambda offset: offset.error_seconds, default=None)


def least_delay_offset(delays: Sequence[float]) -> float | None:
    """Offset of the clock that wrote event times, seen from the broker's append times.

    `delays` are append time - event time, seconds. A delay can't be negative, so the clock is
    ahead by at least -min(delays); a positive minimum is a clock behind, or events that are late.
    """
    return -min(delays) if delays else None


# -- distributions -----------------------------------------------------------------------------


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which `share` of `values` lie (nearest rank); None if there are none."""
    if not values:
        return None
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def counts_of(delays: Sequence[float] | NDArray[Any]) -> Counts:
    """Delays (seconds) as counts per bucket of `metrics.BOUNDS`."""
    places = np.searchsorted(BOUNDS, np.asarray(delays, np.float64), side="left")
    return np.bincount(places, minlength=len(BOUNDS) + 1).astype(np.int64)
