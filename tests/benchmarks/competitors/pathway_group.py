"""pathway: parses JSON by a schema (in Rust), groups by user, counts each user's events.

Its rate is taken between the first and the last of its commits, since nothing of ours runs per
event.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pathway as pw

from tests.benchmarks.competitors.clock import arguments


class _Event(pw.Schema):  # type: ignore[misc, unused-ignore]
    event_id: str
    user_id: str
    item_id: str
    event_type: str
    event_time: int
    surface: str


def main() -> None:
    """Consume the topic from its start."""
    servers, topic, events, _ = arguments()
    table = pw.io.kafka.read(
        {
            "bootstrap.servers": servers,
            "group.id": f"bench-pathway-{os.getpid()}",
            "auto.offset.reset": "earliest",
        },
        topic=topic,
        schema=_Event,
        format="json",
        autocommit_duration_ms=500,
    )
    users = table.groupby(pw.this.user_id).reduce(
        pw.this.user_id,
        count=pw.reducers.count(),
        newest=pw.reducers.max(pw.this.event_time),
    )
    total = users.reduce(total=pw.reducers.sum(pw.this.count))
    commits: list[tuple[float, int]] = [(time.perf_counter(), 0)]

    def on_change(key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:  # noqa: ARG001
        if is_addition:
            _commit(commits, row["total"], events)

    pw.io.subscribe(total, on_change=on_change)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)


def _commit(commits: list[tuple[float, int]], total: int, events: int) -> None:
    commits.append((time.perf_counter(), total))
    if total < events:
        return
    # The first entry is the start of the program: it counts only if there is no other.
    (began, before), (ended, after) = commits[1 if len(commits) > 2 else 0], commits[-1]
    result = {"events": after - before, "seconds": ended - began, "commits": len(commits)}
    print(json.dumps(result), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
