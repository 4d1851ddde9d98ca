"""Sequences: what a view keeps of a user's events, and the fold that keeps it (R1, R2, R9).

The fold is pure: no clock, no logger, no store. One `UserState` per user; `apply` takes records in
log order, `flush` gives the rows to write. Stream worker, rebuild and training all use it.

How a view's sequence lies in chunks:
- A chunk's key is the lower bound of its time range: the event time of its first event when it was
  opened. Keys grow; the oldest chunk is keyed down when an older event arrives.
- Appending fills the newest chunk to `CHUNK_EVENTS`, then opens the next. A late event goes into
  the chunk whose range covers it, which splits if it gets too long. A millisecond is never split.
- The head row, key `HEAD`, lists the older chunks. It exists while there are any.
- Chunks that lie wholly outside the sequence are dropped; readers trim the rest (`trim`).
All this is a function of the log prefix, never of batch sizes, so two writers agree (R2).

Identity: events are distinct by `event_id`. Of two versions of one id, the newer event time stays,
as far as they meet in one chunk or in the newest one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from streams.chunks import (
    CHUNK_EVENTS,
    Chunk,
    StoredEvent,
    as_event,
    decode_head,
    encode_head,
    needle_of,
    stable_hash,
)
from streams.errors import UnknownFormat
from streams.events import Event, Forget

__all__ = [
    "HEAD",
    "Mark",
    "Outcome",
    "Row",
    "SequenceView",
    "StoredUser",
    "UserFlush",
    "UserState",
    "ViewSet",
    "Write",
    "log_position",
    "offset_of",
    "sequence_events",
    "stable_hash",
    "trim",
]

HEAD = 2**63 - 1
_NEVER = 2**63
FIRST_EPOCH = 1
MAX_EPOCH = 2**11 - 1
MAX_OFFSET = 2**44 - 1
MARK_FORMAT = 1


def log_position(epoch: int, offset: int, revision: int = 0) -> int:
    """The write timestamp of everything that derives from a record (R2)."""
    if not (0 <= epoch <= MAX_EPOCH and 0 <= offset <= MAX_OFFSET and 0 <= revision <= 255):
        raise ValueError(f"no log position for epoch {epoch}, offset {offset}, revision {revision}")
    return epoch << 52 | offset << 8 | revision


def offset_of(position: int) -> tuple[int, int]:
    """(epoch, offset) of a log position."""
    return position >> 52, (position >> 8) & MAX_OFFSET


class SequenceView(msgspec.Struct, frozen=True, kw_only=True):
    """A declared sequence view; `max_age_ms` None keeps events of any age."""

    name: str
    event_types: tuple[str, ...]
    max_length: int
    max_age_ms: int | None = None
    ttl_seconds: int | None = None


class Outcome(StrEnum):
    """What became of a record; together with dead letters these add up to all consumed (R4)."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"
    TOO_OLD = "too_old"
    FORGOTTEN = "forgotten"
    FILTERED = "filtered"


# Looking a member up in its class costs as much as a dict's look-up.
_APPLIED, _DUPLICATE, _TOO_OLD = Outcome.APPLIED, Outcome.DUPLICATE, Outcome.TOO_OLD


class Mark(msgspec.Struct, frozen=True):
    """The deletion mark of a user: events up to `event_time` (ms) never come back."""

    event_time: int
    event_id: str
    forgotten_at: int

    def encode(self) -> bytes:
        """Format byte, then JSON."""
        return bytes([MARK_FORMAT]) + msgspec.json.encode(self)

    @classmethod
    def decode(cls, blob: bytes) -> Mark:
        """Read a stored mark. Raises UnknownFormat."""
        if blob[:1] != bytes([MARK_FORMAT]):
            found = blob[:1].hex() or "nothing"
            raise UnknownFormat(f"a mark has format {found}; this version reads {MARK_FORMAT}")
        return msgspec.json.decode(blob[1:], type=cls)


class Row(NamedTuple):
    """A stored row of `user_sequence`; `position` is its write timestamp."""

    view: str
    chunk: int
    value: bytes
    position: int


