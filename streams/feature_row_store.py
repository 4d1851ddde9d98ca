"""The table `feature_row`: rows of ordinary feature views, one partition per view and entity.

    ((feature_view, entity_key), feature) -> value

Event time rules: a cell's write timestamp is its event time in microseconds, so that the newest
event time wins, whatever arrives last, and a write of some features leaves the others alone.
Of two writes with one event time the later one wins, as a correction should: Cassandra keeps the
larger value of two cells with equal timestamps, and a value starts with its arrival. Deciding
this in the value instead of in spare bits of the timestamp has no limit on how late or how close
together corrections come. All cells of a row share one arrival, so that no row is ever mixed.

Value, format byte 1:  u8 format, u64 arrival (µs, big endian), u32 writer, payload
Null is a payload like any other, and not a deletion.

A dropped view counts up its generation, which is a part of `feature_view`: what was written
before is out of sight at once, then deleted.
"""

from __future__ import annotations

import os
import secrets
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from cassandra.concurrent import execute_concurrent_with_args

from streams.cassandra import Session, Statement
from streams.errors import HeadwaterError, StoreRejected, UnknownFormat
from streams.schema_store import admin_session
from streams.settings import CassandraSettings

FORMAT = 1
_HEADER = struct.Struct(">BQI")
# Cassandra takes 64 KiB for the whole partition key; a key is also repeated in every index of it.
MAX_ENTITY_KEY_BYTES = 32 * 1024
_LAST_TIMESTAMP = 2**63 - 1

_UPSERT = Statement(
    "INSERT INTO feature_row (feature_view, entity_key, feature, value) "
    "VALUES (?, ?, ?, ?) USING TIMESTAMP ?"
)
_CELL = "feature, value, WRITETIME(value)"
_SELECT_ROW = Statement(
    f"SELECT {_CELL} FROM feature_row WHERE feature_view = ? AND entity_key = ?"
)
_SELECT_FEATURES = Statement(
    f"SELECT {_CELL} FROM feature_row WHERE feature_view = ? AND entity_key = ? AND feature IN ?"
)
_SELECT_GENERATION = Statement("SELECT generation FROM view_generation WHERE feature_view = ?")
_SET_GENERATION = Statement("INSERT INTO view_generation (feature_view, generation) VALUES (?, ?)")


class FeatureRow(NamedTuple):
    """One entity's features to write; `event_time` in µs, payloads by feature name."""

    feature_view: str
    entity_key: bytes
    features: Mapping[str, bytes]
    event_time: int


class FeatureCell(NamedTuple):
    """A stored feature; `event_time` in µs."""

    payload: bytes
    event_time: int


