"""The users that a sequence worker holds in memory, and one user's part of a batch. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

import msgspec

from streams.events import Event, Forget
from streams.representations import RefreshRequest, Trigger
from streams.sequences import Outcome, StoredUser, UserFlush, UserState, ViewSet
from streams.workers.intake import Entry, UserEntries

_encode_packed = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(StoredUser).decode
# Headers of a str and of bytes, the table's two entries for them.
_PACKED_OVERHEAD = 250

_APPLIED, _DUPLICATE = Outcome.APPLIED, Outcome.DUPLICATE


class UserCache:
    """Recently touched users (R6). Dropped with the assignment.

    The most recent ones are held ready for the fold, bounded by users and by events; those before
    them packed, as the store would answer them, bounded by bytes: a quarter of the memory where
    sequences are short, and a twentieth of the work that a read is. Only written-out states may be
    put in: what falls out at the end is read from the store again.
    """

    def __init__(self, max_users: int, max_events: int, max_packed_bytes: int) -> None:
        self._max_users = max_users
        self._max_events = max_events
        self._max_packed_bytes = max_packed_bytes
        self._states: OrderedDict[str, tuple[UserState, int]] = OrderedDict()
        self._packed: OrderedDict[str, bytes] = OrderedDict()
        self.num_events = 0
        self.packed_bytes = 0

    def __len__(self) -> int:
        return len(self._states) + len(self._packed)

    @property
    def num_packed(self) -> int:
        """Users that are held packed."""
        return len(self._packed)

    def get(self, user_id: str, views: ViewSet) -> UserState | None:
        """The user's state, None if it isn't held."""
        found = self._states.get(user_id)
        if found is not None:
            return found[0]
        packed = self._packed.pop(user_id, None)
        if packed is None:
            return None
        self.packed_bytes -= _packed_size(user_id, packed)
        return UserState(user_id, views, _unpack(packed))

    def put(self, state: UserState) -> None:
        """Hold a state as the most recent one."""
        user_id, count = state.user_id, state.num_events
        found = self._states.get(user_id)
        if found is not None:
            self.num_events -= found[1]
        self._states[user_id] = (state, count)
        self._states.move_to_end(user_id)
        self.num_events += count
        while len(self._states) > self._max_users or (
            self.num_events > self._max_events and len(self._states) > 1
        ):
            _, (evicted, num_events) = self._states.popitem(last=False)
            self.num_events -= num_events
            self._pack(evicted)

    def _pack(self, state: UserState) -> None:
        packed = _encode_packed(state.stored())
        self._packed[state.user_id] = packed
        self.packed_bytes += _packed_size(state.user_id, packed)
        while self.packed_bytes > self._max_packed_bytes:
            self.packed_bytes -= _packed_size(*self._packed.popitem(last=False))

    def clear(self) -> None:
        """Hold nobody."""
        self._states.clear()
        self._packed.clear()
        self.num_events = self.packed_bytes = 0


def _packed_size(user_id: str, packed: bytes) -> int:
    """Bytes of memory, with those of the objects and of their places in the table."""
    return len(packed) + len(user_id) + _PACKED_OVERHEAD


class Applied:
    """When the applied events of a batch happened and reached the broker, ms; in no order."""

    __slots__ = ("event_times", "ingested_at")

    def __init__(self) -> None:
        self.event_times: list[int] = []
        self.ingested_at: list[int] = []


class UserWork:
    """One user's entries of a batch on their way into the fold.

    `fold` stops where a late event needs stored chunks, and goes on when they are loaded.
    """

    __slots__ = (
        "_index",
        "entries",
        "flush",
        "newest",
        "num_applied",
        "oldest",
        "others",
        "refresh_ingested_at",
        "state",
        "trigger",
        "user_id",
    )

    def __init__(self, user: UserEntries) -> None:
        self.user_id = user.user_id
        self.entries = user.entries
        self.flush: UserFlush | None = None

    def begin(self, state: UserState) -> None:
        """Start with a state that reflects none of the entries yet; also over again."""
        self.state = state
        self._index = 0
        self.num_applied = 0
        self.others: list[Outcome] = []
        # By event time, of the entries that ask for a refresh.
        self.oldest: Entry | None = None
        self.newest: Entry | None = None
        self.refresh_ingested_at = 0
        self.trigger: Trigger = "event"

    def fold(
        self, views: ViewSet, refresh_types: frozenset[str], applied: Applied
    ) -> list[tuple[str, int]]:
        """Apply entries until the end, or until stored chunks are needed: answers their names.

        `refresh_types` are the event types whose views feed a representation.
        """
        state = self.state
        partial = state.is_partial
        apply = state.apply
        happened, ingested = applied.event_times.append, applied.ingested_at.append
        for index in range(self._index, len(self.entries)):
            entry = self.entries[index]
            record, position, ingested_at = entry
            if type(record) is Event:
                if partial and (needed := state.missing(record, views)):
                    self._index = index
                    return needed
                outcome = apply(record, position, views)
                if outcome is _APPLIED:
                    self.num_applied += 1
                    happened(record.event_time)
                    ingested(ingested_at)
                else:
                    self.others.append(outcome)
                    if outcome is not _DUPLICATE:
                        continue
                # A duplicate may be a replay of what was stored just before a crash, before its
                # refresh was asked for: to ask once more costs little, a lost request leaves a
                # stale vector.
                if record.event_type in refresh_types:
                    self._want_refresh(entry)
            else:
                if partial and (needed := state.unloaded()):
                    self._index = index
                    return needed
                self._forget(entry, views)
        self._index = len(self.entries)
        return []

    def _forget(self, entry: Entry, views: ViewSet) -> None:
        record, position, ingested_at = entry
        assert isinstance(record, Forget)
        # The broker's time, so that whoever folds the record writes the same mark.
        outcome = self.state.forget(record, position, ingested_at, views)
        if outcome is _APPLIED:
            self.num_applied += 1
        else:
            self.others.append(outcome)
        self._want_refresh(entry)
        self.trigger = "forget"

    def _want_refresh(self, entry: Entry) -> None:
        event_time = entry[0].event_time
        if self.oldest is None or self.newest is None:
            self.oldest = self.newest = entry
            self.refresh_ingested_at = entry[2]
        elif event_time < self.oldest[0].event_time:
            self.oldest = entry
        elif event_time >= self.newest[0].event_time:
            self.newest = entry

    def refresh_request(
        self, sources: Collection[str], folded_at: int, stored_at: int
    ) -> RefreshRequest | None:
        """What to ask for once the flush is stored; `sources` are the views that feed a
        representation, times are ms."""
        state, oldest, newest = self.state, self.oldest, self.newest
        if oldest is None or newest is None:
            return None
        position = max(
            state.stored_position(sources),
            -1 if self.flush is None else self.flush.position,
            state.mark_position if self.trigger == "forget" else -1,
        )
        return RefreshRequest(
            user_id=self.user_id,
            position=position,
            event_time=newest[0].event_time,
            oldest_event_time=oldest[0].event_time,
            ingested_at=self.refresh_ingested_at,
            folded_at=folded_at,
            stored_at=stored_at,
            trigger=self.trigger,
            event_id=newest[0].event_id,
        )