class StoredUser(msgspec.Struct):
    """What the store knows of one user. `rows` may be a part: head and newest chunk per view."""

    rows: list[Row] = []
    mark: bytes | None = None
    mark_position: int = 0


class Write(msgspec.Struct, frozen=True, gc=False):
    """One row to write, or to delete if `value` is None."""

    view: str
    chunk: int
    value: bytes | None


class UserFlush(msgspec.Struct, frozen=True):
    """All that one user's records of a batch changed: one atomic single-partition batch.

    `writes` carry the timestamp `position`. With a `mark`, the partition is deleted at
    `mark_position - 1` and the mark written at `mark_position` first.
    """

    user_id: str
    position: int
    writes: tuple[Write, ...]
    mark: bytes | None = None
    mark_position: int = 0


class ViewSet:
    """The declared views, by event type."""

    def __init__(self, views: Iterable[SequenceView]) -> None:
        self.views: dict[str, SequenceView] = {view.name: view for view in views}
        self.names = tuple(self.views)
        by_type: dict[str, list[SequenceView]] = {}
        for view in self.views.values():
            for event_type in view.event_types:
                by_type.setdefault(event_type, []).append(view)
        self.by_type: Mapping[str, tuple[SequenceView, ...]] = {
            event_type: tuple(found) for event_type, found in by_type.items()
        }


