"""Sources: what the monitor asks, each on its own, and what is known when one doesn't answer.

A source that fails, or hangs, takes nothing else with it: its value is unknown, its error is
counted and shown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from streams.errors import HeadwaterError

log = logging.getLogger(__name__)

T = TypeVar("T")
Clock = Callable[[], float]  # seconds since the epoch

# How many intervals a value is good for, if nothing says that the source has failed since.
_GOOD_FOR = 3
_RETRY_SECONDS = 2.0


class SourceState(Generic[T]):
    """The last answer of a source, and how its attempts went. Times are seconds."""

    def __init__(self, name: str, interval_seconds: float) -> None:
        self.name = name
        self.interval_seconds = interval_seconds
        self.last_ok_at: float | None = None
        self.num_errors = 0
        self.duration_seconds: float | None = None
        self.error = "not asked yet"
        self._value: T | None = None

    def answered(self, value: T, at: float, duration_seconds: float) -> None:
        """It answered."""
        self._value, self.last_ok_at = value, at
        self.duration_seconds, self.error = duration_seconds, ""

    def failed(self, error: str, duration_seconds: float) -> None:
        """It didn't."""
        self.num_errors += 1
        self.duration_seconds, self.error = duration_seconds, error

    def value(self, now: float) -> T | None:
        """The last answer; None if the last attempt failed, or is too long ago: can't tell."""
        return None if self.problem(now) else self._value

    def problem(self, now: float) -> str:
        """Why there is no value; empty if there is one."""
        if self.error:
            return self.error
        age = now - (self.last_ok_at or 0.0)
        if age > _GOOD_FOR * self.interval_seconds + 5:
            return f"no answer for {age:.0f} s"
        return ""


class Poller(Generic[T]):
    """Asks one source again and again, with a deadline, until it is cancelled."""

    def __init__(
        self,
        state: SourceState[T],
        ask: Callable[[], Awaitable[T]],
        now: Clock,
        timeout_seconds: float,
        on_answer: Callable[[T], None] = lambda _: None,
    ) -> None:
        self._state = state
        self._ask = ask
        self._now = now
        self._timeout = timeout_seconds
        self._on_answer = on_answer

    async def run(self) -> None:
        """Never returns; a slow source is asked less often."""
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            await self.once()
            took = loop.time() - started
            # What failed is asked again soon: the next answer ends a "can't tell".
            every = self._state.interval_seconds
            every = min(every, _RETRY_SECONDS) if self._state.error else every
            await asyncio.sleep(max(every - took, took, 0.05))

    async def once(self) -> None:
        """One attempt; what goes wrong is in the state."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with asyncio.timeout(self._timeout):
                value = await self._ask()
            self._on_answer(value)
        except TimeoutError:
            self._state.failed(f"no answer within {self._timeout:g} s", loop.time() - started)
        except (HeadwaterError, OSError, ValueError) as error:
            text = str(error) or type(error).__name__
            self._state.failed(text, loop.time() - started)
        except Exception as error:
            log.exception("source %s", self._state.name)
            self._state.failed(f"{type(error).__name__}: {error}", loop.time() - started)
        else:
            self._state.answered(value, self._now(), loop.time() - started)
