"""Events out of files: every format gives the same events, and a bad row is data, not a crash."""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.errors import ConfigError, InvalidRecord
from streams.event_files import FORMATS, ColumnMap, FileRecord, format_of, read_records
from streams.events import Event, decode_record

ROW: dict[str, Any] = {
    "event_id": "e1",
    "user_id": "007",
    "item_id": "été",
    "event_type": "click",
    "event_time": 1_700_000_000_123,
    "surface": "feed",
    "value": 2.5,
    "attributed_to": "e0",
}
EVENT = Event(**ROW)
FEED = {"surface": "feed"}


def as_jsonl(*rows: Mapping[str, Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def as_csv(*rows: Mapping[str, Any]) -> bytes:
    sink = io.BytesIO()
    pyarrow.csv.write_csv(pa.Table.from_pylist(list(rows)), sink)
    return sink.getvalue()


def as_parquet(*rows: Mapping[str, Any], **columns: pa.Array) -> bytes:
    table = pa.Table.from_pylist(list(rows))
    for name, column in columns.items():
        if name in table.column_names:
            table = table.drop_columns([name])
        table = table.append_column(name, column)
    sink = io.BytesIO()
    pyarrow.parquet.write_table(table, sink)
    return sink.getvalue()


WRITERS = {"jsonl": as_jsonl, "csv": as_csv, "parquet": as_parquet}


def read(
    data: bytes, file_format: str, column_map: ColumnMap | None = None, name: str = "file"
) -> list[FileRecord]:
    records = list(read_records(io.BytesIO(data), name, file_format, column_map or ColumnMap()))
    for record in records:
        check(record)
    return records


def check(record: FileRecord) -> None:
    """Without a problem it decodes and the key is the user; with one, no worker takes it."""
    try:
        decoded = decode_record(record.value)
    except InvalidRecord:
        assert record.problem is not None
    else:
        assert record.problem is None
        assert record.key == decoded.user_id.encode()


def only(records: list[FileRecord]) -> FileRecord:
    (record,) = records
    return record


def event_of(record: FileRecord) -> Event:
    assert record.problem is None, record.problem
    event = decode_record(record.value)
    assert isinstance(event, Event)
    return event


@pytest.mark.parametrize("file_format", FORMATS)
def test_every_format_gives_the_same_events(file_format: str) -> None:
    other = ROW | {"event_id": "e2", "user_id": "bob"}
    records = read(WRITERS[file_format](ROW, other), file_format)
    assert [event_of(record) for record in records] == [
        EVENT,
        msgspec.structs.replace(EVENT, event_id="e2", user_id="bob"),
    ]
    assert [record.number for record in records] == [1, 2]


@pytest.mark.parametrize("file_format", FORMATS)
def test_columns_are_renamed_and_constants_added(file_format: str) -> None:
    renamed = {"who": "007", "what": "été", "when": 1_700_000_000, "id": "e1", "score": 2.5}
    column_map = ColumnMap(
        columns={
            "user_id": "who",
            "item_id": "what",
            "event_time": "when",
            "event_id": "id",
            "value": "score",
        },
        constants={"event_type": "click", "surface": "feed"},
        time_unit="s",
    )
    record = only(read(WRITERS[file_format](renamed), file_format, column_map))
    assert event_of(record) == Event(
        "e1", "007", "été", "click", 1_700_000_000_000, surface="feed", value=2.5
    )


def test_constants_win_over_columns() -> None:
    record = only(read(as_csv(ROW), "csv", ColumnMap(constants={"event_type": "view"})))
    assert event_of(record).event_type == "view"


def test_json_lines_go_out_byte_by_byte() -> None:
    lines = as_jsonl(
        ROW | {"later": {"field": 1}}, {"forget": "x", "event_id": "f", "event_time": 1}
    )
    assert [record.value for record in read(lines, "jsonl")] == lines.splitlines()
    assert [record.key for record in read(lines, "jsonl")] == [b"007", b"x"]


def test_empty_lines_are_skipped_and_counted() -> None:
    data = b"\n  \r\n" + as_jsonl(ROW).replace(b"\n", b"\r\n") + b"\n"
    assert only(read(data, "jsonl")).number == 3
    assert only(read(data, "jsonl", ColumnMap(constants=FEED))).number == 3


@pytest.mark.parametrize("column_map", [ColumnMap(), ColumnMap(constants=FEED)])
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"not json", "not_json"),
        (b"\xff", "not_"),
        (b'"text"', "wrong_type"),
        (b"[" * 100_000, ""),
        (b'{"user_id": "u"}', "missing_field"),
        (json.dumps(ROW | {"event_time": "soon"}).encode(), "wrong_type"),
        (json.dumps(ROW | {"event_time": True}).encode(), "wrong_type"),
        (json.dumps(ROW | {"event_time": float("inf")}).encode(), ""),
        (json.dumps(ROW | {"user_id": ""}).encode(), "invalid_value"),
        (json.dumps(ROW | {"user_id": True}).encode(), "wrong_type"),
        (json.dumps(ROW | {"user_id": "\ud800"}).encode(), ""),
        (json.dumps(ROW | {"attributes": {"a": float("nan")}}).encode(), ""),
    ],
)
def test_a_bad_line_comes_with_its_reason_between_good_ones(
    line: bytes, reason: str, column_map: ColumnMap
) -> None:
    before, bad, after = read(as_jsonl(ROW) + line + b"\n" + as_jsonl(ROW), "jsonl", column_map)
    assert event_of(before) == event_of(after) == EVENT
    assert bad.problem is not None
    assert bad.problem.startswith(reason)


