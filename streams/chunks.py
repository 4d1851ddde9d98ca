"""Columnar chunks: the stored form of a part of a sequence, and its in-memory form for the fold.

A chunk holds up to `CHUNK_EVENTS` events of one user and one view in (event_time, event_id) order.
Its columns are kept in the encoded form, so that appending is a few buffer appends and encoding is
one join, whatever the chunk's length. Pure: no I/O, no clock.

Blob, little endian; format byte 1:

    0   u8     format
    1   u8[3]  zero
    4   u32    n, number of events
    8   i64[n] event_time, ms
    .   i64[n] item_hash, `stable_hash(item_id)`
    .   f32[n] value, NaN = absent
    .   u16[n] event_type code, u16[n] surface code: places in the two tables below
    .   u32[4] byte lengths of the four columns that follow
    .   text columns item_id, event_id, then tables event_type, surface

A text column is FF text FF text FF … FF: the byte FF never occurs in UTF-8, so that a column
needs no lengths and one `find` tells whether an id is in it. Surface code 0 is "", no surface.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import xxhash

from streams.errors import UnknownFormat
from streams.events import Event

CHUNK_EVENTS = 128
FORMAT = 1
HEAD_FORMAT = 1
NAN = float("nan")

# The layout, for who cuts a chunk into columns by itself.
HEADER = struct.Struct("<B3xI")
LENGTHS = struct.Struct("<4I")
EVENT_BYTES = 8 + 8 + 4 + 2 + 2
SEPARATOR = b"\xff"

_NO_SURFACE = ("",)
_HEAD_ENTRY_BYTES = 8 + 4


_unsigned_hash: Callable[[bytes], int] = xxhash.xxh3_64_intdigest


def stable_hash(text: str | bytes) -> int:
    """Signed 64-bit hash of `text`, the same in every process and version (xxh3); "" is 0."""
    unsigned = _unsigned_hash(text if isinstance(text, bytes) else text.encode()) if text else 0
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned


def needle_of(event_id: str) -> bytes:
    """The form in which an event id lies in, and is looked for in, a chunk's column of ids."""
    return b"\xff%b\xff" % event_id.encode()


class StoredEvent(NamedTuple):
    """One event of a sequence as it is kept; `surface` "" and `value` NaN mean absent."""

    event_time: int
    event_id: str
    item_id: str
    event_type: str
    surface: str
    value: float


def as_event(stored: StoredEvent) -> Event:
    """The event again, as far as it is kept; its user is known from where it lies."""
    return Event(
        event_id=stored.event_id,
        user_id="",
        item_id=stored.item_id,
        event_type=stored.event_type,
        event_time=stored.event_time,
        surface=stored.surface or None,
        value=None if stored.value != stored.value else stored.value,
    )


