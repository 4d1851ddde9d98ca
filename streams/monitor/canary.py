"""Canaries: made-up users whose events go the whole way and are read back through Feast.

They measure what no worker can: whether it works at all, also without traffic, and how long it
takes until a reader sees it, all by one clock. Canaries use a declared event type, since only
declared types go the whole way; their user ids begin with `CANARY_PREFIX`, which is what coverage
and training leave out (`streams.freshness.is_canary`).

One event per interval, users in turn, at most one event of a user on its way.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from streams.errors import HeadwaterError
from streams.events import Event
from streams.freshness import CANARY_PREFIX, FEATURES, percentile
from streams.kafka import home_partition
from streams.monitor.snapshot import Canary, State
from streams.producer import Delivered

_FIRST_PAUSE, _MAX_PAUSE = 0.02, 0.25
_KEPT = 1_000
_SHOWN_SECONDS = 3_600.0

Clock = Callable[[], float]


class SeenUser(msgspec.Struct, frozen=True):
    """What a read of a canary gave: the newest item, and the representation's as_of (ms).

    encoder and version are those of the representation; None where there is no value.
    """

    newest_item: str | None
    as_of: int | None


class Reader(Protocol):
    """Reads a user through Feast."""

    async def read(self, user_id: str) -> SeenUser:
        """Raises HeadwaterError."""
        ...


class Result(msgspec.Struct, frozen=True):
    """How one canary went, for one feature. `seconds` None: `problem` says why.

    `read_seconds` is how long after it was stored it was read at the latest: the time between the
    last read without it and the first with it.
    """

    at: float
    feature: str
    seconds: float | None
    read_seconds: float | None = None
    outcome: str = "read_back"  # read_back | lost | failed
    problem: str = ""


def canary_users(count: int, partitions: int) -> list[str]:
    """User ids at home in as many different partitions as there are, up to `count`."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < min(count, partitions):
        user_id = f"{CANARY_PREFIX}{number}"
        found.setdefault(home_partition(user_id.encode(), partitions), user_id)
        number += 1
    return list(found.values())


class CanaryResults:
    """The last results, and what they add up to."""

    def __init__(self) -> None:
        self._results: deque[Result] = deque(maxlen=_KEPT)
        self.num_sent = 0
        self.last_sent_at: float | None = None

    def add(self, result: Result) -> None:
        """One more."""
        self._results.append(result)

    def summary(self, now: float, num_users: int, features: Sequence[str], error: str) -> Canary:
        """What happened in the last hour. `error`: why none can be sent at all."""
        recent = [result for result in self._results if result.at > now - _SHOWN_SECONDS]
        delays = {
            feature: [r.seconds for r in recent if r.feature == feature and r.seconds is not None]
            for feature in FEATURES
        }
        whole = [result for result in recent if result.feature == features[-1]]
        back = [result for result in whole if result.outcome == "read_back"]
        state, problem = self._state(recent, features)
        last_back = max((r.at for r in recent if r.outcome == "read_back"), default=None)
        return Canary(
            enabled=True,
            state=State.UNKNOWN if error else state,
            num_users=num_users,
            num_sent=self.num_sent,
            num_read_back=len(back),
            num_lost=len(whole) - len(back),
            availability=len(back) / len(whole) if whole else None,
            last_sent_at=_ms(self.last_sent_at),
            last_read_back_at=_ms(last_back),
            sequence_p50_seconds=percentile(delays["sequence"], 0.5),
            sequence_p99_seconds=percentile(delays["sequence"], 0.99),
            representation_p50_seconds=percentile(delays["representation"], 0.5),
            representation_p99_seconds=percentile(delays["representation"], 0.99),
            problem=error or problem,
        )

    def _state(self, recent: Sequence[Result], features: Sequence[str]) -> tuple[State, str]:
        for feature in features:
            last = next((r for r in reversed(recent) if r.feature == feature), None)
            if last is None:
                return State.UNKNOWN, "no canary has come back yet"
            if last.outcome == "failed":
                return State.UNKNOWN, last.problem
            if last.outcome == "lost":
                return State.BEHIND, last.problem
        return State.OK, ""


