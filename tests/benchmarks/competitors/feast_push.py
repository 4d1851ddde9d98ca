"""The stock way to fresh features: a Faust agent that pushes to Feast's own Cassandra store.

    BOOTSTRAP_SERVERS TOPIC EVENTS CASSANDRA_PORT KEYSPACE BATCH

An event becomes one row of a feature view (its user's newest item, type, surface and time).
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from tests.benchmarks.competitors.clock import EventClock, arguments
from tests.benchmarks.competitors.faust_stock import run_agent
from tests.benchmarks.competitors.feast_stock import last_event_store


def main() -> None:
    """Consume the topic from its start, as far as the number of events."""
    servers, topic, events, (port, keyspace, batch_size) = arguments()
    clock = EventClock(events)
    store = last_event_store(Path(tempfile.mkdtemp()), int(port), keyspace)

    async def push(stream: Any) -> None:
        async for taken in stream.take(int(batch_size), within=10):
            clock.start()
            frame = pd.DataFrame(
                {
                    "user_id": [event["user_id"] for event in taken],
                    "item_id": [event["item_id"] for event in taken],
                    "event_type": [event["event_type"] for event in taken],
                    "surface": [event["surface"] for event in taken],
                    "event_timestamp": [
                        datetime.fromtimestamp(event["event_time"] / 1000, UTC) for event in taken
                    ],
                }
            )
            store.push("last_event_push", frame)
            clock.left -= len(taken)
            if clock.left <= 0:
                clock.report_and_exit()

    run_agent(servers, topic, push)


if __name__ == "__main__":
    main()
