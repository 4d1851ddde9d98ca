"""What every sequence store does (R2): newest position wins, deletions hold, batches are whole."""

from __future__ import annotations

import random

import pytest

from streams.errors import HeadwaterError
from streams.events import Event, Forget
from streams.sequence_store import SequenceStore
from streams.sequences import (
    HEAD,
    Mark,
    Row,
    SequenceView,
    UserFlush,
    UserState,
    ViewSet,
    Write,
    log_position,
    sequence_events,
)
from streams.testing import InMemorySequenceStore

Store = SequenceStore | InMemorySequenceStore


def flush(user: str, position: int, *writes: Write, mark: Mark | None = None) -> UserFlush:
    return UserFlush(
        user, position, writes, None if mark is None else mark.encode(), position if mark else 0
    )


async def rows_of(store: Store, user: str) -> list[Row]:
    return sorted((await store.load_all(user)).rows)


async def test_unknown_user_is_empty(sequence_store: Store, unique: str) -> None:
    stored = await sequence_store.load(unique, ["a", "b"])
    assert (stored.rows, stored.mark, stored.mark_position) == ([], None, 0)
    assert await sequence_store.read_many([unique], ["a"]) == [[]]


async def test_the_larger_position_stays_whatever_arrives_last(
    sequence_store: Store, unique: str
) -> None:
    positions = [log_position(1, offset) for offset in (5, 9, 7, 9, 1)]
    for position in positions:
        write = Write("a", 1, f"value at {position}".encode())
        await sequence_store.write(flush(unique, position, write))
    best = log_position(1, 9)
    assert await rows_of(sequence_store, unique) == [Row("a", 1, f"value at {best}".encode(), best)]


async def test_a_new_epoch_beats_every_offset_of_the_old_one(
    sequence_store: Store, unique: str
) -> None:
    for position in (log_position(2, 0), log_position(1, 10**9)):
        await sequence_store.write(flush(unique, position, Write("a", 1, b"%d" % position)))
    assert [row.position for row in await rows_of(sequence_store, unique)] == [log_position(2, 0)]


async def test_a_deleted_row_stays_away_from_older_writes(
    sequence_store: Store, unique: str
) -> None:
    await sequence_store.write(flush(unique, 10, Write("a", 1, b"old"), Write("a", 2, b"old")))
    await sequence_store.write(flush(unique, 20, Write("a", 1, None), Write("a", 2, b"new")))
    await sequence_store.write(flush(unique, 15, Write("a", 1, b"zombie")))
    assert await rows_of(sequence_store, unique) == [Row("a", 2, b"new", 20)]


async def test_forgotten_rows_of_every_view_go_and_survivors_stay(
    sequence_store: Store, unique: str
) -> None:
    mark = Mark(event_time=1_000, event_id="f", forgotten_at=2_000)
    await sequence_store.write(flush(unique, 10, Write("a", 1, b"gone"), Write("b", 1, b"gone")))
    await sequence_store.write(flush(unique, 20, Write("a", 5, b"survivor"), mark=mark))
    await sequence_store.write(flush(unique, 19, Write("b", 1, b"zombie")))
    await sequence_store.write(flush(unique, 21, Write("b", 7, b"later")))
    stored = await sequence_store.load(unique, ["a", "b"])
    assert sorted(stored.rows) == [Row("a", 5, b"survivor", 20), Row("b", 7, b"later", 21)]
    assert stored.mark is not None
    assert Mark.decode(stored.mark) == mark
    assert stored.mark_position == 20


async def test_the_mark_is_found_when_nothing_else_is(sequence_store: Store, unique: str) -> None:
    mark = Mark(1_000, "f", 2_000)
    await sequence_store.write(flush(unique, 20, mark=mark))
    for stored in (
        await sequence_store.load(unique, ["a"]),
        await sequence_store.load_all(unique),
    ):
        assert (stored.rows, stored.mark, stored.mark_position) == ([], mark.encode(), 20)


async def test_a_repeated_flush_changes_nothing(sequence_store: Store, unique: str) -> None:
    batch = flush(unique, 20, Write("a", 5, b"kept"), mark=Mark(1_000, "f", 2_000))
    await sequence_store.write(batch)
    once = await sequence_store.load_all(unique)
    await sequence_store.write(batch)
    assert await sequence_store.load_all(unique) == once


@pytest.mark.parametrize("chunks", [1, 2, 3, 7])
async def test_load_has_mark_head_and_newest_chunk_of_every_view(
    sequence_store: Store, unique: str, chunks: int
) -> None:
    writes = []
    for view in ("a", "b", "c"):
        writes += [Write(view, key, f"{view}{key}".encode()) for key in range(1, chunks + 1)]
        if chunks > 1:
            writes.append(Write(view, HEAD, f"head of {view}".encode()))
    mark = Mark(0, "f", 0)
    await sequence_store.write(flush(unique, 20, *writes, mark=mark))
    stored = await sequence_store.load(unique, ["a", "b", "c"])
    loaded = {(row.view, row.chunk) for row in stored.rows}
    heads = {(view, HEAD) for view in "abc"} if chunks > 1 else set()
    assert loaded >= heads | {(view, chunks) for view in "abc"}
    assert stored.mark == mark.encode()
    assert len(stored.rows) == len(loaded)


