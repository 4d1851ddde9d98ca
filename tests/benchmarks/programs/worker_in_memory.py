"""The sequence worker's whole arrow over a store and a broker's outbox in memory.

    TOPIC EVENTS with_metrics|without_metrics

Reading from Kafka is real. `report_share` is the report's own share of the CPU time.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterable
from typing import Any

from streams.kafka import topic_identity
from streams.metrics import Metrics
from streams.producer import OutgoingRecord
from streams.settings import load_settings
from streams.testing import InMemoryLogStore, InMemorySequenceStore
from streams.workers.declarations import Declarations, read_views
from streams.workers.epoch import EpochGuard
from streams.workers.fault_points import FaultPoints
from streams.workers.lanes import Lane
from streams.workers.runtime import Running, Runtime, run_to_end
from streams.workers.sequence import SequenceWorker
from streams.workers.sequence_report import SequenceReport
from streams.workers.transport import Consuming, RecordBatch
from tests.benchmarks.competitors.clock import EventClock


class _Outbox:
    """Takes what is sent."""

    async def deliver(self, records: Iterable[OutgoingRecord]) -> None:
        """Nothing is kept."""
        for _ in records:
            pass

    async def close(self, timeout: float) -> int:
        """Nothing is left."""
        del timeout
        return 0


class _TimedReport(SequenceReport):
    """Knows how long it took."""

    seconds = 0.0

    def batch_done(self, *facts: Any, **more: Any) -> None:
        began = time.thread_time()
        super().batch_done(*facts, **more)
        _TimedReport.seconds += time.thread_time() - began


class _NoReport(SequenceReport):
    """Counts nothing."""

    def batch_done(self, *facts: Any, **more: Any) -> None:
        """Nothing."""


class _Worker(SequenceWorker):
    """Ends the process after its last event."""

    clock: EventClock

    async def handle(self, lane: Lane, batch: RecordBatch) -> None:
        """See SequenceWorker."""
        self.clock.start()
        await super().handle(lane, batch)
        self.clock.left -= len(batch.records)
        if self.clock.left <= 0:
            cpu = time.process_time() - self.clock._cpu
            self.clock.report_and_exit(report_share=_TimedReport.seconds / cpu)


async def _nothing() -> None:
    return


def _runtime(topic: str, events: int, how: str) -> Runtime:
    settings, metrics = load_settings(), Metrics()
    own = settings.sequence_worker
    guard = EpochGuard(
        topic, InMemoryLogStore(), lambda: topic_identity(settings.kafka, topic), time.time, 10.0
    )
    worker = _Worker(
        settings, Declarations(settings, read_views(settings)), InMemorySequenceStore(), guard,
        _Outbox(), metrics, time.time, FaultPoints(""), _nothing,
    )  # fmt: skip
    worker.clock = EventClock(events)
    kind = {"with_metrics": _TimedReport, "without_metrics": _NoReport}[how]
    worker._report = kind(metrics, own.catch_up_seconds)
    running = Running(
        consuming=Consuming(
            role="sequence", topic=topic, group=f"bench-{secrets.token_hex(4)}",
            max_batch_records=own.max_batch_records,
        ),
        drain_seconds=1.0, stall_seconds=60.0, metrics_host="127.0.0.1", metrics_port=0,
    )  # fmt: skip
    return Runtime(settings, running, worker, metrics, time.time, FaultPoints(""))


def main() -> None:
    """Consume the topic from its start to its end."""
    topic, events, how = sys.argv[1:]
    run_to_end(lambda: _runtime(topic, int(events), how))


if __name__ == "__main__":
    main()
