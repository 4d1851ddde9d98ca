"""An event loop in a thread, for callers that aren't async: Feast's sync interface, scripts.

Knows nothing of what runs in it. A call ends when its time is over, whatever the loop does.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

# On top of the time that a call's own code allows itself, before the caller stops waiting.
_GRACE_SECONDS = 0.25
_CLOSE_SECONDS = 5.0


class BackgroundLoop:
    """A running event loop; threads hand it coroutines and wait for their results."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._at_close: list[Callable[[], Awaitable[None]]] = []
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="headwater-loop", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        """The result of `work`. Raises what it raises, or TimeoutError when the time is over."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout + _GRACE_SECONDS)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise TimeoutError(f"no result within {timeout:g} s") from None

    def at_close(self, action: Callable[[], Awaitable[None]]) -> None:
        """Have `action` run once in the loop before it ends, for example to close connections."""
        if action not in self._at_close:
            self._at_close.append(action)

    def close(self) -> None:
        """Run the closing actions, then end the thread."""
        if self._thread.is_alive():
            try:
                self.run(self._closing(), _CLOSE_SECONDS)
            finally:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join(_CLOSE_SECONDS)

    async def _closing(self) -> None:
        for action in self._at_close:
            await action()


_lock = threading.Lock()
_loops: dict[int, BackgroundLoop] = {}


def background_loop() -> BackgroundLoop:
    """This process's loop; a forked child gets its own, since threads don't survive a fork."""
    pid = os.getpid()
    with _lock:
        loop = _loops.get(pid)
        if loop is None:
            loop = _loops[pid] = BackgroundLoop()
            atexit.register(_close, pid)
    return loop


def _close(pid: int) -> None:
    if pid == os.getpid():
        _loops[pid].close()
