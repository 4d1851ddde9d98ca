"""What the page needs from whoever shows it: the collector, or an example.

The monitor is one process: its composition makes a FastAPI app, collects, and calls
`streams.monitor.page.mount.add_page(app, source, ...)`. The page asks nothing else and changes
nothing.
"""

from __future__ import annotations

from typing import Protocol

from streams.monitor.answers import History, UserLookup
from streams.monitor.example import example_history, example_snapshot, example_user
from streams.monitor.snapshot import Snapshot


class SnapshotSource(Protocol):
    """Called on the event loop; `snapshot` must be quick, the others may wait."""

    def snapshot(self) -> Snapshot | None:
        """The newest snapshot; None before the first one is there."""
        ...

    async def history(self, range_seconds: int) -> History:
        """Freshness over the last `range_seconds`."""
        ...

    async def user(self, user_id: str) -> UserLookup:
        """What a reader gets for this user; what fails is in `problem`, not raised."""
        ...


class Example:
    """A source of made-up values; `at` (ms) is the moment that they are made for."""

    def __init__(self, at: int, number: int = 240) -> None:
        self._snapshot = example_snapshot(at, number)

    def snapshot(self) -> Snapshot:
        return self._snapshot

    async def history(self, range_seconds: int) -> History:
        return example_history(self._snapshot.at, range_seconds)

    async def user(self, user_id: str) -> UserLookup:
        return example_user(user_id, self._snapshot.at)
