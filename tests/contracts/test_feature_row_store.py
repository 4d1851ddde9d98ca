"""What every feature row store does: event time rules, then arrival; rows are whole."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from streams.errors import HeadwaterError, StoreRejected, UnknownFormat
from streams.feature_row_store import (
    MAX_ENTITY_KEY_BYTES,
    Arrivals,
    FeatureCell,
    FeatureRow,
    FeatureRowStore,
    payload_of,
    stored_view,
    view_name,
)
from streams.testing import InMemoryFeatureRowStore
from tests.contracts.conftest import ManualClock

Store = FeatureRowStore | InMemoryFeatureRowStore
KEY = b"\x00key\xff"
T = 1_700_000_000_000_000  # µs
HOUR_NS = 3_600 * 10**9


async def write(store: Store, view: str, time: int, **features: bytes) -> None:
    assert await store.write_many([FeatureRow(view, KEY, features, time)]) == [None]


async def read(store: Store, view: str) -> dict[str, FeatureCell]:
    (row,) = await store.read_many(view, [KEY])
    assert not isinstance(row, HeadwaterError)
    return row


async def test_the_newest_event_time_wins_in_any_order(
    feature_row_store: Store, unique: str
) -> None:
    for number, times in enumerate(itertools.permutations([T, T + 1, T + 2])):
        view = f"{unique}{number}"
        for time in times:
            await write(feature_row_store, view, time, a=b"%d" % time, b=b"-%d" % time)
        assert await read(feature_row_store, view) == {
            "a": FeatureCell(b"%d" % (T + 2), T + 2),
            "b": FeatureCell(b"-%d" % (T + 2), T + 2),
        }


@pytest.mark.parametrize("delay", [0, 1_000, HOUR_NS, 24 * 365 * HOUR_NS])
@pytest.mark.parametrize("gap", [0, 1_000, 500_000, HOUR_NS])
async def test_at_equal_event_time_the_later_write_wins(
    feature_row_store: Store, unique: str, clock: ManualClock, delay: int, gap: int
) -> None:
    """However late they come, and however close together, also when the clock stands still."""
    clock.now = T * 1_000 + delay
    values = [b"zz", b"aa", b"", b"mm", b"\xff\xff", b"\x00"]
    for value in values:
        await write(feature_row_store, unique, T, a=value, b=value)
        clock.now += gap
        assert await read(feature_row_store, unique) == {
            "a": FeatureCell(value, T),
            "b": FeatureCell(value, T),
        }


async def test_within_one_call_the_later_row_wins(feature_row_store: Store, unique: str) -> None:
    rows = [FeatureRow(unique, KEY, {"a": b"%d" % n, "b": b"%d" % -n}, T) for n in range(50)]
    assert await feature_row_store.write_many(rows) == [None] * 50
    assert await read(feature_row_store, unique) == {
        "a": FeatureCell(b"49", T),
        "b": FeatureCell(b"-49", T),
    }


async def test_a_clock_that_is_set_back_doesnt_bring_an_older_write_back(
    feature_row_store: Store, unique: str, clock: ManualClock
) -> None:
    await write(feature_row_store, unique, T, a=b"first")
    clock.now -= HOUR_NS
    await write(feature_row_store, unique, T, a=b"second")
    assert (await read(feature_row_store, unique))["a"].payload == b"second"


async def test_a_write_of_some_features_leaves_the_others(
    feature_row_store: Store, unique: str
) -> None:
    await write(feature_row_store, unique, T, a=b"a0", b=b"b0", c=b"c0")
    await write(feature_row_store, unique, T + 5, b=b"b5")
    await write(feature_row_store, unique, T + 3, b=b"b3", c=b"c3")
    assert await read(feature_row_store, unique) == {
        "a": FeatureCell(b"a0", T),
        "b": FeatureCell(b"b5", T + 5),
        "c": FeatureCell(b"c3", T + 3),
    }


async def test_null_is_a_value(feature_row_store: Store, unique: str) -> None:
    await write(feature_row_store, unique, T, a=b"value")
    await write(feature_row_store, unique, T + 1, a=b"")
    assert await read(feature_row_store, unique) == {"a": FeatureCell(b"", T + 1)}


@pytest.mark.parametrize("time", [-62_135_596_800_000_000, -1, 0, 1, 253_402_300_799_999_999])
async def test_any_event_time_of_a_datetime(
    feature_row_store: Store, unique: str, time: int
) -> None:
    await write(feature_row_store, unique, time, a=b"x")
    assert await read(feature_row_store, unique) == {"a": FeatureCell(b"x", time)}


async def test_reads_keep_order_repeats_and_gaps(feature_row_store: Store, unique: str) -> None:
    keys = [b"key-%d" % n for n in range(120)]
    rows = [FeatureRow(unique, key, {"a": key, "b": b"b"}, T) for key in keys]
    assert await feature_row_store.write_many(rows) == [None] * 120
    order = [keys[7], b"nobody", keys[0], keys[7], *keys]
    found = await feature_row_store.read_many(unique, order, ["a", "missing"])
    assert found == [{} if key == b"nobody" else {"a": FeatureCell(key, T)} for key in order]


async def test_concurrent_corrections_never_mix_rows(feature_row_store: Store, unique: str) -> None:
    """Rows are read whole while they are written, and one of them remains."""
    names = [f"f{n}" for n in range(20)]

    async def correct(number: int) -> None:
        for step in range(5):
            value = b"%d.%d" % (number, step)
            row = FeatureRow(unique, KEY, dict.fromkeys(names, value), T)
            assert await feature_row_store.write_many([row]) == [None]
            await asyncio.sleep(random.random() / 1_000)

    async def look() -> None:
        for _ in range(30):
            row = await read(feature_row_store, unique)
            assert len({cell.payload for cell in row.values()}) <= 1
            await asyncio.sleep(0)

    await asyncio.gather(*(correct(number) for number in range(8)), look(), look())
    row = await read(feature_row_store, unique)
    assert set(row) == set(names)
    assert len({cell.payload for cell in row.values()}) == 1


async def test_a_dropped_view_starts_empty_and_takes_older_event_times(
    feature_row_store: Store, unique: str
) -> None:
    name = view_name("project", unique)
    assert await feature_row_store.generation(name) == 0
    await write(feature_row_store, stored_view(name, 0), T, a=b"before")
    await feature_row_store.drop(name)
    generation = await feature_row_store.generation(name)
    assert generation == 1
    assert await read(feature_row_store, stored_view(name, generation)) == {}
    await write(feature_row_store, stored_view(name, generation), T - 5, a=b"after")
    assert await read(feature_row_store, stored_view(name, generation)) == {
        "a": FeatureCell(b"after", T - 5)
    }


async def test_a_key_that_is_too_long_is_refused(feature_row_store: Store, unique: str) -> None:
    longest, longer = b"k" * MAX_ENTITY_KEY_BYTES, b"k" * (MAX_ENTITY_KEY_BYTES + 1)
    row = FeatureRow(unique, longest, {"a": b"x"}, T)
    assert await feature_row_store.write_many([row]) == [None]
    with pytest.raises(StoreRejected, match="too long"):
        await feature_row_store.write_many([row._replace(entity_key=longer)])
    with pytest.raises(StoreRejected, match="too long"):
        await feature_row_store.read_many(unique, [KEY, longer])


def test_names_of_views_never_meet() -> None:
    pairs = [("a_b", "c"), ("a", "b_c"), ("a/b", "c"), ("a", "b/c"), ("a%2f", "b"), ("a", "%2fb")]
    names = [view_name(*pair) for pair in pairs]
    assert len(set(names)) == len(pairs)
    stored = {
        stored_view(view_name("p", view), generation, version)
        for view in ("v", "v@v2", "v#1", "v_v2")
        for generation in (0, 1, 2)
        for version in (0, 1, 2)
    }
    assert len(stored) == 4 * 3 * 3


def test_arrivals_only_grow() -> None:
    readings = iter([5_000, 5_000, 4_000, 6_000, 9_000_000])
    arrivals = Arrivals(lambda: next(readings))
    made = [arrivals.next() for _ in range(5)]
    assert made == sorted(set(made))


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(UnknownFormat, match="format 02"):
        payload_of(b"\x02rest")