class _ViewState:
    """One user's sequence in one view: the newest chunk, others on demand, the directory."""

    __slots__ = (
        "chunks",
        "directory",
        "dirty",
        "expiry",
        "newest_key",
        "older",
        "position",
        "slack",
        "view",
    )

    def __init__(self, view: SequenceView) -> None:
        self.view = view
        self.position = -1
        self.chunks: dict[int, Chunk] = {}
        self.newest_key = 0
        self.directory: list[tuple[int, int]] = []
        self.older = 0
        # Cheap conditions for `_drop_outside`: newest chunk's length, newest event time.
        self.slack = _NEVER
        self.expiry = _NEVER
        self.dirty: set[int] = set()

    # -- reading -------------------------------------------------------------------------------

    def covering(self, event_time: int) -> int:
        """Index in the directory of the chunk whose range covers the time; its length = newest."""
        directory = self.directory
        if not directory or event_time >= self.newest_key:
            return len(directory)
        index = len(directory) - 1
        while index > 0 and directory[index][0] > event_time:
            index -= 1
        return index

    def missing(self, event_time: int) -> int | None:
        """Key of the chunk that this event needs and that isn't loaded."""
        if not self.chunks or event_time >= self.newest_key or not self.directory:
            return None
        if self._surely_outside(event_time):
            return None
        key = self.directory[self.covering(event_time)][0]
        return None if key in self.chunks else key

    # -- folding -------------------------------------------------------------------------------

    def apply(self, event: Event, needle: bytes, item: bytes) -> Outcome:
        chunk = self.chunks.get(self.newest_key)
        event_time = event.event_time
        if chunk is None:
            chunk = self._open(event_time)
            chunk.append(event, needle, item)
            return _APPLIED
        newest_time = chunk.times[-1]
        if event_time < newest_time or (event_time == newest_time and chunk.ends_after(needle)):
            return self._insert(event, needle, chunk)
        outcome = _APPLIED
        if needle in chunk.event_ids:
            outcome = _DUPLICATE  # an older version of the same id gives way
            chunk.remove(chunk.find(needle))
        elif event_time > newest_time and len(chunk.times) >= CHUNK_EVENTS:
            self.directory.append((self.newest_key, len(chunk)))
            self.older += len(chunk)
            self.dirty.add(HEAD)
            chunk = self._open(event_time)
            self._directory_changed()
        chunk.append(event, needle, item)
        self.dirty.add(self.newest_key)
        length = len(chunk.times)
        if length > CHUNK_EVENTS:
            self._split(len(self.directory), self.newest_key, chunk)
        if length >= self.slack or event_time >= self.expiry:
            self._drop_outside()
        return outcome

    def _insert(self, event: Event, needle: bytes, newest: Chunk) -> Outcome:
        event_time = event.event_time
        if self._surely_outside(event_time):
            return _TOO_OLD
        place = self.covering(event_time)
        is_newest = place == len(self.directory)
        key = self.newest_key if is_newest else self.directory[place][0]
        chunk = self.chunks[key]
        found = chunk.find(needle)
        if found >= 0 and chunk.times[found] >= event_time:
            return _DUPLICATE
        if not is_newest and newest.find(needle) >= 0:
            return _DUPLICATE
        index = chunk.index_of(event_time, needle)
        if found < 0 and self._num_newer(place, len(chunk) - index) >= self.view.max_length:
            return _TOO_OLD
        if found >= 0:
            chunk.remove(found)
            index = chunk.index_of(event_time, needle)
        chunk.insert(index, event, needle, event.item_id.encode())
        self._changed(place, key, chunk, 1 if found < 0 else 0)
        return _APPLIED if found < 0 else _DUPLICATE

    def _surely_outside(self, event_time: int) -> bool:
        """Too old by age, or older than every kept event of a full sequence: no chunk needed."""
        newest = self.chunks[self.newest_key]
        max_age = self.view.max_age_ms
        if max_age is not None and event_time < newest.times[-1] - max_age:
            return True
        oldest_key = self.directory[0][0] if self.directory else newest.times[0]
        return event_time < oldest_key and self.older + len(newest) >= self.view.max_length

    def _num_newer(self, place: int, newer_in_chunk: int) -> int:
        """Number of kept events newer than a place in the chunk at `place` of the directory."""
        if place == len(self.directory):
            return newer_in_chunk
        behind = sum(count for _, count in self.directory[place + 1 :])
        return newer_in_chunk + behind + len(self.chunks[self.newest_key])

    def _changed(self, place: int, key: int, chunk: Chunk, added: int) -> None:
        """Bring keys, counts and lengths in line after a late event went into `chunk`."""
        if chunk.times[0] < key:  # only the oldest chunk's range is open below
            self.dirty.add(key)
            del self.chunks[key]
            key = chunk.times[0]
            self.chunks[key] = chunk
        self.dirty.add(key)
        if place == len(self.directory):
            self.newest_key = key
        else:
            self.directory[place] = (key, len(chunk))
            self.older += added
            self.dirty.add(HEAD)
        if len(chunk) > CHUNK_EVENTS:
            self._split(place, key, chunk)
        self._drop_outside()

    def _directory_changed(self) -> None:
        """Work out when the oldest chunk falls out."""
        if not self.directory:
            self.slack = self.expiry = _NEVER
            return
        max_age = self.view.max_age_ms
        next_key = self.directory[1][0] if len(self.directory) > 1 else self.newest_key
        self.slack = self.view.max_length + self.directory[0][1] - self.older
        self.expiry = _NEVER if max_age is None else next_key + max_age

    def _split(self, place: int, key: int, chunk: Chunk) -> None:
        index = chunk.split_point()
        if index == 0:
            return  # one millisecond: it stays one chunk
        upper = chunk.take_upper(index)
        upper_key = upper.times[0]
        self.chunks[upper_key] = upper
        self.dirty |= {key, upper_key, HEAD}
        if place == len(self.directory):
            self.directory.append((key, len(chunk)))
            self.older += len(chunk)
            self.newest_key = upper_key
        else:
            self.directory[place : place + 1] = [(key, len(chunk)), (upper_key, len(upper))]
        self._directory_changed()

    def _drop_outside(self) -> None:
        """Drop the oldest chunks while none of their events belongs to the sequence."""
        newest = self.chunks[self.newest_key]
        self._directory_changed()
        while len(newest) >= self.slack or newest.times[-1] >= self.expiry:
            key, count = self.directory.pop(0)
            self.older -= count
            self.chunks.pop(key, None)
            self.dirty |= {key, HEAD}
            self._directory_changed()

    def _open(self, key: int) -> Chunk:
        self.newest_key = key
        chunk = self.chunks[key] = Chunk()
        self.dirty.add(key)
        return chunk

    # -- rows ----------------------------------------------------------------------------------

    def load(self, row: Row) -> None:
        self.position = max(self.position, row.position)
        if row.chunk == HEAD:
            self.directory = decode_head(row.value)
            self.older = sum(count for _, count in self.directory)
            self._directory_changed()
            return
        if not self.chunks or row.chunk > self.newest_key:
            self.newest_key = row.chunk
        self.chunks[row.chunk] = Chunk.decode(row.value)
        self._directory_changed()

    def newest_rows(self) -> list[Row]:
        """Head and newest chunk as they are stored, once nothing is left to write."""
        if not self.chunks:
            return []
        name, newest = self.view.name, self.chunks[self.newest_key]
        rows = [Row(name, self.newest_key, newest.encode(), self.position)]
        if self.directory:
            rows.append(Row(name, HEAD, encode_head(self.directory), self.position))
        return rows

    def writes(self) -> list[Write]:
        """The rows that changed. Older chunks are let go: they are in the store from now on."""
        name = self.view.name
        if len(self.dirty) == 1 and self.newest_key in self.dirty:  # nearly always
            self.dirty.clear()
            newest = self.chunks[self.newest_key]
            return [Write(name, self.newest_key, newest.encode())]
        changed = [
            Write(name, key, self.chunks[key].encode() if key in self.chunks else None)
            for key in sorted(self.dirty - {HEAD})
        ]
        if HEAD in self.dirty:
            # Deleted even if we never wrote it: another writer may have, at a lower position.
            head = encode_head(self.directory) if self.directory else None
            changed.append(Write(name, HEAD, head))
        self.dirty.clear()
        if len(self.chunks) > 1:
            self.chunks = {self.newest_key: self.chunks[self.newest_key]}
        return changed