async def test_load_is_not_misled_by_a_view_that_is_no_longer_declared(
    sequence_store: Store, unique: str
) -> None:
    old = [Write("aa", key, b"old") for key in range(9)]
    await sequence_store.write(flush(unique, 20, *old, Write("b", 4, b"b4"), Write("z", 4, b"z4")))
    stored = await sequence_store.load(unique, ["b", "z"])
    assert {row.value for row in stored.rows if row.view != "aa"} == {b"b4", b"z4"}


async def test_load_chunks_gives_the_named_ones(sequence_store: Store, unique: str) -> None:
    writes = [Write("a", key, b"%d" % key) for key in range(5)]
    await sequence_store.write(flush(unique, 20, *writes, Write("b", 1, b"other")))
    rows = await sequence_store.load_chunks(unique, "a", [1, 3, 99])
    assert rows == [Row("a", 3, b"3", 20), Row("a", 1, b"1", 20)]


async def test_read_many_keeps_the_order_of_the_users(sequence_store: Store, unique: str) -> None:
    users = [f"{unique}-{number}" for number in range(30)]
    for number, user in enumerate(users[::2]):
        write = Write("a", number, b"%d" % number)
        await sequence_store.write(
            flush(user, 1, write, Write("x", 1, b"-"), Write("a", HEAD, b"h"))
        )
    order = [*reversed(users), users[0], users[0]]
    found = await sequence_store.read_many(order, ["a", "b"])
    expected = [
        [Row("a", users.index(user) // 2, b"%d" % (users.index(user) // 2), 1)]
        if users.index(user) % 2 == 0
        else []
        for user in order
    ]
    assert found == expected


async def test_read_chunks_gives_the_same_by_view_oldest_first(
    sequence_store: Store, unique: str
) -> None:
    users = [f"{unique}-{number}" for number in range(3)]
    writes = [Write("a", key, b"a%d" % key) for key in (3, 1, 2)]
    head = Write("a", HEAD, b"head")
    await sequence_store.write(flush(users[0], 1, *writes, head, Write("b", 9, b"b9")))
    await sequence_store.write(flush(users[2], 1, Write("x", 1, b"not asked for")))
    assert await sequence_store.read_chunks(
        [users[1], users[0], users[2], users[0]], ["a", "b"]
    ) == [
        {},
        {"a": [b"a1", b"a2", b"a3"], "b": [b"b9"]},
        {},
        {"a": [b"a1", b"a2", b"a3"], "b": [b"b9"]},
    ]


@pytest.mark.parametrize("user", ["naïve ü", "a\x00b", "'; --", "🙂" * 64, " ", "x" * 256])
async def test_user_ids_of_any_content(sequence_store: Store, unique: str, user: str) -> None:
    user += unique[:8] if len(user) < 200 else ""
    await sequence_store.write(flush(user, 1, Write("a", 1, b"mine")))
    assert await rows_of(sequence_store, user) == [Row("a", 1, b"mine", 1)]
    assert await rows_of(sequence_store, user.split("\x00")[0] + "-other") == []


async def test_a_sequence_goes_through_the_store_and_back(
    sequence_store: Store, unique: str
) -> None:
    """Fold, flush, lose the memory, load, go on: as if it had never been away."""
    view = SequenceView(name="a", event_types=("view",), max_length=300)
    views = ViewSet([view])
    numbers = list(range(900))
    random.Random(7).shuffle(numbers)
    state = UserState(unique, views)
    for offset, number in enumerate(numbers):
        event = Event(f"e{number:04}", unique, f"i{number % 50}", "view", number * 1_000)
        for name, key in state.missing(event, views):
            for row in await sequence_store.load_chunks(unique, name, [key]):
                state.load_row(row, views)
        state.apply(event, log_position(1, offset), views)
        if offset % 13 == 0:
            changed = state.flush()
            if changed is not None:
                await sequence_store.write(changed)
        if offset % 101 == 0:
            state = UserState(unique, views, await sequence_store.load(unique, ["a"]))
            for again in range(offset // 13 * 13 + 1, offset + 1):
                late = Event(
                    f"e{numbers[again]:04}",
                    unique,
                    f"i{numbers[again] % 50}",
                    "view",
                    numbers[again] * 1_000,
                )
                for name, key in state.missing(late, views):
                    for row in await sequence_store.load_chunks(unique, name, [key]):
                        state.load_row(row, views)
                state.apply(late, log_position(1, again), views)
    changed = state.flush()
    if changed is not None:
        await sequence_store.write(changed)
    (rows,) = await sequence_store.read_many([unique], ["a"])
    assert not isinstance(rows, HeadwaterError)
    assert [e.event_id for e in sequence_events(rows, view)] == [
        f"e{n:04}" for n in range(600, 900)
    ]

    state = UserState(unique, views, await sequence_store.load_all(unique))
    forget = Forget(unique, "f", 890_000)
    state.forget(forget, log_position(1, 5_000), 0, views)
    changed = state.flush()
    assert changed is not None
    await sequence_store.write(changed)
    (rows,) = await sequence_store.read_many([unique], ["a"])
    assert not isinstance(rows, HeadwaterError)
    assert [e.event_time for e in sequence_events(rows, view)] == [
        n * 1_000 for n in range(891, 900)
    ]