class Arrivals:
    """Headers of values, each larger than all before it in this process. Threads may share one.

    `clock` gives nanoseconds since the epoch; two writers differ by a random number.
    """

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0
        self._pid, self._writer = os.getpid(), secrets.randbits(32)

    def next(self) -> bytes:
        """The header of the next row's values."""
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._writer = os.getpid(), secrets.randbits(32)
            self._last = max(self._clock() // 1_000, self._last + 1)
            return _HEADER.pack(FORMAT, self._last, self._writer)


class FeatureRowStore:
    """Reads and writes rows. Methods raise StoreUnavailable or StoreRejected."""

    def __init__(self, session: Session, arrivals: Arrivals) -> None:
        self._session = session
        self._arrivals = arrivals

    async def write_many(self, rows: Sequence[FeatureRow]) -> list[HeadwaterError | None]:
        """Store rows, each as one atomic batch; of two for one entity the later one is newer."""
        for row in rows:
            check_entity_key(row.entity_key)
        batches = []
        for row in rows:
            arrival = self._arrivals.next()
            batches.append(
                [
                    (
                        _UPSERT,
                        (
                            row.feature_view,
                            row.entity_key,
                            feature,
                            arrival + payload,
                            row.event_time,
                        ),
                    )
                    for feature, payload in row.features.items()
                ]
            )
        return await self._session.execute_batches(batches)

    async def read_many(
        self,
        feature_view: str,
        entity_keys: Sequence[bytes],
        features: Sequence[str] | None = None,
        *,
        timeout: float | None = None,
    ) -> list[dict[str, FeatureCell] | HeadwaterError]:
        """Cells by feature name for many entities, in their order; all features by default."""
        for entity_key in entity_keys:
            check_entity_key(entity_key)
        if features is None:
            found = await self._session.execute_many(
                _SELECT_ROW, [(feature_view, key) for key in entity_keys], timeout=timeout
            )
        else:
            names = list(features)
            found = await self._session.execute_many(
                _SELECT_FEATURES,
                [(feature_view, key, names) for key in entity_keys],
                timeout=timeout,
            )
        return [
            rows
            if isinstance(rows, HeadwaterError)
            else {name: FeatureCell(payload_of(value), at) for name, value, at in rows}
            for rows in found
        ]

    async def generation(self, view_name: str) -> int:
        """How often a view was dropped."""
        rows = await self._session.execute(_SELECT_GENERATION, (view_name,))
        return rows[0][0] if rows else 0

    async def drop(self, view_name: str) -> None:
        """Put all rows of a view out of sight; `purge` deletes them."""
        generation = await self.generation(view_name) + 1
        await self._session.execute(_SET_GENERATION, (view_name, generation))


def view_name(project: str, view: str) -> str:
    """The name of a view among all projects; different pairs never give one name."""
    return f"{_escaped(project)}/{_escaped(view)}"


def stored_view(name: str, generation: int, version: int = 0) -> str:
    """The partition key's `feature_view` of a view's generation and schema version."""
    return name + (f"@v{version}" if version else "") + (f"#{generation}" if generation else "")


def check_entity_key(entity_key: bytes) -> None:
    """Raises StoreRejected for a key that is too long."""
    if len(entity_key) > MAX_ENTITY_KEY_BYTES:
        raise StoreRejected(
            f"an entity key of {len(entity_key)} bytes starting {entity_key[:48]!r} is too long; "
            f"at most {MAX_ENTITY_KEY_BYTES} are allowed"
        )


def payload_of(value: bytes) -> bytes:
    """What was written behind the header. Raises UnknownFormat."""
    if not value or value[0] != FORMAT:
        raise UnknownFormat(
            f"a feature has format {value[:1].hex() or 'nothing'}; this version reads {FORMAT}"
        )
    return value[_HEADER.size :]


def purge(settings: CassandraSettings) -> int:
    """Delete the rows of all dropped generations; returns how many entities had some.

    Reads the keys of the whole table, which is what dropping one of many views in one table
    costs. May be repeated, and finishes what an interrupted one left.
    """
    with admin_session(settings) as session:
        session.set_keyspace(settings.keyspace)
        rows = session.execute("SELECT feature_view, generation FROM view_generation")
        current = {row.feature_view: row.generation for row in rows}
        keys = session.execute("SELECT DISTINCT feature_view, entity_key FROM feature_row")
        dead = (
            (_LAST_TIMESTAMP, row.feature_view, row.entity_key)
            for row in keys
            if _is_dead(row.feature_view, current)
        )
        delete = session.prepare(
            "DELETE FROM feature_row USING TIMESTAMP ? WHERE feature_view = ? AND entity_key = ?"
        )
        outcomes = execute_concurrent_with_args(
            session, delete, dead, concurrency=64, results_generator=True
        )
        return sum(1 for _ in outcomes)


def _is_dead(stored: str, current: Mapping[str, int]) -> bool:
    base, _, generation = stored.partition("#")
    return int(generation or 0) < current.get(base.partition("@")[0], 0)


def _escaped(name: str) -> str:
    for character in "%/@#":
        name = name.replace(character, f"%{ord(character):02x}")
    return name
