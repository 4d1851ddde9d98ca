"""Input events of the benchmarks, made once and kept below `build/bench/inputs`.

Zipf users: the k-th most active of U users has a share of k ** -1.1. Event times grow by one
millisecond or so per event and lie in the past, so that nothing is future-dated.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from numpy.typing import NDArray

from infra.local.bootstrap import ROOT
from streams.kafka import REQUEST_SECONDS, admin_client
from streams.settings import Settings

BUILD = ROOT / "build" / "bench"
PARTITIONS = 8
EXPONENT = 1.1
FIRST_TIME = 1_760_000_000_000  # ms
_TYPES = np.array(["impression", "view", "click", "like", "conversion"])
_TYPE_SHARES = (0.6, 0.15, 0.15, 0.08, 0.02)
_SURFACES = np.array(["feed", "reels", "stories", "search"])
_ITEMS = 1_000_000


class Input(msgspec.Struct, frozen=True):
    """Which events: how many, of how many users; `name` is zipf or visits.

    With `visits`, each user comes with `per_visit` events in a row, and all users of a partition
    come before one comes again; `first_visit` is the first user's number. `first_time` is ms.
    """

    name: str
    events: int
    users: int
    per_visit: int = 4
    seed: int = 7
    first_time: int = FIRST_TIME
    first_visit: int = 0

    @property
    def path(self) -> Path:
        mark = zlib.crc32(msgspec.json.encode(self))
        return BUILD / "inputs" / f"{self.name}-{self.events}-{self.users}-{mark:08x}.txt"

    @property
    def last_time(self) -> int:
        """No event is later, ms."""
        return self.first_time + 2 * self.events


def make(chosen: Input) -> Path:
    """Lines of user id, tab, event in JSON. Made again only if it isn't there."""
    path = chosen.path
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        with draft.open("w", encoding="utf-8") as file:
            file.writelines(_lines(chosen))
        draft.replace(path)
    return path


def read(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of each record."""
    with path.open("rb") as file:
        for line in file:
            key, _, value = line.rstrip(b"\n").partition(b"\t")
            yield key, value


def fill_topic(settings: Settings, topic: str, chosen: Input) -> None:
    """A new topic with the input's records, as `EventProducer` would have keyed them."""
    create_topic(settings, topic)
    append(settings, topic, chosen)


def append(settings: Settings, topic: str, chosen: Input) -> None:
    """The input's records at the end of a topic."""
    producer = Producer(
        {
            "bootstrap.servers": settings.kafka.bootstrap_servers,
            "partitioner": "consistent",
            "linger.ms": 20,
            "batch.size": 262_144,
            "queue.buffering.max.messages": 200_000,
            "log_level": 2,
        }
    )
    for number, (key, value) in enumerate(read(make(chosen))):
        if number % 1_000 == 0:
            producer.poll(0)
            while len(producer) > 150_000:
                producer.poll(0.1)
        producer.produce(topic, value=value, key=key)
    if producer.flush(120):
        raise RuntimeError(f"topic {topic} can't be filled: the broker doesn't answer")


def create_topic(settings: Settings, topic: str) -> None:
    """A topic like the platform's own for events."""
    admin = admin_client(settings.kafka)
    wanted = NewTopic(topic, PARTITIONS, 1, config={"message.timestamp.type": "LogAppendTime"})
    admin.create_topics([wanted], request_timeout=REQUEST_SECONDS)[topic].result()


def delete_topics(settings: Settings, topics: list[str]) -> None:
    """Let go of their disk space."""
    admin = admin_client(settings.kafka)
    for future in admin.delete_topics(topics, request_timeout=REQUEST_SECONDS).values():
        future.result()


def zipf_users(events: int, users: int, random: np.random.Generator) -> NDArray[np.int64]:
    """(events,) int64, users' numbers; the most active one is 0."""
    shares = np.arange(1, users + 1, dtype=np.float64) ** -EXPONENT
    bounds = np.cumsum(shares) / shares.sum()
    return np.searchsorted(bounds, random.random(events)).astype(np.int64)


def _lines(chosen: Input) -> Iterator[str]:
    random = np.random.default_rng(chosen.seed)
    count = chosen.events
    if chosen.name == "zipf":
        users = zipf_users(count, chosen.users, random)
    else:
        visits = (chosen.first_visit + np.arange(count // chosen.per_visit + 1)) % chosen.users
        users = np.repeat(visits, chosen.per_visit)[:count]
    items = random.integers(_ITEMS, size=count)
    types = _TYPES[random.choice(len(_TYPES), size=count, p=_TYPE_SHARES)]
    surfaces = _SURFACES[random.integers(len(_SURFACES), size=count)]
    times = chosen.first_time + np.cumsum(random.integers(0, 3, size=count))
    columns = zip(
        users.tolist(),
        items.tolist(),
        types.tolist(),
        surfaces.tolist(),
        times.tolist(),
        strict=True,
    )
    for number, (user, item, event_type, surface, at) in enumerate(columns):
        value = f',"value":{item % 5000 / 100}' if event_type == "conversion" else ""
        yield (
            f'u{user:07d}\t{{"event_id":"{chosen.seed:02x}-{number:016x}","user_id":"u{user:07d}",'
            f'"item_id":"i{item:07d}","event_type":"{event_type}","event_time":{at},'
            f'"surface":"{surface}"{value}}}\n'
        )