class UserState:
    """What the fold holds of one user. Take records in log order; flush; repeat.

    Before `apply`, load the chunks that `missing` names; before a `Forget`, load all of them.
    """

    __slots__ = ("_mark_written", "_views", "mark", "mark_position", "position", "user_id")

    def __init__(self, user_id: str, views: ViewSet, stored: StoredUser | None = None) -> None:
        self.user_id = user_id
        self._views: dict[str, _ViewState] = {}
        self.mark: Mark | None = None
        self.mark_position = -1
        self._mark_written = True
        self.position = 0  # of the newest record that changed something since the last flush
        if stored is not None:
            self._load(stored, views)

    def _load(self, stored: StoredUser, views: ViewSet) -> None:
        if stored.mark is not None:
            self.mark = Mark.decode(stored.mark)
            self.mark_position = stored.mark_position
        for row in stored.rows:
            self.load_row(row, views)

    def load_row(self, row: Row, views: ViewSet) -> None:
        """Take in a stored row; rows of views that aren't declared are left alone."""
        view = views.views.get(row.view)
        if view is None:
            return
        state = self._views.get(row.view)
        if state is None:
            state = self._views[row.view] = _ViewState(view)
        state.load(row)

    def missing(self, event: Event, views: ViewSet) -> list[tuple[str, int]]:
        """(view, chunk key) of the stored chunks that must be loaded before `apply(event)`."""
        needed = []
        for view in views.by_type.get(event.event_type, ()):
            state = self._views.get(view.name)
            if state is not None:
                key = state.missing(event.event_time)
                if key is not None:
                    needed.append((view.name, key))
        return needed

    @property
    def is_partial(self) -> bool:
        """Whether `missing` may name anything: some stored chunks aren't loaded."""
        for state in self._views.values():  # noqa: SIM110 `any` costs more than the loop
            if state.directory:
                return True
        return False

    def unloaded(self) -> list[tuple[str, int]]:
        """(view, chunk key) of every stored chunk that isn't loaded; a `Forget` needs them all."""
        return [
            (name, key)
            for name, state in self._views.items()
            for key, _ in state.directory
            if key not in state.chunks
        ]

    def apply(self, event: Event, position: int, views: ViewSet) -> Outcome:
        """Fold one event in. `position` is its log position; what is at or below the stored one
        of a view was folded before (a replay)."""
        wanted = views.by_type.get(event.event_type)
        if not wanted:
            return Outcome.FILTERED
        if self.mark is not None and event.event_time <= self.mark.event_time:
            return Outcome.FORGOTTEN
        needle = needle_of(event.event_id)
        item = event.item_id.encode()
        best = _TOO_OLD  # of several views: applied before duplicate before too old
        for view in wanted:
            state = self._views.get(view.name)
            if state is None:
                state = self._views[view.name] = _ViewState(view)
                state.position = self.mark_position
            if position <= state.position:
                outcome = _DUPLICATE
            else:
                outcome = state.apply(event, needle, item)
                if state.dirty:
                    self.position = position
            if outcome is _APPLIED or best is _TOO_OLD:
                best = outcome
        return best

    def forget(self, record: Forget, position: int, forgotten_at: int, views: ViewSet) -> Outcome:
        """Delete the user in log order: only events newer than the mark stay (R1)."""
        if position <= self.mark_position:
            return Outcome.DUPLICATE
        if self.mark is None or record.event_time > self.mark.event_time:
            self.mark = Mark(record.event_time, record.event_id, forgotten_at)
        self.mark_position = self.position = position
        self._mark_written = False
        for name, state in list(self._views.items()):
            self._views[name] = _survivors(state, self.mark, views.views[name], position)
        return Outcome.APPLIED

    def flush(self) -> UserFlush | None:
        """The rows that changed since the last flush, or None."""
        writes: list[Write] = []
        for state in self._views.values():
            if state.dirty:
                writes += state.writes()
                state.position = self.position
        if not writes and self._mark_written:
            return None
        mark = None if self._mark_written or self.mark is None else self.mark.encode()
        self._mark_written = True
        return UserFlush(
            self.user_id, self.position, tuple(writes), mark, self.mark_position if mark else 0
        )

    def stored(self) -> StoredUser:
        """What the store would answer for this user, once nothing is left to flush: a state made
        of it goes on as this one does."""
        return StoredUser(
            rows=[row for state in self._views.values() for row in state.newest_rows()],
            mark=None if self.mark is None else self.mark.encode(),
            mark_position=max(self.mark_position, 0),
        )

    @property
    def num_events(self) -> int:
        """Events held in memory, over all views."""
        count = 0
        for state in self._views.values():
            for chunk in state.chunks.values():
                count += len(chunk.times)
        return count

    def stored_position(self, names: Iterable[str]) -> int:
        """Log position of the newest record that the rows of these views reflect, as of the last
        flush; -1 if they have none."""
        newest = -1
        for name in names:
            state = self._views.get(name)
            if state is not None and state.position > newest:
                newest = state.position
        return newest

    def newest_time(self, view: str) -> int | None:
        """Event time (ms) of the newest event of a view, None if it is empty."""
        state = self._views.get(view)
        if state is None or not state.chunks:
            return None
        return state.chunks[state.newest_key].times[-1]


def _survivors(state: _ViewState, mark: Mark, view: SequenceView, position: int) -> _ViewState:
    fresh = _ViewState(view)
    fresh.position = position
    for key in sorted(state.chunks):
        for kept in state.chunks[key]:
            if kept.event_time > mark.event_time:
                fresh.apply(as_event(kept), needle_of(kept.event_id), kept.item_id.encode())
    return fresh


def trim(times: list[int], view: SequenceView) -> int:
    """Index of the first event (times in ms, ascending) that belongs to the sequence (R1)."""
    start = max(0, len(times) - view.max_length)
    if view.max_age_ms is not None and times:
        cutoff = times[-1] - view.max_age_ms
        while start < len(times) and times[start] < cutoff:
            start += 1
    return start


def sequence_events(rows: Iterable[Row], view: SequenceView) -> list[StoredEvent]:
    """The sequence, oldest first, out of all stored rows of one view of one user."""
    chunks = sorted((row.chunk, row.value) for row in rows if row.chunk != HEAD)
    events = [event for _, value in chunks for event in Chunk.decode(value)]
    return events[trim([event.event_time for event in events], view) :]
