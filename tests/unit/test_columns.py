"""Columns of many users say the same as the fold's own reading of their rows, event by event."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.chunks import StoredEvent
from streams.columns import SequenceColumns
from streams.errors import UnknownFormat
from streams.events import Event
from streams.sequences import (
    HEAD,
    Row,
    SequenceView,
    UserState,
    ViewSet,
    log_position,
    sequence_events,
    stable_hash,
)

WIDE = SequenceView(name="a", event_types=("view", "like", "click"), max_length=10_000)


def rows_of(events: list[Event]) -> list[Row]:
    """The stored rows of a sequence that keeps everything."""
    views = ViewSet([WIDE])
    state = UserState("u", views)
    rows: dict[int, Row] = {}
    for offset, event in enumerate(sorted(events, key=lambda e: (e.event_time, e.event_id))):
        state.apply(event, log_position(1, offset), views)
        if (offset % 50 == 0 or offset == len(events) - 1) and (flush := state.flush()):
            for write in flush.writes:
                if write.value is not None:
                    rows[write.chunk] = Row("a", write.chunk, write.value, flush.position)
    return sorted((row for row in rows.values() if row.chunk != HEAD), key=lambda row: row.chunk)


def read(users: list[list[Row]], view: SequenceView) -> SequenceColumns:
    return SequenceColumns([[row.value for row in rows] for rows in users], view)


def events_of(columns: SequenceColumns, user: int) -> list[tuple[object, ...]]:
    start, end = columns.offsets[user], columns.offsets[user + 1]
    texts, places = columns.item_texts()
    return [
        (
            int(columns.event_time[at]),
            columns.item_ids[at],
            texts[places[at] + 1 : places[at + 1]].decode(),
            int(columns.item_hash[at]),
            columns.event_types[columns.event_type[at]],
            columns.surfaces[columns.surface[at]],
            None if math.isnan(columns.value[at]) else float(columns.value[at]),
        )
        for at in range(start, end)
    ]


def expected_of(stored: list[StoredEvent]) -> list[tuple[object, ...]]:
    return [
        (
            event.event_time,
            event.item_id,
            event.item_id,
            stable_hash(event.item_id),
            event.event_type,
            event.surface,
            None if math.isnan(event.value) else event.value,
        )
        for event in stored
    ]


def many_events(count: int, seed: int) -> list[Event]:
    draw = random.Random(seed)
    return [
        Event(
            f"e{number}",
            "u",
            draw.choice(["i1", "größer", "🙂", "x" * 200, "a\x00b", f"i{number}"]),
            draw.choice(["view", "like", "click"]),
            1_700_000_000_000 + number * 60_000,
            draw.choice([None, "feed", "reels"]),
            draw.choice([None, 0.5, -3.0]),
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("max_length", [1, 5, 128, 129, 300, 10_000])
@pytest.mark.parametrize("max_age_ms", [None, 1, 60_000, 100 * 60_000])
def test_columns_are_the_sequences(max_length: int, max_age_ms: int | None) -> None:
    view = SequenceView(
        name="a", event_types=WIDE.event_types, max_length=max_length, max_age_ms=max_age_ms
    )
    users = [rows_of(many_events(count, count)) for count in (0, 1, 127, 0, 128, 400, 3, 0)]
    columns = read(users, view)
    assert len(columns) == len(users)
    for user, rows in enumerate(users):
        expected = sequence_events(rows, view)
        assert events_of(columns, user) == expected_of(expected)
        newest = expected[-1].event_time if expected else -1
        assert columns.newest_time[user] == newest
    assert columns.num_events == len(columns.item_ids) == columns.offsets[-1]


@given(st.lists(st.integers(0, 300), max_size=6), st.integers(1, 200), st.integers(0, 300))
@settings(max_examples=25, deadline=None)
def test_any_lengths(counts: list[int], max_length: int, age: int) -> None:
    view = SequenceView(
        name="a",
        event_types=WIDE.event_types,
        max_length=max_length,
        max_age_ms=age * 60_000 or None,
    )
    users = [rows_of(many_events(count, 1)) for count in counts]
    columns = read(users, view)
    for user, rows in enumerate(users):
        assert events_of(columns, user) == expected_of(sequence_events(rows, view))


def test_nobody_is_no_column() -> None:
    columns = read([], WIDE)
    assert (len(columns), columns.num_events, columns.item_ids) == (0, 0, [])
    assert columns.event_time.dtype == np.int64
    assert columns.value.dtype == np.float32


@pytest.mark.parametrize("blob", [b"", b"\x02" + bytes(60), b"\x01\x00\x00\x00\xff\x00\x00\x00"])
def test_an_unreadable_chunk_is_an_error(blob: bytes) -> None:
    with pytest.raises(UnknownFormat):
        SequenceColumns([[blob]], WIDE)
