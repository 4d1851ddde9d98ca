"""What the page needs from whoever shows it: the collector, or an example.

The monitor is one process: its composition makes a FastAPI app, collects, and calls
`streams.monitor.page.mount.add_page(app, source, ...)`. The page asks nothing else and changes
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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


class KeptHistory:
    """A source's history, asked for once for all who look at it.

    An answer is kept for as long as its step, and no shorter than `least_seconds`.
    """

    def __init__(
        self, source: SnapshotSource, now: Callable[[], float], least_seconds: float = 4.0
    ) -> None:
        self._source = source
        self._now = now
        self._least = least_seconds
        self._kept: dict[int, tuple[float, History]] = {}
        self._one_at_a_time = asyncio.Lock()

    async def get(self, range_seconds: int) -> History:
        """The history; at most a step old."""
        async with self._one_at_a_time:
            kept = self._kept.get(range_seconds)
            if kept is not None and self._now() < kept[0]:
                return kept[1]
            history = await self._source.history(range_seconds)
            good_for = max(self._least, float(min(history.step_seconds, 60)))
            self._kept[range_seconds] = (self._now() + good_for, history)
            return history


class Example:
    """A source of made-up values that moves on with the clock (`now`, seconds)."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now

    def snapshot(self) -> Snapshot:
        at = self._now()
        return example_snapshot(round(at * 1000), number=int(at / 2))

    async def history(self, range_seconds: int) -> History:
        return example_history(round(self._now() * 1000), range_seconds)

    async def user(self, user_id: str) -> UserLookup:
        return example_user(user_id, round(self._now() * 1000))
