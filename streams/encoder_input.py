"""What an encoder gets of users' sequences: the jagged tensors of the Triton contract. Pure.

Sequences of several views are merged by time and cut to the encoder's length here, so that the
worker, a rebuild and a test feed it the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streams.columns import SequenceColumns
from streams.sequences import stable_hash

Ints = NDArray[np.int64]


class EncoderInput(NamedTuple):
    """B sequences with N events in all, oldest first within a sequence.

    offsets          (B + 1,) int64: sequence b is offsets[b]:offsets[b + 1]
    item_hash        (N,) int64
    event_type_hash  (N,) int64
    surface_hash     (N,) int64, 0 = absent
    event_time_ms    (N,) int64
    value            (N,) float32, NaN = absent
    """

    offsets: Ints
    item_hash: Ints
    event_type_hash: Ints
    surface_hash: Ints
    event_time_ms: Ints
    value: NDArray[np.float32]

    @property
    def num_sequences(self) -> int:
        """B."""
        return len(self.offsets) - 1

    @property
    def num_events(self) -> int:
        """N."""
        return int(self.offsets[-1])

    @property
    def lengths(self) -> Ints:
        """(B,) int64: events per sequence."""
        return np.diff(self.offsets)

    @property
    def newest_time(self) -> Ints:
        """(B,) int64, ms: the newest event's time; -1 for an empty sequence."""
        newest = np.full(self.num_sequences, -1, np.int64)
        some = self.lengths > 0
        newest[some] = self.event_time_ms[self.offsets[1:][some] - 1]
        return newest

    def part(self, first: int, end: int) -> EncoderInput:
        """The sequences `first:end`."""
        low, high = int(self.offsets[first]), int(self.offsets[end])
        return EncoderInput(
            self.offsets[first : end + 1] - low,
            self.item_hash[low:high],
            self.event_type_hash[low:high],
            self.surface_hash[low:high],
            self.event_time_ms[low:high],
            self.value[low:high],
        )

    def split(self, max_sequences: int, max_events: int) -> Iterator[tuple[int, int]]:
        """Bounds of consecutive parts within both limits; one longer sequence is a part alone."""
        first = 0
        while first < self.num_sequences:
            room = int(self.offsets[first]) + max_events
            end = int(np.searchsorted(self.offsets, room, side="right")) - 1
            end = min(max(end, first + 1), first + max_sequences, self.num_sequences)
            yield first, end
            first = end


def merge_sequences(views: Sequence[SequenceColumns], max_length: int) -> EncoderInput:
    """The newest `max_length` events of all views together, per user; users in their order.

    An event that lies in several views, which share its type, is there once.
    """
    num_users = len(views[0])
    user = np.concatenate([np.repeat(np.arange(num_users), np.diff(v.offsets)) for v in views])
    place = np.concatenate([np.full(v.num_events, n) for n, v in enumerate(views)])
    times = np.concatenate([view.event_time for view in views])
    items = np.concatenate([view.item_hash for view in views])
    kinds = np.concatenate([_hashes(view.event_types)[view.event_type] for view in views])
    surfaces = np.concatenate([_hashes(view.surfaces)[view.surface] for view in views])
    values = np.concatenate([view.value for view in views])
    order = np.lexsort((place, times, user))
    if len(views) > 1 and _share_types(views):
        order = order[_first_of_copies(user, times, items, kinds, place, order)]
    order = order[_newest(user[order], num_users, max_length)]
    counts = np.bincount(user[order], minlength=num_users)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    return EncoderInput(
        offsets, items[order], kinds[order], surfaces[order], times[order], values[order]
    )


def _hashes(texts: Sequence[str]) -> Ints:
    # One more, so that views without events have something to be indexed.
    return np.array([*(stable_hash(text) for text in texts), 0], np.int64)


def _share_types(views: Sequence[SequenceColumns]) -> bool:
    named = [kind for view in views for kind in set(view.event_types)]
    return len(set(named)) < len(named)


def _first_of_copies(
    user: Ints, times: Ints, items: Ints, kinds: Ints, place: Ints, order: Ints
) -> NDArray[np.bool_]:
    """Which places of `order` to keep: an event's copies lie in different views."""
    by_event = np.lexsort((place, kinds, items, times, user))
    same = np.ones(max(len(by_event) - 1, 0), bool)
    for column in (user, times, items, kinds):
        same &= column[by_event][1:] == column[by_event][:-1]
    same &= place[by_event][1:] != place[by_event][:-1]
    copies = np.zeros(len(by_event), bool)
    copies[by_event[1:]] = same
    return ~copies[order]


def _newest(users: Ints, num_users: int, max_length: int) -> NDArray[np.bool_]:
    """Which of the sorted events are among the newest `max_length` of their user."""
    counts = np.bincount(users, minlength=num_users)
    ends = np.repeat(np.cumsum(counts), counts)
    return np.arange(len(users)) >= ends - max_length
