"""Stock Faust: an agent that gets parsed JSON and appends it to a list."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tests.benchmarks.competitors.clock import EventClock, arguments
from tests.benchmarks.competitors.faust_stock import run_agent


def main() -> None:
    """Consume the topic from its start."""
    servers, topic, events, _ = arguments()
    clock = EventClock(events)
    users: defaultdict[str, list[Any]] = defaultdict(list)

    async def append(stream: Any) -> None:
        async for event in stream:
            clock.start()
            users[event["user_id"]].append(event)
            clock.left -= 1
            if not clock.left:
                clock.report_and_exit()

    run_agent(servers, topic, append)


if __name__ == "__main__":
    main()
