"""The workers as the monitor read them: state, rate, memory, partitions held. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from streams import metrics as catalogue
from streams.monitor.exposition import Exposed
from streams.monitor.scrape import WorkerReading
from streams.monitor.snapshot import Clock, State, Worker

_DONE_BY_ROLE = {
    "sequence": catalogue.RECORDS_CONSUMED.name,
    "encoder": catalogue.ENCODER_USERS.name,
    "reader": catalogue.READS.name,
    "producer": catalogue.RECORDS_SENT.name,
}


class Rates:
    """How much each process gets done per second: records, users or reads, by its role."""

    def __init__(self, window_seconds: float) -> None:
        self._window = window_seconds
        self._done: dict[str, deque[tuple[float, float]]] = {}

    def take(self, readings: Iterable[WorkerReading], at: float) -> None:
        """The processes were read."""
        known, self._done = self._done, {}
        for reading in readings:
            if reading.exposed is None:
                continue
            done = known.get(reading.target.id) or deque()
            done.append((at, _done(role_of(reading), reading.exposed)))
            while len(done) > 2 and done[1][0] <= at - self._window:
                done.popleft()
            self._done[reading.target.id] = done

    def rate(self, process: str) -> float | None:
        """None before the second reading."""
        done = self._done.get(process)
        if done is None or len(done) < 2 or done[-1][0] <= done[0][0]:
            return None
        return max(0.0, done[-1][1] - done[0][1]) / (done[-1][0] - done[0][0])


def role_of(reading: WorkerReading) -> str:
    """What the process says it is, else what its file says."""
    return str(reading.state.get("role") or reading.target.role)


def workers(
    readings: Sequence[WorkerReading], rates: Rates, clocks: Sequence[Clock]
) -> tuple[Worker, ...]:
    """One row per process."""
    offsets = {clock.name: clock.offset_seconds for clock in clocks if clock.kind == "worker"}
    return tuple(
        _worker(reading, rates, offsets)
        for reading in sorted(readings, key=lambda reading: reading.target.id)
    )


def _worker(reading: WorkerReading, rates: Rates, offsets: Mapping[str, float | None]) -> Worker:
    target, state = reading.target, reading.state
    address = target.url.removeprefix("http://")
    if reading.exposed is None:
        # Without its process it is down; a live one that doesn't answer in time may still work.
        what = State.UNKNOWN if target.runs and "no answer" in reading.error else State.DOWN
        return Worker(id=target.id, role=target.role, address=address, state=what,
                      detail=reading.error)  # fmt: skip
    reasons = [str(reason) for reason in state.get("reasons") or ()]
    rate = rates.rate(target.id)
    started_at = state.get("started_at")
    partitions = state.get("partitions")
    shown = State.BEHIND if reasons else State.IDLE if rate == 0 else State.OK
    memory = reading.exposed.process.get("process_resident_memory_bytes")
    return Worker(
        id=target.id,
        role=role_of(reading),
        address=address,
        state=shown,
        detail="; ".join(reasons)[:500],
        started_at=None if started_at is None else round(float(started_at) * 1000),
        num_partitions=len(partitions) if isinstance(partitions, dict) else None,
        rate=rate,
        lag_records=state.get("lag"),
        memory_bytes=None if memory is None else int(memory),
        clock_offset_seconds=offsets.get(target.id),
    )


def owners(readings: Iterable[WorkerReading]) -> dict[tuple[str, int], tuple[str, int]]:
    """(worker, processed offset) by (group, partition)."""
    found: dict[tuple[str, int], tuple[str, int]] = {}
    for reading in readings:
        group = str(reading.state.get("group", ""))
        partitions: dict[str, dict[str, Any]] = reading.state.get("partitions") or {}
        for number, facts in partitions.items():
            found[group, int(number)] = (reading.target.id, int(facts["processed"]))
    return found


def _done(role: str, exposed: Exposed) -> float:
    name = _DONE_BY_ROLE.get(role, "")
    return sum(value for (metric, _), value in exposed.counters.items() if metric == name)
