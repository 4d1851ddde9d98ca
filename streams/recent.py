"""Values that seldom change and are asked for with every request: kept for a few seconds.

Knows no store; time is the event loop's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class RecentValues(Generic[K, V]):
    """`fetch`ed values by key, at most `stale_seconds` old.

    After `fresh_seconds` the next request starts a refresh and doesn't wait for it, so that a
    busy reader never waits. Keys are names of declared things, so that their number is bounded.
    Belongs to one event loop.
    """

    def __init__(
        self,
        fetch: Callable[[K], Awaitable[V]],
        *,
        fresh_seconds: float = 2.0,
        stale_seconds: float = 5.0,
    ) -> None:
        self._fetch = fetch
        self._fresh, self._stale = fresh_seconds, stale_seconds
        self._values: dict[K, tuple[float, V]] = {}
        self._refreshing: dict[K, tuple[float, asyncio.Task[V]]] = {}

    async def get(self, key: K) -> V:
        """The value. Raises what `fetch` raises, if there is no recent one."""
        found = self._values.get(key)
        if found is not None:
            age = asyncio.get_running_loop().time() - found[0]
            if age < self._fresh:
                return found[1]
            refresh = self._refresh(key)
            if age < self._stale:
                return found[1]
            return await asyncio.shield(refresh)
        return await asyncio.shield(self._refresh(key))

    def drop(self, key: K) -> None:
        """Forget a value, so that the next request fetches it."""
        self._values.pop(key, None)
        self._refreshing.pop(key, None)

    def _refresh(self, key: K) -> asyncio.Task[V]:
        now = asyncio.get_running_loop().time()
        started, task = self._refreshing.get(key, (now, None))
        # One that takes so long, or whose loop stood still meanwhile, would answer a stale value.
        if task is None or task.done() or now - started >= self._stale:
            task = asyncio.create_task(self._load(key, now))
            task.add_done_callback(_consume)
            self._refreshing[key] = (now, task)
        return task

    async def _load(self, key: K, started: float) -> V:
        value = await self._fetch(key)
        if key in self._refreshing and self._refreshing[key][1] is asyncio.current_task():
            self._values[key] = (started, value)
        return value


def _consume(task: asyncio.Task[V]) -> None:
    """Look at a refresh's error: who waits for it raises it, else the next request tries again."""
    if not task.cancelled():
        task.exception()
