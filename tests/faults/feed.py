"""A seeded stream of everything that a topic may bring, in any order, and what of it is bad.

Users are drawn by Zipf's law. Events come late, twice, shuffled, with equal times, of types that no
view takes; deletions and broken records lie between them.
"""

from __future__ import annotations

import json
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from streams.events import Event, Forget, encode_record

TYPES = ("impression", "view", "long_view", "click", "like", "share", "nobody_declared_this")
_WEIGHTS = (30, 20, 10, 10, 8, 4, 4)


class Record(NamedTuple):
    """A record as it is produced; `event` None if no worker may take it."""

    key: bytes | None
    value: bytes | None
    event: Event | Forget | None


def good(event: Event | Forget) -> Record:
    """The record of an event, keyed by its user."""
    return Record(event.user_id.encode(), encode_record(event), event)


class Feed:
    """An endless stream. `spread_ms`: how far back event times go; they are whole seconds, so that
    many are equal. Records before `start_ms` of the feed's birth are late."""

    def __init__(
        self,
        seed: int,
        *,
        prefix: str,
        users: int = 60,
        spread_ms: int = 600_000,
        share_bad: float = 0.015,
        share_forget: float = 0.002,
        types: tuple[str, ...] = TYPES,
        tick_ms: int = 1_000,
    ) -> None:
        self._chance = random.Random(seed)
        self._prefix = prefix
        self._users = [f"{prefix}-user-{number}" for number in range(users)]
        self._weights = [1 / (rank + 1) ** 1.1 for rank in range(users)]
        self._born = int(time.time() * 1000)
        self._spread_ms = spread_ms
        self._share_bad = share_bad
        self._share_forget = share_forget
        self._types = types
        self._type_weights = _WEIGHTS[: len(types)]
        self._tick_ms = tick_ms
        self._number = 0
        self._earlier: deque[Record] = deque(maxlen=5_000)

    def take(self, count: int) -> list[Record]:
        """The next records."""
        records = [self._next() for _ in range(count)]
        for start in range(0, count, 50):  # out of order, as several producers would be
            part = records[start : start + 50]
            self._chance.shuffle(part)
            records[start : start + 50] = part
        return records

    def _next(self) -> Record:
        chance = self._chance
        self._number += 1
        drawn = chance.random()
        if drawn < self._share_bad:
            return self._bad()
        if drawn < self._share_bad + self._share_forget:
            return good(Forget(self._user(), self._id(), self._time()))
        if drawn > 0.9 and self._earlier:
            return chance.choice(self._earlier)
        record = good(self._event())
        self._earlier.append(record)
        return record

    def _event(self) -> Event:
        chance = self._chance
        return Event(
            event_id=self._id(),
            user_id=self._user(),
            item_id=f"item-{chance.randrange(1_000)}",
            event_type=chance.choices(self._types, self._type_weights)[0],
            event_time=self._time(),
            surface=chance.choice((None, "feed", "reels")),
            value=chance.choice((None, 1.5, -2.25)),
        )

    def _id(self) -> str:
        # In no order: ties in time are broken by it.
        return f"{self._chance.randrange(10_000):04}-{self._prefix}-{self._number}"

    def _user(self) -> str:
        return self._chance.choices(self._users, self._weights)[0]

    def _time(self) -> int:
        """Whole ticks; most in the recent tenth of the spread, some far back."""
        reach = self._spread_ms if self._chance.random() < 0.2 else self._spread_ms // 10
        return self._born - self._chance.randrange(reach) // self._tick_ms * self._tick_ms

    def _bad(self) -> Record:
        kind = self._chance.choice(_KINDS)
        return Record(*kind(self._user(), f"bad-{self._id()}", self._born), None)


_Bad = Callable[[str, str, int], tuple[bytes | None, bytes | None]]


def _fields(user: str, name: str, now: int, **changed: Any) -> bytes:
    fields = {"event_id": name, "user_id": user, "item_id": "i", "event_type": "view"}
    return json.dumps({**fields, "event_time": now, **changed}).encode()


# Each holds its name, so that what arrives at the dead letters can be told apart.
_KINDS: tuple[_Bad, ...] = (
    lambda _, name, __: (name.encode(), None),
    lambda user, name, _: (user.encode(), b"\xff" + name.encode()),
    lambda user, name, _: (user.encode(), name.encode()),
    lambda user, name, _: (user.encode(), json.dumps({"event_id": name}).encode()),
    lambda user, name, now: (user.encode(), _fields(user, name, now, event_time="now")),
    lambda user, name, now: (user.encode(), _fields(user, name, now, schema=9)),
    lambda user, name, now: (b"another", _fields(user, name, now)),
    lambda user, name, now: (None, _fields(user, name, now)),
    lambda _, name, now: (b"", _fields("", name, now)),
    lambda user, name, now: (user.encode(), _fields(user, name, now + 86_400_000)),
)
