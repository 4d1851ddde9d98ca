"""Sequences of many users as columns: stored chunks in, numpy arrays out.

What readers use: few Python steps per chunk, none per event. Pure: no I/O, no clock. The layout of
a chunk is described in `streams.chunks`.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from streams.chunks import EVENT_BYTES, FORMAT, HEADER, LENGTHS, SEPARATOR, texts_of
from streams.errors import UnknownFormat
from streams.sequences import SequenceView

_TIMES = HEADER.size  # where a chunk's column of times begins
_TIME = struct.Struct("<q")


class SequenceColumns:
    """Sequences of B users with N events in all, oldest first within a user.

    offsets     (B + 1,) int64: user b's events are offsets[b]:offsets[b + 1]
    event_time  (N,) int64, ms
    item_hash   (N,) int64, `stable_hash(item_id)`
    value       (N,) float32, NaN = absent
    event_type  (N,) uint16, places in `event_types`
    surface     (N,) uint16, places in `surfaces`; "" = absent
    """

    def __init__(self, users: Sequence[Sequence[bytes]], view: SequenceView) -> None:
        """`users`: the chunks of each, oldest first. Raises UnknownFormat."""
        parts = _Parts()
        offsets, newest = [0], []
        for chunks in users:
            newest.append(parts.take_user(chunks, view))
            offsets.append(parts.num_events)
        self.offsets: NDArray[np.int64] = np.array(offsets, np.int64)
        # (B,) int64, ms: the newest event's time; -1 for a user without events.
        self.newest_time: NDArray[np.int64] = np.array(newest, np.int64)
        # Joined into bytearrays: arrays over them can be written, which torch asks for.
        self.event_time: NDArray[np.int64] = np.frombuffer(_joined(parts.times), "<i8")
        self.item_hash: NDArray[np.int64] = np.frombuffer(_joined(parts.item_hashes), "<i8")
        self.value: NDArray[np.float32] = np.frombuffer(_joined(parts.values), "<f4")
        self.event_type = parts.types.codes(_joined(parts.type_codes), parts.counts)
        self.surface = parts.surfaces.codes(_joined(parts.surface_codes), parts.counts)
        self.event_types = tuple(parts.types.texts)
        self.surfaces = tuple(parts.surfaces.texts)
        self._texts = parts.texts  # FF text FF text …, of each chunk

    def __len__(self) -> int:
        return len(self.newest_time)

    @property
    def num_events(self) -> int:
        """N."""
        return len(self.event_time)

    @cached_property
    def item_ids(self) -> list[str]:
        """(N,) item ids; decoded when first asked for."""
        # An undecodable FF becomes the lone surrogate DCFF, which no stored text contains.
        texts = b"".join(self._texts)[1:]
        return texts.decode("utf-8", "surrogateescape").split("\udcff") if self._texts else []

    def item_texts(self) -> tuple[bytes, NDArray[np.intp]]:
        """The item ids in UTF-8, each behind an FF, and where each FF is; (N + 1,) places."""
        texts = b"".join([*self._texts, SEPARATOR])
        return texts, np.flatnonzero(np.frombuffer(texts, np.uint8) == SEPARATOR[0])


class _Parts:
    """The columns as they are cut out of the chunks."""

    __slots__ = (
        "counts",
        "item_hashes",
        "num_events",
        "surface_codes",
        "surfaces",
        "texts",
        "times",
        "type_codes",
        "types",
        "values",
    )

    def __init__(self) -> None:
        self.num_events = 0
        self.counts: list[int] = []
        self.times: list[bytes] = []
        self.item_hashes: list[bytes] = []
        self.values: list[bytes] = []
        self.type_codes: list[bytes] = []
        self.surface_codes: list[bytes] = []
        self.texts: list[bytes] = []
        self.types, self.surfaces = _Tables(), _Tables()

    def take_user(self, chunks: Sequence[bytes], view: SequenceView) -> int:
        """Take what belongs to the sequence (R1) out of a user's chunks, which hold up to one
        chunk more; answers the newest event's time, -1 if there is none."""
        counts = [_num_events(blob) for blob in chunks]
        excess = sum(counts) - view.max_length
        newest = -1
        for blob, count in zip(reversed(chunks), reversed(counts), strict=True):
            if count:
                (newest,) = _TIME.unpack_from(blob, _TIMES + 8 * (count - 1))
                break
        oldest = None if view.max_age_ms is None else newest - view.max_age_ms
        for blob, count in zip(chunks, counts, strict=True):
            skip = min(max(excess, 0), count)
            excess -= count
            if oldest is not None and skip < count:
                (event_time,) = _TIME.unpack_from(blob, _TIMES + 8 * skip)
                if event_time < oldest:
                    times = array("q", blob[_TIMES : _TIMES + 8 * count])
                    skip = bisect_left(times, oldest, skip)
            if skip < count:
                self._take(blob, count, skip)
        return newest

    def _take(self, blob: bytes, count: int, skip: int) -> None:
        """Cut a chunk into its columns, without the `skip` oldest of its events."""
        hashes = _TIMES + 8 * count
        values = hashes + 8 * count
        type_codes = values + 4 * count
        surface_codes = type_codes + 2 * count
        end = surface_codes + 2 * count
        self.times.append(blob[_TIMES + 8 * skip : hashes])
        self.item_hashes.append(blob[hashes + 8 * skip : values])
        self.values.append(blob[values + 4 * skip : type_codes])
        self.type_codes.append(blob[type_codes + 2 * skip : surface_codes])
        self.surface_codes.append(blob[surface_codes + 2 * skip : end])
        items, ids, types, surfaces = LENGTHS.unpack_from(blob, end)
        start = end + LENGTHS.size
        ends = start + items
        texts = blob[start : ends - 1]
        if skip:
            texts = SEPARATOR + texts.split(SEPARATOR, skip + 1)[-1]
        self.texts.append(texts)
        ends += ids
        self.types.use(blob[ends : ends + types])
        ends += types
        self.surfaces.use(blob[ends : ends + surfaces])
        self.counts.append(count - skip)
        self.num_events += count - skip