class Canaries:
    """Sends canaries and reads them back; `on_result` and `on_delivered` hear how it goes."""

    def __init__(
        self,
        users: Sequence[str],
        event_type: str,
        features: Sequence[str],
        *,
        send: Callable[[Event], Awaitable[Delivered | None]],
        reader: Reader,
        now: Clock,
        interval_seconds: float,
        timeout_seconds: float,
        on_result: Callable[[Result], None],
        on_delivered: Callable[[Delivered, float, float], None],
        before_read: Callable[[], Awaitable[None]],
    ) -> None:
        self.users = users
        self.features = features
        self.results = CanaryResults()
        self._event_type = event_type
        self._send = send
        self._reader = reader
        self._now = now
        self._interval = interval_seconds
        self._timeout = timeout_seconds
        self._on_result = on_result
        self._on_delivered = on_delivered
        self._before_read = before_read
        self._flying: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            for user_id in itertools.cycle(self.users):
                task = self._flying.get(user_id)
                if task is None or task.done():
                    if task is not None:
                        task.result()  # a programming error shows itself
                    self._flying[user_id] = asyncio.create_task(self.fly(user_id))
                await asyncio.sleep(self._interval)
        finally:
            for task in self._flying.values():
                task.cancel()
            await asyncio.gather(*self._flying.values(), return_exceptions=True)

    async def fly(self, user_id: str) -> None:
        """One canary's way; what goes wrong is a result."""
        sent_at = self._now()
        event_id = uuid.uuid4().hex
        event = Event(event_id, user_id, f"{CANARY_PREFIX}{event_id[:12]}", self._event_type,
                      int(sent_at * 1000))  # fmt: skip
        try:
            async with asyncio.timeout(self._timeout):
                delivered = await self._send(event)
        except (HeadwaterError, TimeoutError) as error:
            problem = f"not sent: {error or 'no answer from Kafka in time'}"
            for feature in self.features:
                self._done(Result(self._now(), feature, None, outcome="failed", problem=problem))
            return
        delivered_at = self._now()
        self.results.num_sent += 1
        self.results.last_sent_at = sent_at
        if delivered is not None:
            self._on_delivered(delivered, sent_at, delivered_at)
        await self._read_back(event, sent_at)

    async def _read_back(self, event: Event, sent_at: float) -> None:
        waiting = list(self.features)
        deadline, pause, problem = sent_at + self._timeout, _FIRST_PAUSE, ""
        without_at = self._now()  # when the last read began that didn't show what is awaited
        while waiting and self._now() < deadline:
            await asyncio.sleep(pause)
            pause = min(pause * 1.3, _MAX_PAUSE)
            began_at = self._now()
            try:
                await self._before_read()
                async with asyncio.timeout(self._timeout):
                    seen = await self._reader.read(event.user_id)
            except (HeadwaterError, TimeoutError) as error:
                problem = f"reading through Feast failed: {error or 'no answer in time'}"
                continue
            problem, at = "", self._now()
            for feature in [f for f in waiting if _shows(f, seen, event)]:
                waiting.remove(feature)
                self._done(Result(at, feature, at - sent_at, at - without_at))
                pause = _FIRST_PAUSE  # the next one follows soon
            without_at = began_at
        for feature in waiting:
            text = problem or f"its {feature} wasn't read back within {self._timeout:g} s"
            self._done(Result(self._now(), feature, None, outcome="lost",
                              problem=f"{event.user_id}: {text}"))  # fmt: skip

    def _done(self, result: Result) -> None:
        self.results.add(result)
        self._on_result(result)


def _shows(feature: str, seen: SeenUser, event: Event) -> bool:
    if feature == "sequence":
        return seen.newest_item == event.item_id
    return seen.as_of is not None and seen.as_of >= event.event_time


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
