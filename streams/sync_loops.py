"""Event loops for callers that aren't async: Feast's sync interface, scripts.

Knows nothing of what runs in them. A caller runs its work in its own thread, in a loop that all
threads share and one drives at a time: no hop to another thread and back, which takes longer than
a short read. While another thread is at it, and inside of somebody's running loop, the work goes to
a loop that runs in the background. A call ends when its time is over.
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


class SyncLoops:
    """This process's loops for sync callers; any thread. Get them by `sync_loops`."""

    def __init__(self) -> None:
        self._driven: DrivenLoop | None = None
        self._background: BackgroundLoop | None = None
        self._lock = threading.Lock()
        self._at_close: list[Callable[[], Awaitable[None]]] = []

    def run(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        """The result of `work`. Raises what it raises, or TimeoutError when the time is over."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            driven = self._driven or self._make_driven()
            if driven.take():
                return driven.run(work, timeout)
        return (self._background or self._make_background()).run(work, timeout)

    def at_close(self, action: Callable[[], Awaitable[None]]) -> None:
        """Have `action` run once in each loop before it ends, for example to close connections."""
        if action not in self._at_close:
            self._at_close.append(action)

    def close(self) -> None:
        """Run the closing actions and end the loops."""
        if self._driven is not None and self._driven.take():
            self._driven.close(self._closing())
        if self._background is not None:
            self._background.close(self._closing())

    async def _closing(self) -> None:
        for action in self._at_close:
            await action()

    def _make_driven(self) -> DrivenLoop:
        with self._lock:
            self._driven = self._driven or DrivenLoop()
            return self._driven

    def _make_background(self) -> BackgroundLoop:
        with self._lock:
            self._background = self._background or BackgroundLoop()
            return self._background


class DrivenLoop:
    """An event loop that stands still but while a thread runs work in it."""

    def __init__(self) -> None:
        # Not uvloop: it makes a pair of sockets, for signals, every time that it is started.
        self._loop = asyncio.new_event_loop()
        self._busy = threading.Lock()

    def take(self) -> bool:
        """Reserve the loop for one `run` or `close`; False if another thread has it."""
        return self._busy.acquire(blocking=False)

    def run(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        """The result of `work`, in this thread. Raises what it raises, or TimeoutError."""
        try:
            task = self._loop.create_task(work)
            timer = self._loop.call_later(timeout + _GRACE_SECONDS, task.cancel)
            try:
                return self._loop.run_until_complete(task)
            except asyncio.CancelledError:
                raise TimeoutError(f"no result within {timeout:g} s") from None
            finally:
                timer.cancel()
                if not task.done():  # Ctrl-C
                    task.cancel()
                    self._loop.run_until_complete(asyncio.wait([task]))
        finally:
            self._busy.release()

    def close(self, closing: Coroutine[Any, Any, None]) -> None:
        """Run `closing`, then end the loop."""
        try:
            self.run(closing, _CLOSE_SECONDS)
        finally:
            self._loop.close()


class BackgroundLoop:
    """An event loop that runs in a thread of its own."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
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

    def close(self, closing: Coroutine[Any, Any, None]) -> None:
        """Run `closing`, then end the thread."""
        try:
            self.run(closing, _CLOSE_SECONDS)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CLOSE_SECONDS)


_lock = threading.Lock()
_loops: dict[int, SyncLoops] = {}


def sync_loops() -> SyncLoops:
    """This process's loops; a forked child gets its own, since threads don't survive a fork."""
    pid = os.getpid()
    with _lock:
        loops = _loops.get(pid)
        if loops is None:
            loops = _loops[pid] = SyncLoops()
            atexit.register(_close, pid)
    return loops


def _close(pid: int) -> None:
    if pid == os.getpid():
        _loops[pid].close()
