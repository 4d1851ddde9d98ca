from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from encoders.data import (
    EventTable,
    jagged_batch,
    next_new_items,
    read_events,
    rows_of_windows,
    training_windows,
)
from streams.errors import ConfigError
from streams.sequences import stable_hash


def event(event_id: str, user: str, item: str, time: int, **more: Any) -> dict[str, Any]:
    fields = {"event_id": event_id, "user_id": user, "item_id": item, "event_time": time}
    return fields | {"event_type": "view"} | more


def table_of(tmp_path: Path, *events: dict[str, Any]) -> EventTable:
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in events))
    return read_events(path)


def items(table: EventTable, user: str) -> list[int]:
    place = table.user_ids.index(user)
    hashes: list[int] = table.item_hash_E[
        table.offsets_U1[place] : table.offsets_U1[place + 1]
    ].tolist()
    return hashes


def test_sequences_are_in_the_platforms_order(tmp_path: Path) -> None:
    table = table_of(
        tmp_path,
        event("c", "u", "third", 2),
        event("b", "u", "second", 2),
        event("x", "other", "lone", 5),
        event("z", "u", "first", 1),
    )
    assert table.user_ids == ("other", "u")
    assert items(table, "u") == [stable_hash(name) for name in ("first", "second", "third")]
    assert items(table, "other") == [stable_hash("lone")]


def test_an_event_counts_once_in_its_newest_version(tmp_path: Path) -> None:
    table = table_of(
        tmp_path,
        event("a", "u", "new", 9),
        event("a", "u", "old", 1),
        event("b", "u", "other", 5),
    )
    assert items(table, "u") == [stable_hash("other"), stable_hash("new")]


def test_the_monitors_canaries_are_left_out(tmp_path: Path) -> None:
    canary = event("b", "__canary_0", "__canary_item", 2)
    table = table_of(tmp_path, event("a", "alice", "item", 1), canary)
    assert table.user_ids == ("alice",)
    assert table.item_hash_E.tolist() == [stable_hash("item")]
    with pytest.raises(ConfigError, match="no events"):
        table_of(tmp_path, canary)


def test_what_is_optional_may_be_absent(tmp_path: Path) -> None:
    table = table_of(
        tmp_path, event("a", "u", "i", 1), event("b", "u", "j", 2, value=4.5, surface="feed")
    )
    assert table.surface_hash_E.tolist() == [0, stable_hash("feed")]
    np.testing.assert_array_equal(table.value_E, np.array([np.nan, 4.5], np.float32))


def test_parquet_and_json_lines_are_read_alike(events_file: Path, tmp_path: Path) -> None:
    rows = pyarrow.parquet.read_table(events_file).to_pylist()
    lines = table_of(tmp_path, *rows)
    parquet = read_events(events_file)
    assert lines.user_ids == parquet.user_ids
    np.testing.assert_array_equal(lines.item_hash_E, parquet.item_hash_E)
    np.testing.assert_array_equal(lines.value_E, parquet.value_E)


def test_files_that_are_no_events_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="doesn't exist"):
        read_events(tmp_path / "none.parquet")
    broken = tmp_path / "broken.jsonl"
    broken.write_text("{not json")
    with pytest.raises(ConfigError, match="can't be read"):
        read_events(broken)
    (tmp_path / "broken.parquet").write_text("PAR")
    with pytest.raises(ConfigError, match="can't be read"):
        read_events(tmp_path / "broken.parquet")
    foreign = tmp_path / "foreign.parquet"
    pyarrow.parquet.write_table(pa.table({"user_id": ["u"]}), foreign)
    with pytest.raises(ConfigError, match="no column event_id"):
        read_events(foreign)
    nulls = [event("a", "u", "i", 1), event("b", "u", "i", 1) | {"event_time": None}]
    with pytest.raises(ConfigError, match="doesn't hold events"):
        table_of(tmp_path, *nulls)


def test_before_keeps_users_and_cuts_events(events_file: Path) -> None:
    table = read_events(events_file)
    cut = table.time_at(0.5)
    early = table.before(cut)
    assert early.user_ids == table.user_ids
    assert 0.3 * len(table) < len(early) < 0.7 * len(table)
    assert int(early.event_time_ms_E.max()) < cut
    assert early.offsets_U1[-1] == len(early)


def test_targets_are_the_next_items_that_are_new(tmp_path: Path) -> None:
    table = table_of(
        tmp_path,
        event("1", "u", "a", 1, value=1.0),
        event("2", "u", "a", 2, value=2.0),
        event("3", "u", "b", 3),
        event("4", "u", "b", 4, value=3.0),
        event("5", "u", "a", 5),
        event("6", "u", "c", 6),
        event("7", "v", "a", 1, value=5.0),
    )
    targets = next_new_items(table)
    assert targets.event_E.tolist() == [2, 2, 5, 5, 5, -1, -1]
    expected = np.array([3, 3, *[np.nan] * 5], np.float32)
    np.testing.assert_array_equal(targets.value_E, expected)


def test_windows_cover_every_event_once(events_file: Path) -> None:
    table = read_events(events_file)
    rng = np.random.default_rng(0)
    first = training_windows(table, 4, rng)
    second = training_windows(table, 4, rng)
    for starts_W, ends_W in (first, second):
        assert int((ends_W - starts_W).max()) <= 4
        rows, offsets = rows_of_windows(starts_W, ends_W)
        assert sorted(rows.tolist()) == list(range(len(table)))
        users = table.event_users()[rows]
        assert all(len(set(part)) == 1 for part in np.split(users, offsets[1:-1]))
    assert set(first[0].tolist()) != set(second[0].tolist())


def test_batches_are_valid_input(events_file: Path) -> None:
    table = read_events(events_file)
    rows, offsets = rows_of_windows(np.array([0, 10]), np.array([5, 12]))
    batch = jagged_batch(table, rows, offsets)
    batch.check()
    assert batch.offsets_B1.tolist() == [0, 5, 7]
    assert batch.item_hash_N.tolist() == table.item_hash_E[[*range(5), 10, 11]].tolist()
