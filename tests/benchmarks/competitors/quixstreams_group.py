"""quixstreams: its JSON deserializer (orjson), then the event is appended to the user's list."""

from __future__ import annotations

import uuid
from collections import defaultdict
from typing import Any

from quixstreams import Application

from tests.benchmarks.competitors.clock import EventClock, arguments


def main() -> None:
    """Consume the topic from its start."""
    servers, topic_name, events, _ = arguments()
    clock = EventClock(events)
    app = Application(
        broker_address=servers,
        consumer_group=f"bench-quix-{uuid.uuid4().hex[:8]}",
        auto_offset_reset="earliest",
        auto_create_topics=False,
        loglevel="ERROR",
    )
    users: defaultdict[str, list[Any]] = defaultdict(list)

    def append(event: dict[str, Any]) -> None:
        clock.start()
        users[event["user_id"]].append(event)
        clock.left -= 1
        if not clock.left:
            clock.report_and_exit()

    frame = app.dataframe(app.topic(topic_name, value_deserializer="json"))
    frame.update(append)
    app.run()


if __name__ == "__main__":
    main()
