"""Clocks of producers, workers and the monitor against the broker's: measured, signed. Pure.

- monitor: a canary's record is appended by the broker between two readings of our clock;
- worker: its answer holds its clock, between two readings of ours;
- producer: the smallest delay between event time and append time of its newest events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from streams.freshness import ClockOffset, best_offset, is_canary, least_delay_offset
from streams.monitor.log import SeenRecord
from streams.monitor.snapshot import Clock

# Above it, events are late or a backfill: their times tell nothing of a clock.
LATE_SECONDS = 60.0
MAX_PRODUCERS = 50
_KEPT = 12
UNNAMED = "producers without a name"


class RecentOffsets:
    """The last measurements of one clock; the one with the smallest error counts."""

    def __init__(self) -> None:
        self._offsets: deque[ClockOffset] = deque(maxlen=_KEPT)

    def add(self, offset: ClockOffset) -> None:
        """One more measurement."""
        self._offsets.append(offset)

    def best(self) -> ClockOffset | None:
        """None before the first measurement."""
        return best_offset(self._offsets) if self._offsets else None


def clocks(
    monitor: ClockOffset | None,
    workers: Mapping[str, ClockOffset],
    tail: Iterable[SeenRecord] | None,
    limit: float,
    tail_problem: str = "",
) -> tuple[Clock, ...]:
    """All clocks against the broker's. `monitor` is ours against the broker's, `workers` theirs
    against ours; `tail` the newest events, None if they couldn't be read."""
    shown = [Clock(name="broker", kind="broker", offset_seconds=0.0, error_seconds=0.0,
                   method="reference")]  # fmt: skip
    shown.append(_monitor_clock(monitor, limit))
    shown += [_worker_clock(name, found, monitor, limit) for name, found in workers.items()]
    if tail is None:
        shown.append(
            Clock(name="producers", kind="producer", offset_seconds=None, error_seconds=None,
                  method="least_delay", problem=tail_problem or "the log couldn't be read")
        )  # fmt: skip
    else:
        shown += _producer_clocks(tail, limit)
    return tuple(shown)


def _monitor_clock(monitor: ClockOffset | None, limit: float) -> Clock:
    if monitor is None:
        return Clock(name="monitor", kind="monitor", offset_seconds=None, error_seconds=None,
                     method="round_trip", problem="no canary was delivered yet")  # fmt: skip
    return _measured("monitor", "monitor", monitor, limit)


def _worker_clock(
    name: str, found: ClockOffset, monitor: ClockOffset | None, limit: float
) -> Clock:
    if monitor is not None:
        # theirs - broker = (theirs - ours) + (ours - broker)
        return _measured(name, "worker", found.plus(monitor), limit)
    clock = _measured(name, "worker", found, limit)
    return Clock(
        name=clock.name, kind=clock.kind, offset_seconds=clock.offset_seconds,
        error_seconds=clock.error_seconds, method=clock.method, exceeds_limit=clock.exceeds_limit,
        problem="against the monitor's clock, the broker's isn't known yet",
    )  # fmt: skip


def _measured(name: str, kind: str, offset: ClockOffset, limit: float) -> Clock:
    certain = abs(offset.seconds) - offset.error_seconds
    return Clock(
        name=name, kind=kind, offset_seconds=offset.seconds, error_seconds=offset.error_seconds,
        method="round_trip", exceeds_limit=certain > limit,
    )  # fmt: skip


def _producer_clocks(tail: Iterable[SeenRecord], limit: float) -> list[Clock]:
    delays: dict[str, list[float]] = {}
    for record in tail:
        if not is_canary(record.user_id):
            delay = (record.ingested_at - record.event_time) / 1000
            delays.setdefault(record.producer or UNNAMED, []).append(delay)
    named = sorted(delays)
    return [_producer_clock(name, delays[name], limit) for name in named[:MAX_PRODUCERS]]


def _producer_clock(name: str, delays: list[float], limit: float) -> Clock:
    offset = least_delay_offset(delays)
    assert offset is not None
    if offset < -LATE_SECONDS:
        return Clock(name=name, kind="producer", offset_seconds=None, error_seconds=None,
                     method="least_delay",
                     problem=f"its newest events are {-offset:,.0f} s old when they arrive: "
                     "late or a backfill, which tells nothing of its clock")  # fmt: skip
    return Clock(name=name, kind="producer", offset_seconds=offset, error_seconds=None,
                 method="least_delay", exceeds_limit=abs(offset) > limit)  # fmt: skip
