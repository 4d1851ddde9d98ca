"""A platform as the monitor might find it, made by hand: for tests of what it makes of that."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from streams import metrics as catalogue
from streams.freshness import ClockOffset, OpenRecord
from streams.metrics import Metrics
from streams.monitor.backlog import Movements
from streams.monitor.exposition import parse
from streams.monitor.history import Histories
from streams.monitor.log import GroupPartition, GroupReading
from streams.monitor.observed import Groups, Observed
from streams.monitor.processes import Rates
from streams.monitor.scrape import ModelState, Target, TritonReading, WorkerReading
from streams.monitor.snapshot import Canary, State
from streams.monitor.totals import Sums, Totals
from streams.representations import EncoderVersion, VersionState
from streams.settings import Settings

NOW = 1_790_000_000.0
SETTINGS = Settings()
ENCODER = "user_encoder"


def group(role: str, *, lag: int = 0, waiting: float = 0.0, members: int = 1) -> GroupReading:
    """A group with two partitions; `lag` records in the first, the oldest `waiting` seconds old."""
    own = SETTINGS.sequence_worker if role == "sequence" else SETTINGS.encoder_worker
    topic = SETTINGS.kafka.events_topic if role == "sequence" else SETTINGS.kafka.refresh_topic
    at = round((NOW - waiting) * 1000)
    return GroupReading(
        group=own.group,
        topic=topic,
        read_at=NOW,
        partitions=(
            GroupPartition(0, start=0, end=500, committed=500 - lag),
            GroupPartition(1, start=0, end=500, committed=500),
        ),
        open_records=(OpenRecord(0, at - 300, at, at),) if lag else (),
        unread=(),
        num_members=members,
    )


def measured(**stages: float) -> Metrics:
    """What a worker would have counted: 100 live events per stage, all with this delay."""
    metrics = Metrics()
    for stage, seconds in stages.items():
        metrics.observe(catalogue.STAGE_SECONDS, np.full(100, seconds), stage, "live")
    return metrics


def worker(role: str, metrics: Metrics, reasons: tuple[str, ...] = ()) -> WorkerReading:
    """A worker that answered."""
    state: dict[str, Any] = {"role": role, "reasons": list(reasons), "started_at": NOW - 500}
    exposed = parse(metrics.exposition().decode())
    target = Target(f"{role}-1", role, "http://127.0.0.1:1")
    return WorkerReading(target, 0.01, exposed, state, ClockOffset(0.0, 0.001))


SEQUENCE_STAGES = {
    "produced_to_broker": 0.01,
    "broker_to_folded": 0.05,
    "folded_to_stored": 0.02,
    "stored_to_requested": 0.01,
}
ENCODER_STAGES = {"requested_to_encoded": 0.3, "encoded_to_stored": 0.02}


def observed(**changes: Any) -> Observed:
    """A healthy platform under traffic; `changes` replace fields."""
    sequence = measured(**SEQUENCE_STAGES)
    for since in ("event_time", "ingested_at"):
        sequence.observe(catalogue.FRESHNESS_SECONDS, np.full(100, 0.1), "sequence", since, "live")
    encoder = measured(**ENCODER_STAGES)
    groups = Groups(group("sequence", lag=5, waiting=0.2), group("encoder", lag=3, waiting=0.4))
    movements = Movements(60.0)
    for back in (10.0, 0.0):
        movements.take(_shifted(groups.sequence, int(back)), NOW - back)
        movements.take(_shifted(groups.encoder, int(back)), NOW - back)
    readings = (worker("sequence", sequence), worker("encoder", encoder))
    healthy: dict[str, Any] = {
        "settings": SETTINGS,
        "number": 1,
        "started_at": NOW - 100,
        "now": NOW,
        "broker_offset": 0.0,
        "workers": readings,
        "groups": groups,
        "cassandra_seconds": 0.003,
        "triton": TritonReading(True, (ModelState(ENCODER, "2", True),)),
        "versions": (EncoderVersion(ENCODER, "2", VersionState.ACTIVE, 0),),
        "sample": None,
        "dead_letters": (),
        "tail": (),
        "canary": Canary(enabled=True, state=State.OK),
        "monitor_clock": ClockOffset(0.0, 0.001),
        "worker_clocks": {},
        "window": (60.0, counted(*readings)),
        "cost_window": (900.0, counted(*readings)),
        "movements": movements,
        "rates": Rates(60.0),
        "histories": Histories(),
        "sources": (),
        "problems": {},
    }
    return Observed(**(healthy | changes))


def counted(*readings: WorkerReading) -> Sums:
    """What these workers counted since they started."""
    totals = Totals(0.0, 900.0, 5.0)
    for reading in readings:
        if reading.exposed is not None:
            process = {"process_start_time_seconds": 1.0}
            totals.take(reading.target.id, reading.exposed._replace(process=process))
    return totals.now


def _shifted(reading: GroupReading, back: int) -> GroupReading:
    """The same group some records ago."""
    partitions = tuple(
        msgspec.structs.replace(p, end=p.end - back, committed=(p.committed or 0) - back)
        for p in reading.partitions
    )
    return msgspec.structs.replace(reading, partitions=partitions)