class Chunk:
    """A mutable run of events in (event_time, event_id) order."""

    __slots__ = (
        "event_ids",
        "event_types",
        "item_hashes",
        "item_ids",
        "surface_codes",
        "surfaces",
        "times",
        "type_codes",
        "values",
    )

    def __init__(self) -> None:
        self.times = array("q")
        self.item_hashes = array("Q")  # the bits of `stable_hash`, without a sign to work out
        self.values = array("f")
        self.type_codes = array("H")
        self.surface_codes = array("H")
        self.item_ids = bytearray(SEPARATOR)
        self.event_ids = bytearray(SEPARATOR)
        # Tuples: most chunks share a few of them, and the garbage collector passes them over.
        self.event_types: tuple[str, ...] = ()
        self.surfaces: tuple[str, ...] = _NO_SURFACE

    def __len__(self) -> int:
        return len(self.times)

    def append(self, event: Event, needle: bytes, item: bytes) -> None:
        """Add an event that sorts after all others.

        `needle` is `needle_of(event.event_id)`, `item` the item id in UTF-8: made once for all
        views of an event.
        """
        self.times.append(event.event_time)
        self.item_hashes.append(_unsigned_hash(item) if item else 0)
        value = event.value
        self.values.append(NAN if value is None else value)
        event_type, surface = event.event_type, event.surface
        try:
            self.type_codes.append(self.event_types.index(event_type))
        except ValueError:
            self.type_codes.append(len(self.event_types))
            self.event_types += (event_type,)
        if surface is None:
            self.surface_codes.append(0)
        else:
            try:
                self.surface_codes.append(self.surfaces.index(surface))
            except ValueError:
                self.surface_codes.append(len(self.surfaces))
                self.surfaces += (surface,)
        texts = self.item_ids
        texts += item
        texts += SEPARATOR
        texts = self.event_ids
        texts += needle[1:]

    def insert(self, index: int, event: Event, needle: bytes, item: bytes) -> None:
        """Like `append`, at `index`; costs a rewrite of the two text columns."""
        self.append(event, needle, item)
        for column in self._columns():
            column.insert(index, column.pop())
        items, ids = _split(self.item_ids), _split(self.event_ids)
        items.insert(index, items.pop())
        ids.insert(index, ids.pop())
        self.item_ids, self.event_ids = _join(items), _join(ids)

    def remove(self, index: int) -> None:
        """Take the event at `index` out."""
        for column in self._columns():
            del column[index]
        items, ids = _split(self.item_ids), _split(self.event_ids)
        del items[index], ids[index]
        self.item_ids, self.event_ids = _join(items), _join(ids)

    def _columns(self) -> tuple[array[Any], ...]:
        """The columns of numbers, in the order of the blob."""
        return (
            self.times,
            self.item_hashes,
            self.values,
            self.type_codes,
            self.surface_codes,
        )

    def find(self, needle: bytes) -> int:
        """Index of the event with this id (see `needle_of`), or -1."""
        position = self.event_ids.find(needle)
        return -1 if position < 0 else self.event_ids.count(SEPARATOR, 0, position)

    def index_of(self, event_time: int, needle: bytes) -> int:
        """Where an event with this time and id belongs (UTF-8 keeps the order of code points)."""
        low = bisect_left(self.times, event_time)
        high = bisect_right(self.times, event_time, low)
        if low == high:
            return low
        return bisect_left(_split(self.event_ids), needle[1:-1], low, high)

    def ends_after(self, needle: bytes) -> bool:
        """Whether the newest event's id is greater than or equal to this one."""
        start = self.event_ids.rfind(SEPARATOR, 0, -1)
        return self.event_ids[start + 1 : -1] >= needle[1:-1]

    def split_point(self) -> int:
        """The index nearest to the middle that tears no millisecond apart; 0 if there is none."""
        times, count = self.times, len(self.times)
        middle = count // 2
        for distance in range(middle + 1):
            for index in (middle + distance, middle - distance):
                if 0 < index < count and times[index - 1] != times[index]:
                    return index
        return 0

    def take_upper(self, index: int) -> Chunk:
        """Move the events from `index` on into a new chunk."""
        events = list(self)
        upper, lower = Chunk(), Chunk()
        for place, event in enumerate(events):
            (lower if place < index else upper).append_stored(event)
        for name in Chunk.__slots__:
            setattr(self, name, getattr(lower, name))
        return upper

    def append_stored(self, event: StoredEvent) -> None:
        """Add an event that was stored before and sorts after all others."""
        self.append(as_event(event), needle_of(event.event_id), event.item_id.encode())

    def __iter__(self) -> Iterator[StoredEvent]:
        """The events, oldest first."""
        items, ids = _texts(self.item_ids), _texts(self.event_ids)
        types, surfaces = self.event_types, self.surfaces
        for index, event_time in enumerate(self.times):
            yield StoredEvent(
                event_time,
                ids[index],
                items[index],
                types[self.type_codes[index]],
                surfaces[self.surface_codes[index]],
                self.values[index],
            )

    def encode(self) -> bytes:
        """The blob described at the top."""
        types, surfaces = _table(self.event_types), _table(self.surfaces)
        texts = (self.item_ids, self.event_ids, types, surfaces)
        return b"".join(
            (
                HEADER.pack(FORMAT, len(self.times)),
                self.times,
                self.item_hashes,
                self.values,
                self.type_codes,
                self.surface_codes,
                LENGTHS.pack(*map(len, texts)),
                *texts,
            )
        )

    @classmethod
    def decode(cls, blob: bytes) -> Chunk:
        """Read a blob. Raises UnknownFormat for another version's format or a damaged blob."""
        count = _check_header(blob, FORMAT, "chunk")
        texts = split_texts(blob, HEADER.size + count * EVENT_BYTES)
        chunk = cls()
        view = memoryview(blob)
        offset = HEADER.size
        for column in chunk._columns():
            end = offset + count * column.itemsize
            column.frombytes(view[offset:end])
            offset = end
        chunk.item_ids, chunk.event_ids = bytearray(texts[0]), bytearray(texts[1])
        chunk.event_types, chunk.surfaces = _table_texts(texts[2]), _table_texts(texts[3])
        return chunk