def test_a_broken_record_keeps_its_place_by_its_user() -> None:
    broken = ROW | {"event_time": "soon"}
    assert only(read(as_jsonl(broken), "jsonl")).key == b"007"
    assert only(read(as_csv(broken), "csv")).key == b"007"
    assert only(read(b"{", "jsonl")).key is None


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("1700000000123", "ms", 1_700_000_000_123),
        ("1700000000123.0", "ms", 1_700_000_000_123),
        ("1.7e12", "ms", 1_700_000_000_000),
        ("1700000000", "s", 1_700_000_000_000),
        ("1700000000.123", "s", 1_700_000_000_123),
        ("1700000000123456", "us", 1_700_000_000_123),
        ("1700000000123456789", "ns", 1_700_000_000_123),
        ("2023-11-14T22:13:20Z", "ms", 1_700_000_000_000),
        ("2023-11-14T22:13:20.123", "s", 1_700_000_000_123),
        ("2023-11-15T00:13:20+02:00", "ms", 1_700_000_000_000),
        ("2023-11-14", "ms", 1_699_920_000_000),
    ],
)
def test_times_are_numbers_of_a_unit_or_iso_8601(text: str, unit: str, expected: int) -> None:
    record = only(read(as_csv(ROW | {"event_time": text}), "csv", ColumnMap(time_unit=unit)))
    assert event_of(record).event_time == expected


@pytest.mark.parametrize("text", ["inf", "-inf", "1e400", "nan", "soon", "2023-13-01"])
@pytest.mark.parametrize("unit", ["s", "ms", "ns"])
def test_what_is_no_time_is_a_problem(text: str, unit: str) -> None:
    record = only(read(as_csv(ROW | {"event_time": text}), "csv", ColumnMap(time_unit=unit)))
    assert record.problem is not None
    assert record.problem.startswith("wrong_type")


@pytest.mark.parametrize(
    "column",
    [
        pa.array([datetime.datetime(2023, 11, 14, 22, 13, 20)], pa.timestamp("ms")),  # noqa: DTZ001 - a naive column
        pa.array([1_700_000_000_000_000_123], pa.timestamp("ns")),
        pa.array([1_700_000_000], pa.timestamp("s", tz="Asia/Tokyo")),
        pa.array([1_700_000_000_000.0], pa.float64()),
        pa.array([1_700_000_000_000], pa.int64()),
    ],
)
def test_parquet_times_of_any_type(column: pa.Array) -> None:
    record = only(read(as_parquet(ROW, event_time=column), "parquet"))
    assert event_of(record).event_time == 1_700_000_000_000


@pytest.mark.parametrize(
    ("field", "column", "expected"),
    [
        ("user_id", pa.array([7]), "7"),
        ("user_id", pa.array([b"x"]), "x"),
        ("value", pa.array([float("nan")]), None),
        ("value", pa.array([3], pa.int8()), 3.0),
        ("surface", pa.array([None], pa.string()), None),
        ("surface", pa.array(["feed"]).dictionary_encode(), "feed"),
        ("attributes", pa.array([{"a": 1.5, "b": None}]), {"a": 1.5}),
        ("attributes", pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), {"a": 1}),
    ],
)
def test_parquet_columns_of_other_types(field: str, column: pa.Array, expected: object) -> None:
    record = only(read(as_parquet(ROW, **{field: column}), "parquet"))
    assert getattr(event_of(record), field) == expected


@pytest.mark.parametrize(
    ("field", "column"),
    [
        ("user_id", pa.array([b"\xff"])),
        ("user_id", pa.array([1.5])),
        ("event_time", pa.array([-1])),
        ("attributes", pa.array([{"at": datetime.date(2024, 1, 1)}])),
        ("attributes", pa.array([[1, 2]])),
    ],
)
def test_parquet_values_that_are_no_event(field: str, column: pa.Array) -> None:
    assert only(read(as_parquet(ROW, **{field: column}), "parquet")).problem is not None


