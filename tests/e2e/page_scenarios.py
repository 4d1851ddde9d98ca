"""What the page is shown in its tests and screenshots: the example, and what it makes of it.

Everything is made up; `Scenarios` is a source whose state a test changes by writing a file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from streams.monitor.answers import History, UserLookup
from streams.monitor.example import example_history, example_snapshot, example_user
from streams.monitor.snapshot import (
    Clock,
    Coverage,
    DeadLetters,
    EncoderVersion,
    Headline,
    Partition,
    Partitions,
    Snapshot,
    Source,
    State,
    Worker,
)

INTERVAL_SECONDS = 1.0


def fresh(at: int, number: int) -> Snapshot:
    """All is well."""
    base = example_snapshot(at, number)
    boxes = []
    for found in base.boxes:
        facts = tuple((k, "0.2 s" if k == "waiting" else v) for k, v in found.facts)
        detail = {
            "encoder_worker": "1 of 1 worker takes records",
            "encoder": "answers in 4 ms",
            "readers": "125 reads/s",
        }.get(found.id, found.detail)
        if found.id == "refresh_requests":
            facts = (("lag", "31 requests"),)
        count = 1 if found.id == "encoder_worker" else found.num_instances
        boxes.append(
            replace(found, state=State.OK, detail=detail, facts=facts, num_instances=count)
        )
    delays = {
        "requested_to_encoded": (0.41, 1.9),
        "encoded_to_stored": (0.007, 0.024),
        "stored_to_read": (0.11, 0.84),
    }
    arrows = []
    for arrow in base.arrows:
        p50, p99 = delays.get(arrow.stage, (arrow.p50_seconds, arrow.p99_seconds))
        rate = 141.0 if arrow.stage in delays else arrow.rate
        arrows.append(
            replace(
                arrow, state=State.OK, rate=rate, catch_up_rate=0.0, p50_seconds=p50,
                p99_seconds=p99, problem="",
            )
        )  # fmt: skip
    sequence, representation = base.staleness
    workers = [*base.workers[:2], replace(base.workers[2], state=State.OK, detail="", rate=141.0,
               num_partitions=8, lag_records=31, memory_bytes=612_368_384)]  # fmt: skip
    return replace(
        base,
        headline=Headline(
            state=State.OK,
            text="Sequences are 0.2 s behind their events, representations 1.4 s; "
            "both objectives are met.",
        ),
        slowest_stage="requested_to_encoded",
        boxes=tuple(boxes),
        arrows=tuple(arrows),
        staleness=(
            sequence,
            replace(representation, state=State.OK, seconds=1.4, waiting_seconds=1.3,
                    own_seconds=1.1, lag_records=31, num_partitions_behind=3, num_members=1,
                    oldest_event_time=at - 1400),
        ),
        objectives=(
            base.objectives[0],
            replace(base.objectives[1], good_share=0.9981,
                    burn_rates=((300, 0.2), (3600, 0.3), (21600, 0.4), (259200, 0.4))),
        ),
        freshness=tuple(
            replace(f, p99_seconds=2.3, within_objective=True) if f.version == "2" else f
            for f in base.freshness
        ),
        partitions=Partitions(num_partitions=16, num_ok=13, num_idle=3),
        workers=tuple(workers),
        clocks=tuple(
            replace(c, offset_seconds=0.012, exceeds_limit=False) if c.kind == "producer" else c
            for c in base.clocks
        ),
        canary=replace(base.canary, state=State.OK, problem="", num_lost=0, num_read_back=1440,
                       availability=1.0, last_read_back_at=at - 900),
        sources=tuple(
            replace(s, ok=True, last_ok_at=at, num_errors=0, duration_seconds=0.012, error="")
            for s in base.sources
        ),
    )  # fmt: skip


def idle(at: int, number: int) -> Snapshot:
    """No producer sends: nothing waits, nothing is late."""
    base = fresh(at, number)
    return replace(
        base,
        headline=Headline(state=State.IDLE, text="No event arrives, and nothing waits."),
        slowest_stage=None,
        boxes=tuple(replace(b, state=State.IDLE, detail="nothing to do") for b in base.boxes),
        arrows=tuple(
            replace(a, state=State.IDLE, rate=0.0, p50_seconds=None, p99_seconds=None)
            for a in base.arrows
        ),
        staleness=tuple(
            replace(s, state=State.IDLE, seconds=0.0, waiting_seconds=0.0, own_seconds=0.0,
                    lag_records=0, oldest_event_time=None, oldest_partition=None)
            for s in base.staleness
        ),
        freshness=tuple(
            replace(f, count=0, p50_seconds=None, p99_seconds=None, within_objective=None)
            for f in base.freshness
        ),
    )  # fmt: skip


def blind(at: int, number: int) -> Snapshot:
    """Kafka doesn't answer: nothing that depends on it can be told."""
    base = fresh(at, number)
    why = "Kafka doesn't answer (no answer within 2 s)"
    unknown = State.UNKNOWN
    return replace(
        base,
        headline=Headline(state=unknown, text=f"{why}.", box="events"),
        slowest_stage=None,
        boxes=tuple(
            replace(b, state=unknown, detail=f"can't tell: {why}") if b.kind == "topic" else b
            for b in base.boxes
        ),
        arrows=tuple(
            replace(a, state=unknown, rate=None, p50_seconds=None, p99_seconds=None,
                    problem=f"can't tell: {why}") if a.source in ("events", "refresh_requests")
            else a
            for a in base.arrows
        ),
        staleness=tuple(
            replace(s, state=unknown, seconds=None, waiting_seconds=None, own_seconds=None,
                    lag_records=None, problem=why)
            for s in base.staleness
        ),
        partitions=Partitions(problem=why),
        sources=(
            Source(name="kafka", ok=False, last_ok_at=at - 30_000, num_errors=15,
                   duration_seconds=2.0, error=why),
            *base.sources[1:],
        ),
    )  # fmt: skip


