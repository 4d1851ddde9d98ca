"""What every competitor's script shares: arguments in, one line of JSON out. Standard library only.

    SCRIPT BOOTSTRAP_SERVERS TOPIC EVENTS [more]

The clock runs from the first handled event to the last, so that no start-up is counted.
"""

from __future__ import annotations

import json
import os
import sys
import time


class EventClock:
    """Counts handled events up to the one that ends the run."""

    def __init__(self, events: int) -> None:
        self.left = events
        self._events = events
        self._first = 0.0
        self._cpu = 0.0

    def start(self) -> None:
        """The first event is about to be handled; later calls do nothing."""
        if not self._first:
            self._first = time.perf_counter()
            self._cpu = time.process_time()

    def report(self, **more: float | str) -> None:
        """Print the result, past whatever a framework has put in the place of stdout."""
        result: dict[str, float | str] = {
            "events": self._events,
            "seconds": time.perf_counter() - self._first,
            "cpu_seconds": time.process_time() - self._cpu,
        }
        sys.stdout.flush()
        os.write(1, f"\n{json.dumps(result | more)}\n".encode())

    def report_and_exit(self, **more: float | str) -> None:
        """Print the result and end the process, whatever the framework is still doing."""
        self.report(**more)
        os._exit(0)


def arguments() -> tuple[str, str, int, list[str]]:
    """Bootstrap servers, topic, number of events, the rest."""
    return sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