class _Tables:
    """Chunks' own tables of texts made one, with the places that their codes get in it."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._places: dict[str, int] = {}
        self._starts: dict[bytes, int] = {}
        self._flat: list[int] = []
        self._used: list[int] = []  # per chunk, where its table begins in `_flat`

    def use(self, table: bytes) -> None:
        """The next chunk has this table."""
        start = self._starts.get(table)
        if start is None:
            start = self._starts[table] = len(self._flat)
            for text in texts_of(table):
                place = self._places.setdefault(text, len(self.texts))
                if place == len(self.texts):
                    self.texts.append(text)
                self._flat.append(place)
        self._used.append(start)

    def codes(self, raw: bytearray, counts: list[int]) -> NDArray[np.uint16]:
        """Codes of all chunks as places in `texts`."""
        codes = np.frombuffer(raw, "<u2")
        if len(self._starts) <= 1:
            return codes  # one table: it is `texts` itself
        flat = np.array(self._flat, np.uint16)
        found: NDArray[np.uint16] = flat[codes + np.repeat(self._used, counts)]
        return found


def _num_events(blob: bytes) -> int:
    """The number of events of a chunk that is whole. Raises UnknownFormat."""
    if len(blob) < HEADER.size or blob[0] != FORMAT:
        found = blob[0] if blob else "nothing"
        raise UnknownFormat(f"a chunk has format {found}; this version reads {FORMAT}: upgrade it")
    count: int = HEADER.unpack_from(blob)[1]
    end = _TIMES + EVENT_BYTES * count
    start = end + LENGTHS.size
    if start > len(blob) or start + sum(LENGTHS.unpack_from(blob, end)) != len(blob):
        raise UnknownFormat(f"a chunk of {len(blob)} bytes is cut off or damaged")
    return count


def _joined(parts: list[bytes]) -> bytearray:
    return bytearray().join(parts)


def ranges(starts: NDArray[np.intp], lengths: NDArray[np.intp]) -> NDArray[np.intp]:
    """The numbers starts[i], starts[i] + 1, … lengths[i] many, for all i."""
    ends = np.cumsum(lengths)
    return np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(
        starts - np.concatenate(([0], ends[:-1])), lengths
    )
