"""Sequences of many users as columns: stored chunks in, numpy arrays out.

What readers use: few Python steps per chunk, none per event. Pure: no I/O, no clock. The layout of
a chunk is described in `streams.chunks`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from streams.chunks import FORMAT, split_texts, texts_of
from streams.errors import UnknownFormat
from streams.sequences import SequenceView

_HEADER = struct.Struct("<B3xI")
_SEPARATOR = 0xFF


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
        parts: list[list[bytes]] = [[] for _ in range(6)]
        types, surfaces = _Tables(), _Tables()
        ends: list[int] = []
        counts: list[int] = []
        total = 0
        for chunks in users:
            for blob in chunks:
                count = _take(blob, parts, types, surfaces)
                counts.append(count)
                total += count
            ends.append(total)
        times, hashes, values, type_codes, surface_codes, texts = parts
        self.offsets: NDArray[np.int64] = np.array([0, *ends], np.int64)
        self.event_time: NDArray[np.int64] = np.frombuffer(b"".join(times), "<i8")
        self.item_hash: NDArray[np.int64] = np.frombuffer(b"".join(hashes), "<i8")
        self.value: NDArray[np.float32] = np.frombuffer(b"".join(values), "<f4")
        self.event_type = types.codes(b"".join(type_codes), counts)
        self.surface = surfaces.codes(b"".join(surface_codes), counts)
        self.event_types = tuple(types.texts)
        self.surfaces = tuple(surfaces.texts)
        # FF text FF text … FF over all events; `_kept` names those of them that are in the columns.
        self._texts = b"".join([*texts, b"\xff"])
        self._kept: NDArray[np.intp] | None = None
        self._trim(view)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_events(self) -> int:
        """N."""
        return len(self.event_time)

    @cached_property
    def newest_time(self) -> NDArray[np.int64]:
        """(B,) int64, ms: the newest event's time; -1 for a user without events."""
        newest = np.full(len(self), -1, np.int64)
        some = self.offsets[1:] > self.offsets[:-1]
        newest[some] = self.event_time[self.offsets[1:][some] - 1]
        return newest

    @cached_property
    def item_ids(self) -> list[str]:
        """(N,) item ids; decoded when first asked for."""
        # An undecodable FF becomes the lone surrogate DCFF, which no stored text contains.
        texts = self._texts[1:-1].decode("utf-8", "surrogateescape").split("\udcff")
        if self._kept is None:
            return texts if self.num_events else []
        return [texts[index] for index in self._kept.tolist()]

    def item_texts(self) -> tuple[bytes, NDArray[np.intp]]:
        """The item ids in UTF-8, each behind an FF, and where each FF is; (N + 1,) places.

        Ids of one user lie side by side, since what is trimmed is always a user's oldest events.
        """
        places = np.flatnonzero(np.frombuffer(self._texts, np.uint8) == _SEPARATOR)
        if self._kept is None:
            return self._texts, places
        texts = np.frombuffer(self._texts, np.uint8)
        lengths = np.diff(places)[self._kept]
        kept = np.zeros(len(texts), bool)
        kept[ranges(places[:-1][self._kept], lengths)] = True
        kept[-1] = True
        ends = np.concatenate(([0], np.cumsum(lengths)))
        return texts[kept].tobytes(), ends

    def _trim(self, view: SequenceView) -> None:
        """Leave what belongs to the sequence (R1): chunks hold up to one chunk more."""
        sizes = np.diff(self.offsets)
        longest = int(sizes.max(initial=0))
        if longest <= view.max_length and view.max_age_ms is None:
            return
        place = np.arange(self.num_events)
        keep = place >= np.repeat(self.offsets[1:] - view.max_length, sizes)
        if view.max_age_ms is not None:
            keep &= self.event_time >= np.repeat(self.newest_time - view.max_age_ms, sizes)
        if keep.all():
            return
        kept_before = np.concatenate(([0], np.cumsum(keep)))
        self.offsets = kept_before[self.offsets].astype(np.int64)
        self._kept = np.flatnonzero(keep)
        for name in ("event_time", "item_hash", "value", "event_type", "surface"):
            setattr(self, name, getattr(self, name)[self._kept])


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

    def codes(self, raw: bytes, counts: list[int]) -> NDArray[np.uint16]:
        """Codes of all chunks as places in `texts`."""
        codes = np.frombuffer(raw, "<u2")
        if len(self._starts) <= 1:
            return codes  # one table: it is `texts` itself
        flat = np.array(self._flat, np.uint16)
        found: NDArray[np.uint16] = flat[codes + np.repeat(self._used, counts)]
        return found


def _take(blob: bytes, parts: list[list[bytes]], types: _Tables, surfaces: _Tables) -> int:
    """Cut a chunk into its columns; returns its number of events."""
    if len(blob) < _HEADER.size or blob[0] != FORMAT:
        found = blob[0] if blob else "nothing"
        raise UnknownFormat(f"a chunk has format {found}; this version reads {FORMAT}: upgrade it")
    count: int = _HEADER.unpack_from(blob)[1]
    hashes = 8 + 8 * count
    values = hashes + 8 * count
    type_codes = values + 4 * count
    surface_codes = type_codes + 2 * count
    end = surface_codes + 2 * count
    items, _, type_table, surface_table = split_texts(blob, end)
    times, hash_part, value_part, type_part, surface_part, texts = parts
    times.append(blob[8:hashes])
    hash_part.append(blob[hashes:values])
    value_part.append(blob[values:type_codes])
    type_part.append(blob[type_codes:surface_codes])
    surface_part.append(blob[surface_codes:end])
    texts.append(items[:-1])
    types.use(type_table)
    surfaces.use(surface_table)
    return count


def ranges(starts: NDArray[np.intp], lengths: NDArray[np.intp]) -> NDArray[np.intp]:
    """The numbers starts[i], starts[i] + 1, … lengths[i] many, for all i."""
    ends = np.cumsum(lengths)
    return np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(
        starts - np.concatenate(([0], ends[:-1])), lengths
    )
