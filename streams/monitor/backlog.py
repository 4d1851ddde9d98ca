"""Staleness and partitions, out of where the groups stand. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from streams.freshness import Open, age_seconds, oldest_open
from streams.monitor.log import GroupPartition, GroupReading
from streams.monitor.snapshot import Partition, Partitions, Staleness, State

MAX_SHOWN = 100


class Movements:
    """When each partition's end and committed offset last moved, and how fast the topics grow."""

    def __init__(self, window_seconds: float) -> None:
        self._window = window_seconds
        self._committed: dict[tuple[str, int], tuple[int, float]] = {}
        self._ends: dict[str, deque[tuple[float, int]]] = {}

    def take(self, reading: GroupReading, at: float) -> None:
        """A group was read at `at` (seconds)."""
        for found in reading.partitions:
            key = (reading.group, found.partition)
            known = self._committed.get(key)
            # A partition without lag has nothing to move: its clock starts with the first record.
            if known is None or known[0] != found.position or not found.lag:
                self._committed[key] = (found.position, at)
        ends = self._ends.setdefault(reading.topic, deque())
        ends.append((at, sum(found.end for found in reading.partitions)))
        while len(ends) > 2 and ends[1][0] <= at - self._window:
            ends.popleft()

    def still_for(self, group: str, partition: int, at: float) -> float:
        """For how many seconds a partition with lag hasn't moved."""
        known = self._committed.get((group, partition))
        return 0.0 if known is None else at - known[1]

    def arrivals(self, topic: str) -> float | None:
        """Records per second that arrive on a topic; None before the second reading."""
        ends = self._ends.get(topic)
        if ends is None or len(ends) < 2 or ends[-1][0] <= ends[0][0]:
            return None
        return max(0, ends[-1][1] - ends[0][1]) / (ends[-1][0] - ends[0][0])


def staleness(
    feature: str,
    reading: GroupReading,
    upstream: GroupReading | None,
    broker_offset: float,
    allowed: float,
) -> Staleness:
    """How stale a feature was when Kafka was asked, by the broker's clock as far as it is known.

    What was open at that moment is known to have waited until then and no longer: counting on to
    the present would make a healthy event as old as the answer. `upstream` is the group whose
    backlog this feature doesn't reflect either; `allowed` (seconds) is how long an event may wait.
    """
    now = reading.read_at + broker_offset
    readings = [reading] if upstream is None else [reading, upstream]
    unread = sum(len(found.unread) for found in readings)
    own = oldest_open(reading.open_records)
    whole = oldest_open(record for found in readings for record in found.open_records)
    lagging = [found for found in reading.partitions if found.lag]
    common = {
        "feature": feature,
        "group": reading.group,
        "lag_records": sum(found.lag for found in reading.partitions),
        "num_partitions_behind": len(lagging),
        "num_members": reading.num_members,
    }
    if unread:
        problem = f"the oldest record of {unread} partitions couldn't be read in time"
        return Staleness(state=State.UNKNOWN, problem=problem, **common)  # type: ignore[arg-type]
    if whole is None:
        return Staleness(state=State.IDLE, **_figures(None, None, now), **common)  # type: ignore[arg-type]
    behind = age_seconds(now, whole.ingested_at) > allowed
    state = State.BEHIND if behind else State.OK
    return Staleness(state=state, **_figures(whole, own, now), **common)  # type: ignore[arg-type]


def _figures(whole: Open | None, own: Open | None, now: float) -> dict[str, float | int | None]:
    if whole is None:
        return {"seconds": 0.0, "waiting_seconds": 0.0, "own_seconds": 0.0}
    return {
        "seconds": age_seconds(now, whole.event_time),
        "waiting_seconds": age_seconds(now, whole.ingested_at),
        "own_seconds": 0.0 if own is None else age_seconds(now, own.queued_at),
        "oldest_event_time": whole.event_time,
        "oldest_partition": whole.partition,
    }


def unknown_staleness(feature: str, group: str, problem: str) -> Staleness:
    """For when Kafka can't be asked."""
    return Staleness(feature=feature, group=group, state=State.UNKNOWN, problem=problem)


def partitions(
    readings: Iterable[GroupReading],
    movements: Movements,
    owners: dict[tuple[str, int], tuple[str, int]],
    broker_offset: float,
    stall_seconds: float,
    allowed: Mapping[str, float],
) -> Partitions:
    """All partitions in numbers, the worst ones in detail.

    `owners` has (worker, processed offset) by (group, partition), `allowed` by group for how many
    seconds a record may wait.
    """
    rows = [
        _partition(
            reading, found, movements, owners, broker_offset, stall_seconds, allowed[reading.group]
        )
        for reading in readings
        for found in reading.partitions
    ]
    counts = {state: sum(row.state is state for row in rows) for state in State}
    rank = {State.DOWN: 0, State.UNKNOWN: 1, State.BEHIND: 2, State.OK: 3, State.IDLE: 4}
    rows.sort(key=lambda row: (rank[row.state], -(row.waiting_seconds or 0.0), row.partition))
    return Partitions(
        num_partitions=len(rows),
        num_ok=counts[State.OK],
        num_idle=counts[State.IDLE],
        num_behind=counts[State.BEHIND],
        num_stalled=counts[State.DOWN],
        worst=tuple(rows[:MAX_SHOWN]),
    )


def _partition(
    reading: GroupReading,
    found: GroupPartition,
    movements: Movements,
    owners: dict[tuple[str, int], tuple[str, int]],
    broker_offset: float,
    stall_seconds: float,
    allowed: float,
) -> Partition:
    owner, processed = owners.get((reading.group, found.partition), ("", None))
    own = [record for record in reading.open_records if record.partition == found.partition]
    waiting = None if found.lag else 0.0
    if own:
        waiting = age_seconds(reading.read_at + broker_offset, own[0].queued_at)
    if not found.lag:
        state = State.IDLE
    elif (
        movements.still_for(reading.group, found.partition, reading.read_at) > stall_seconds
        # After a pause of the monitor itself, a record may be new though nothing moved.
        and (waiting is None or waiting > stall_seconds)
    ):
        state = State.DOWN
    elif waiting is None:
        state = State.UNKNOWN
    else:
        state = State.BEHIND if waiting > allowed else State.OK
    return Partition(
        group=reading.group,
        topic=reading.topic,
        partition=found.partition,
        state=state,
        end_offset=found.end,
        committed_offset=found.committed,
        processed_offset=processed,
        lag_records=found.lag,
        waiting_seconds=waiting,
        worker=owner,
    )
