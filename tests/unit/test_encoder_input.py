"""What the encoder gets: views merged by time, cut to the newest, split within limits."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streams.chunks import Chunk, StoredEvent
from streams.columns import SequenceColumns
from streams.encoder_input import EncoderInput, merge_sequences
from streams.sequences import SequenceView, stable_hash

Events = list[tuple[int, str, str]]  # (time, item, type)


def columns(users: list[Events], *types: str) -> SequenceColumns:
    view = SequenceView(name="v", event_types=types, max_length=1_000)
    blobs = []
    for events in users:
        chunk = Chunk()
        for number, (time, item, kind) in enumerate(sorted(events)):
            surface, value = ("feed", 0.5) if time % 2 else ("", float("nan"))
            chunk.append_stored(StoredEvent(time, f"e{number}", item, kind, surface, value))
        blobs.append([chunk.encode()] if events else [])
    return SequenceColumns(blobs, view)


def rows(batch: EncoderInput, user: int) -> list[tuple[int, int, int]]:
    part = batch.part(user, user + 1)
    return list(
        zip(
            part.event_time_ms.tolist(),
            part.item_hash.tolist(),
            part.event_type_hash.tolist(),
            strict=True,
        )
    )


def hashed(events: Events) -> list[tuple[int, int, int]]:
    return [(time, stable_hash(item), stable_hash(kind)) for time, item, kind in events]


def test_views_are_merged_by_time_and_cut_to_the_newest() -> None:
    seen = [[(1, "a", "view"), (5, "b", "view")], [], [(2, "c", "view")]]
    liked = [[(3, "d", "like")], [(4, "e", "like")], []]
    batch = merge_sequences([columns(seen, "view"), columns(liked, "like")], 2)
    assert batch.offsets.tolist() == [0, 2, 3, 4]
    assert rows(batch, 0) == hashed([(3, "d", "like"), (5, "b", "view")])
    assert rows(batch, 1) == hashed([(4, "e", "like")])
    assert batch.newest_time.tolist() == [5, 4, 2]
    assert batch.surface_hash.tolist() == [stable_hash("feed"), stable_hash("feed"), 0, 0]
    assert np.isnan(batch.value).tolist() == [False, False, True, True]


def test_an_event_of_two_views_is_there_once() -> None:
    both = [[(1, "a", "click"), (2, "b", "click")]]
    batch = merge_sequences([columns(both, "click"), columns(both, "click", "like")], 10)
    assert rows(batch, 0) == hashed(both[0])


def test_equal_events_of_one_view_stay_two() -> None:
    twice = [[(1, "a", "view"), (1, "a", "view")]]
    liked = [[(1, "a", "like")]]
    batch = merge_sequences([columns(twice, "view"), columns(liked, "like")], 10)
    assert batch.lengths.tolist() == [3]


def test_users_without_events_and_nobody_at_all() -> None:
    batch = merge_sequences([columns([[], []], "view")], 3)
    assert batch.offsets.tolist() == [0, 0, 0]
    assert batch.newest_time.tolist() == [-1, -1]
    assert merge_sequences([columns([], "view")], 3).num_sequences == 0


@given(
    lengths=st.lists(st.integers(0, 9), max_size=30),
    max_sequences=st.integers(1, 10),
    max_events=st.integers(1, 12),
)
def test_parts_cover_everything_within_the_limits(
    lengths: list[int], max_sequences: int, max_events: int
) -> None:
    users = [[(time, f"i{time}", "view") for time in range(length)] for length in lengths]
    batch = merge_sequences([columns(users, "view")], 100)
    end = 0
    for first, next_end in batch.split(max_sequences, max_events):
        assert first == end < next_end
        part = batch.part(first, next_end)
        assert part.num_sequences <= max_sequences
        assert part.num_events <= max_events or part.num_sequences == 1
        assert part.offsets[0] == 0
        assert part.lengths.tolist() == lengths[first:next_end]
        end = next_end
    assert end == len(lengths)
