"""The stream of the demo: what is sent when, with duplicates, disorder and broken records."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from infra.demo.movielens import moved
from streams.events import Event, encode_record

DUPLICATE_SHARE = 0.03
LATE_SHARE = 0.05
MAX_LATE_EVENTS = 100


class Sending(NamedTuple):
    """One record of the stream: when it goes out (seconds after the start), key and value."""

    at: float
    key: bytes | None
    value: bytes | None


def plan(later: list[Event], start_ms: int, pace: float, seed: int) -> list[Sending]:
    """The stream in the order of sending. Late events keep their time and go out later."""
    rng = random.Random(seed)
    sendings: list[Sending] = []
    for place, event in enumerate(later):
        timed = moved(event, start_ms)
        key, value = timed.user_id.encode(), encode_record(timed)
        delay = rng.randrange(1, MAX_LATE_EVENTS) if rng.random() < LATE_SHARE else 0
        sendings.append(Sending((place + delay) / pace, key, value))
        if rng.random() < DUPLICATE_SHARE:
            again = place + delay + rng.randrange(1, MAX_LATE_EVENTS)
            sendings.append(Sending(again / pace, key, value))
    length = len(later) / pace
    sendings += [
        Sending(rng.uniform(0, length), key, value) for key, value in broken_records(start_ms)
    ]
    return sorted(sendings, key=lambda sending: sending.at)


def broken_records(now_ms: int) -> Iterable[tuple[bytes | None, bytes | None]]:
    """(key, value) of records that are no events, one of each kind."""
    good = {
        "event_id": "broken",
        "user_id": "1",
        "item_id": "1",
        "event_type": "view",
        "event_time": now_ms,
    }
    yield b"1", b"this is not JSON"
    yield b"1", b'{"event_id": "\xff\xfe"}'
    yield b"1", None
    yield b"1", _encode({k: v for k, v in good.items() if k != "item_id"})
    yield b"1", _encode(good | {"event_time": "yesterday"})
    yield b"1", _encode(good | {"item_id": ""})
    yield b"1", _encode(good).replace(b"}", b',"value":NaN}')
    yield b"1", _encode(good | {"attributes": {"note": "x" * 900_000}})
    yield b"1", _encode(good | {"event_time": now_ms + 365 * 86_400_000})
    yield b"2", _encode(good)


def _encode(fields: dict[str, object]) -> bytes:
    return msgspec.json.encode(fields)