def test_csv_attributes_are_json() -> None:
    good, bad = read(as_csv(ROW | {"attributes": '{"a": 1}'}, ROW | {"attributes": "a=1"}), "csv")
    assert event_of(good).attributes == {"a": 1}
    assert bad.problem is not None


def test_empty_cells_are_absent() -> None:
    record = only(read(as_csv(ROW | {"surface": "", "value": ""}), "csv"))
    assert (event_of(record).surface, event_of(record).value) == (None, None)


def test_quoted_cells_hold_commas_and_line_breaks() -> None:
    record = only(read(as_csv(ROW | {"user_id": 'a,"b"\nc'}), "csv"))
    assert event_of(record).user_id == 'a,"b"\nc'


def test_tab_separated_files_by_their_ending() -> None:
    data = as_csv(ROW).replace(b",", b"\t")
    assert event_of(only(read(data, "csv", name="file.tsv"))) == EVENT


def test_ids_by_row_stay_distinct_and_by_content_collide() -> None:
    data = as_csv(ROW, ROW, ROW | {"item_id": "other"})
    by_row = [event_of(r).event_id for r in read(data, "csv", ColumnMap(ids="row"))]
    assert len(set(by_row)) == 3
    assert by_row == [event_of(r).event_id for r in read(data, "csv", ColumnMap(ids="row"))]
    first, copy, other = (event_of(r).event_id for r in read(data, "csv", ColumnMap(ids="content")))
    assert first == copy != other


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("column_map", "expected"),
    [
        (ColumnMap(columns={"user_id": "usr"}), "no column 'usr' for user_id"),
        (ColumnMap(columns={"value": "score"}), "no column 'score' for value"),
        (ColumnMap(ids="row"), "no column 'item_id' for item_id"),
    ],
)
def test_a_table_without_a_needed_column_is_refused(
    file_format: str, column_map: ColumnMap, expected: str
) -> None:
    row = {key: value for key, value in ROW.items() if key != "item_id"}
    table = WRITERS[file_format](ROW if column_map.columns else row)
    with pytest.raises(ConfigError, match=expected):
        read(table, file_format, column_map)


@pytest.mark.parametrize(
    ("data", "file_format"),
    [
        (b"", "csv"),
        (as_csv(ROW) + b"too,short\n", "csv"),
        (as_csv(ROW).replace(b"007", b"\xff"), "csv"),
        (b"", "parquet"),
        (b"not parquet at all", "parquet"),
    ],
)
def test_a_file_that_is_not_of_its_format_is_refused(data: bytes, file_format: str) -> None:
    with pytest.raises(ConfigError, match="file is not readable as"):
        read(data, file_format)


def test_an_unknown_field_in_the_map_is_refused() -> None:
    with pytest.raises(ConfigError, match="'user' is no event field"):
        ColumnMap(columns={"user": "u"})


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.JSONL", "jsonl"), ("a.ndjson", "jsonl"), ("b.tsv", "csv"), ("c.d.parquet", "parquet")],
)
def test_the_ending_names_the_format(name: str, expected: str) -> None:
    assert format_of(name) == expected


def test_an_unknown_ending_asks_for_the_format() -> None:
    with pytest.raises(ConfigError, match="--format"):
        format_of("events.xml")


def test_reading_does_not_take_in_the_whole_file(tmp_path: Path) -> None:
    """The first records of a pipe come before its end."""
    path = tmp_path / "events.jsonl"
    path.write_bytes(as_jsonl(*[ROW] * 50_000))
    with path.open("rb") as source:
        next(read_records(source, "events.jsonl", "jsonl", ColumnMap()))
        assert source.tell() < path.stat().st_size / 10


CELLS = st.none() | st.text(max_size=8) | st.integers() | st.floats() | st.booleans()


@given(st.lists(st.fixed_dictionaries(dict.fromkeys(ROW, CELLS)), max_size=4))
def test_any_cells_give_a_record_each(rows: list[dict[str, Any]]) -> None:
    """Whatever the rows hold: one record a row, and `check` holds for each."""
    mapped = read(as_jsonl(*rows), "jsonl", ColumnMap(constants={"event_type": "click"}))
    assert len(mapped) == len(rows)
    assert len(read(as_jsonl(*rows), "jsonl")) == len(rows)


@given(st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line), max_size=4))
def test_any_bytes_give_a_record_per_line(lines: list[bytes]) -> None:
    filled = [line for line in lines if line.strip()]
    data = b"\n".join(lines)
    assert len(read(data, "jsonl")) == len(filled)
    assert len(read(data, "jsonl", ColumnMap(constants=FEED))) == len(filled)