def split_texts(blob: bytes, offset: int) -> tuple[bytes, bytes, bytes, bytes]:
    """The four text columns behind their lengths at `offset`: items, ids, types, surfaces.

    Raises UnknownFormat if they don't end where the blob ends.
    """
    start = offset + LENGTHS.size
    lengths = LENGTHS.unpack_from(blob, offset) if start <= len(blob) else ()
    if not lengths or start + sum(lengths) != len(blob):
        raise UnknownFormat(f"a chunk of {len(blob)} bytes is cut off or damaged")
    parts = []
    for length in lengths:
        parts.append(blob[start : start + length])
        start += length
    return parts[0], parts[1], parts[2], parts[3]


def texts_of(column: bytes | bytearray) -> list[str]:
    """The texts of a text column."""
    return _texts(column)


def encode_head(directory: list[tuple[int, int]]) -> bytes:
    """The head row: (chunk key, number of events) of every chunk but the newest, oldest first."""
    keys = array("q", [key for key, _ in directory])
    counts = array("I", [count for _, count in directory])
    return b"".join((HEADER.pack(HEAD_FORMAT, len(keys)), keys, counts))


def decode_head(blob: bytes) -> list[tuple[int, int]]:
    """Read a head row. Raises UnknownFormat."""
    count = _check_header(blob, HEAD_FORMAT, "head")
    if len(blob) != HEADER.size + count * _HEAD_ENTRY_BYTES:
        raise UnknownFormat(f"a head of {len(blob)} bytes is cut off or damaged")
    keys, counts = array("q"), array("I")
    middle = HEADER.size + count * keys.itemsize
    keys.frombytes(blob[HEADER.size : middle])
    counts.frombytes(blob[middle : middle + count * counts.itemsize])
    return list(zip(keys, counts, strict=True))


def _check_header(blob: bytes, known: int, what: str) -> int:
    if len(blob) < HEADER.size or blob[0] != known:
        found = blob[0] if blob else "nothing"
        raise UnknownFormat(f"a {what} has format {found}; this version reads {known}: upgrade it")
    count: int = HEADER.unpack_from(blob)[1]
    return count


@lru_cache(maxsize=4096)
def _table(texts: tuple[str, ...]) -> bytes:
    return bytes(_join([text.encode() for text in texts]))


@lru_cache(maxsize=4096)
def _table_texts(column: bytes) -> tuple[str, ...]:
    return tuple(_texts(column))


def _split(column: bytes | bytearray) -> list[bytes]:
    return bytes(column[1:-1]).split(SEPARATOR) if len(column) > 1 else []


def _join(texts: list[bytes]) -> bytearray:
    return bytearray(SEPARATOR + b"".join([text + SEPARATOR for text in texts]))


def _texts(column: bytes | bytearray) -> list[str]:
    return [text.decode() for text in _split(column)]
