"""The columnar codec: what goes in comes out, and a damaged blob is told from a good one."""

from __future__ import annotations

import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.chunks import (
    Chunk,
    StoredEvent,
    as_event,
    decode_head,
    encode_head,
    needle_of,
    stable_hash,
    texts_of,
)
from streams.errors import UnknownFormat

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
SINGLES = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.just(math.nan)
EVENTS = st.builds(
    StoredEvent,
    event_time=st.integers(0, 2**53 - 1) | st.integers(0, 3),
    event_id=TEXTS | st.sampled_from(["a", "aa", "b"]),
    item_id=TEXTS,
    event_type=st.sampled_from(["click", "view"]) | TEXTS,
    surface=st.sampled_from(["", "feed"]) | TEXTS,
    value=SINGLES,
)
DISTINCT = st.lists(EVENTS, max_size=30, unique_by=lambda event: event.event_id)
HEADS = st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**32 - 1)))


def in_order(events: list[StoredEvent]) -> list[StoredEvent]:
    return sorted(events, key=lambda event: (event.event_time, event.event_id))


def text_of(events: list[StoredEvent] | Chunk) -> str:
    """For comparisons in which NaN equals NaN, and 0.0 doesn't equal -0.0."""
    return repr(list(events))


def chunk_of(events: list[StoredEvent]) -> Chunk:
    chunk = Chunk()
    for event in in_order(events):
        chunk.append_stored(event)
    return chunk


def insert(chunk: Chunk, stored: StoredEvent) -> None:
    """Put an event where it belongs, as the fold does with a late one."""
    needle, item = needle_of(stored.event_id), stored.item_id.encode()
    place = chunk.index_of(stored.event_time, needle)
    chunk.insert(place, as_event(stored), needle, item)


@given(DISTINCT)
def test_what_is_encoded_decodes_to_the_same_events_and_bytes(events: list[StoredEvent]) -> None:
    blob = chunk_of(events).encode()
    again = Chunk.decode(blob)
    assert text_of(again) == text_of(in_order(events))
    assert len(again) == len(events)
    assert again.encode() == blob


@given(DISTINCT, st.data())
def test_appends_and_inserts_in_any_order_give_the_same_events(
    events: list[StoredEvent], data: st.DataObject
) -> None:
    chunk = Chunk()
    for event in data.draw(st.permutations(events)):
        insert(chunk, event)
    assert text_of(chunk) == text_of(in_order(events))
    assert text_of(Chunk.decode(chunk.encode())) == text_of(in_order(events))


@given(DISTINCT, EVENTS)
def test_find_tells_the_index_of_every_id_and_of_no_other(
    events: list[StoredEvent], other: StoredEvent
) -> None:
    chunk = chunk_of(events)
    ids = [event.event_id for event in in_order(events)]
    assert [chunk.find(needle_of(event_id)) for event_id in ids] == list(range(len(ids)))
    if other.event_id not in ids:
        assert chunk.find(needle_of(other.event_id)) == -1


@given(DISTINCT.filter(bool), st.data())
def test_remove_takes_one_event_out(events: list[StoredEvent], data: st.DataObject) -> None:
    left = in_order(events)
    place = data.draw(st.integers(0, len(left) - 1))
    chunk = chunk_of(events)
    chunk.remove(place)
    del left[place]
    assert text_of(chunk) == text_of(left)
    assert text_of(Chunk.decode(chunk.encode())) == text_of(left)


@given(DISTINCT.filter(bool))
def test_a_split_keeps_all_events_and_tears_no_millisecond(events: list[StoredEvent]) -> None:
    lower = chunk_of(events)
    place = lower.split_point()
    assert (place == 0) == (len({event.event_time for event in events}) == 1)
    if place:
        upper = lower.take_upper(place)
        assert len(lower) == place
        assert lower.times[-1] < upper.times[0]
        assert text_of([*lower, *upper]) == text_of(in_order(events))


@given(DISTINCT.filter(bool), EVENTS)
def test_ends_after_compares_with_the_newest_id(
    events: list[StoredEvent], other: StoredEvent
) -> None:
    newest = in_order(events)[-1].event_id
    assert chunk_of(events).ends_after(needle_of(other.event_id)) == (newest >= other.event_id)


@given(DISTINCT)
def test_columns_hold_what_the_encoder_reads(events: list[StoredEvent]) -> None:
    chunk = chunk_of(events)
    items = [event.item_id for event in in_order(events)]
    assert texts_of(chunk.item_ids) == items
    hashes = array("q", chunk.item_hashes.tobytes())
    assert list(hashes) == [stable_hash(item) for item in items]


@given(DISTINCT, st.data())
def test_a_blob_of_another_length_is_refused(
    events: list[StoredEvent], data: st.DataObject
) -> None:
    blob = chunk_of(events).encode()
    shorter = blob[: data.draw(st.integers(0, len(blob) - 1))]
    longer = blob + data.draw(st.binary(min_size=1, max_size=9))
    for damaged in (shorter, longer):
        with pytest.raises(UnknownFormat):
            Chunk.decode(damaged)


@given(HEADS)
def test_a_head_decodes_to_what_was_encoded(directory: list[tuple[int, int]]) -> None:
    assert decode_head(encode_head(directory)) == directory


@given(HEADS, st.data())
def test_a_head_of_another_length_is_refused(
    directory: list[tuple[int, int]], data: st.DataObject
) -> None:
    blob = encode_head(directory)
    for damaged in (blob[: data.draw(st.integers(0, len(blob) - 1))], blob + b"\0"):
        with pytest.raises(UnknownFormat):
            decode_head(damaged)


@pytest.mark.parametrize("decode", [Chunk.decode, decode_head])
def test_a_format_of_another_version_is_named(decode: object) -> None:
    assert callable(decode)
    with pytest.raises(UnknownFormat, match="format 2; this version reads 1"):
        decode(b"\x02" + bytes(30))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", -1817709641818812897),
        ("item-1", -6274262587704068686),
        ("été", 4982960700548416085),
    ],
)
def test_the_hash_of_a_text_never_changes(text: str, expected: int) -> None:
    """The values lie in stored chunks and in trained embeddings."""
    assert stable_hash(text) == stable_hash(text.encode()) == expected