def empty(at: int, number: int) -> Snapshot:
    """Just started: nothing is declared, encoded or sampled yet."""
    base = idle(at, number)
    return replace(
        base, coverage=Coverage(), cost=(), workers=(), dead_letters=DeadLetters(), versions=(),
        clocks=(), freshness=(), objectives=(), partitions=Partitions(),
    )  # fmt: skip


def large(at: int, number: int) -> Snapshot:
    """A thousand partitions and workers, and names as long as they may be."""
    base = example_snapshot(at, number)
    states = (State.OK, State.BEHIND, State.DOWN, State.IDLE)
    return replace(
        base,
        partitions=Partitions(
            num_partitions=1000, num_ok=250, num_behind=250, num_stalled=250, num_idle=250,
            worst=tuple(
                Partition(group="headwater-encoder", topic="refresh-requests", partition=n,
                          state=states[n % 4], end_offset=10_000_000 + number + n,
                          committed_offset=9_000_000 + n, processed_offset=None,
                          lag_records=1_000_000 + number, waiting_seconds=1000.0 - n,
                          worker=f"encoder-{n}")
                for n in range(1000)
            ),
        ),
        workers=tuple(
            Worker(id=f"sequence-{n}", role="sequence", address=f"10.1.{n // 250}.{n % 250}:9100",
                   state=states[n % 4], started_at=at - 1000 * n, num_partitions=1,
                   rate=float(n + number % 7), lag_records=n, memory_bytes=200_000_000 + n)
            for n in range(1000)
        ),
        versions=tuple(
            EncoderVersion(encoder="user_encoder", version=str(n), state="ready")
            for n in range(1, 200)
        ),
        clocks=tuple(
            Clock(name=f"sequence-{n}", kind="worker", offset_seconds=n / 1e5,
                  error_seconds=0.001, method="round_trip")
            for n in range(1000)
        ),
    )  # fmt: skip


def incident(at: int, number: int) -> Snapshot:
    """The encoder is away; each second the oldest request waits a second longer."""
    waited = 42 + number % 1000

    def now(text: str) -> str:
        return text.replace("42 s", f"{waited} s")

    base = example_snapshot(at, number)
    sequence, representation = base.staleness
    return replace(
        base,
        headline=replace(base.headline, text=now(base.headline.text)),
        boxes=tuple(
            replace(b, detail=now(b.detail), facts=tuple((k, now(v)) for k, v in b.facts))
            for b in base.boxes
        ),
        arrows=tuple(replace(a, problem=now(a.problem)) for a in base.arrows),
        staleness=(sequence, replace(representation, waiting_seconds=float(waited))),
    )


SCENARIOS: dict[str, Callable[[int, int], Snapshot]] = {
    "fresh": fresh,
    "incident": incident,
    "idle": idle,
    "blind": blind,
    "empty": empty,
    "large": large,
}


class Scenarios:
    """A source that plays what its file names; "frozen" stops it, "nothing" has no snapshot."""

    def __init__(self, file: Path, now: Callable[[], float]) -> None:
        self._file = file
        self._now = now
        self._since = now()
        self._last: tuple[str, int, Snapshot] | None = None

    def snapshot(self) -> Snapshot | None:
        name = self._file.read_text(encoding="utf-8").strip()
        if name == "nothing":
            return None
        number = int((self._now() - self._since) / INTERVAL_SECONDS)
        if self._last is not None and (name == "frozen" or self._last[:2] == (name, number)):
            return self._last[2]
        made = SCENARIOS[name](round(self._now() * 1000), number)
        self._last = (name, number, replace(made, interval_seconds=INTERVAL_SECONDS))
        return self._last[2]

    async def history(self, range_seconds: int) -> History:
        found = example_history(round(self._now() * 1000), range_seconds)
        name = self._file.read_text(encoding="utf-8").strip()
        if name == "incident":
            return found
        # Without the incident at its end: the last points are those of a while before.
        calm = tuple(
            replace(
                s,
                points=tuple(
                    p if index < len(s.points) - 9 else replace(s.points[index - 60], at=p.at)
                    for index, p in enumerate(s.points)
                ),
            )
            for s in found.series
        )
        return replace(found, series=calm)

    async def user(self, user_id: str) -> UserLookup:
        now = round(self._now() * 1000)
        if user_id == "slow":
            await asyncio.sleep(3600)
        if user_id == "nobody":
            return UserLookup(user_id=user_id, at=now, read_seconds=0.003)
        if user_id == "broken":
            return UserLookup(user_id=user_id, at=now, read_seconds=2.0,
                              problem="Cassandra doesn't answer within 2 s")  # fmt: skip
        return example_user(user_id, now)
