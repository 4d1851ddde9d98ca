"""Ours for `ingest.delivery`: the worker's transport, decoding, validation and fold; no store.

    TOPIC EVENTS [encode]

`encode` also makes the rows, as the worker does before it writes them.
"""

from __future__ import annotations

import secrets
import sys
import time
from typing import Any

from streams.metrics import Metrics
from streams.sequences import StoredUser, UserState
from streams.settings import load_settings
from streams.workers.declarations import read_views
from streams.workers.fault_points import FaultPoints
from streams.workers.intake import take_in
from streams.workers.lanes import Lane
from streams.workers.runtime import Running, Runtime, run_to_end
from streams.workers.transport import Consuming, RecordBatch
from streams.workers.users import Applied, UserWork
from tests.benchmarks.competitors.clock import EventClock
from tests.benchmarks.inputs import PARTITIONS


class _Fold:
    """A handler that folds into memory; see `runtime.Handler`."""

    def __init__(self, views: Any, clock: EventClock, encode: bool) -> None:
        self._views = views
        self._clock = clock
        self._encode = encode
        self._users: dict[str, UserState] = {}

    async def start(self) -> None:
        """Nothing to connect to."""

    async def assigned(self) -> None:
        """Any assignment will do."""

    def revoked(self) -> None:
        """Nothing is held."""

    def new_state(self) -> None:
        """Lanes share the users."""

    async def check(self) -> None:
        """Nothing changes."""

    def refresh_metrics(self) -> None:
        """No gauges."""

    def state(self) -> dict[str, Any]:
        """Nothing to show."""
        return {}

    async def close(self, seconds: float) -> None:
        """Nothing to close."""

    async def handle(self, lane: Lane, batch: RecordBatch) -> None:
        """Decode, validate, fold."""
        del lane
        self._clock.start()
        views, users = self._views, self._users
        intake = take_in(
            batch.records, epoch=1, partition=batch.partition, partitions=PARTITIONS,
            future_allowance_ms=60_000,
        )  # fmt: skip
        assert not intake.refused, intake.refused[:1]
        assert not intake.foreign
        applied = Applied()
        for found in intake.users.values():
            state = users.get(found.user_id)
            if state is None:
                state = users[found.user_id] = UserState(found.user_id, views.set, StoredUser())
            work = UserWork(found)
            work.begin(state)
            needed = work.fold(views.set, views.source_types, applied)
            assert not needed
            if self._encode:
                state.flush()
        self._clock.left -= len(batch.records)
        if self._clock.left <= 0:
            self._clock.report_and_exit()


def main() -> None:
    """Consume the topic from its start to its end."""
    topic, events, encode = sys.argv[1], int(sys.argv[2]), "encode" in sys.argv[3:]
    settings = load_settings()
    running = Running(
        consuming=Consuming(
            role="sequence", topic=topic, group=f"bench-{secrets.token_hex(4)}",
            max_batch_records=settings.sequence_worker.max_batch_records,
        ),
        drain_seconds=1.0, stall_seconds=60.0, metrics_host="127.0.0.1", metrics_port=0,
    )  # fmt: skip

    handler = _Fold(read_views(settings), EventClock(events), encode)
    run_to_end(lambda: Runtime(settings, running, handler, Metrics(), time.time, FaultPoints("")))


if __name__ == "__main__":
    main()
