"""Events out of files: JSON lines, CSV or Parquet, with a map from columns to event fields.

Streams: memory doesn't grow with the file. Yields what a producer sends, key and value; what isn't
an event comes with the reason, so that the caller can send it to the dead letters or refuse it.
"""

from __future__ import annotations

import datetime
import hashlib
import io
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from streams.errors import ConfigError, InvalidRecord
from streams.events import decode_record, encode_record, event_from_mapping

FORMATS = ("jsonl", "csv", "parquet")
TIME_UNITS = {"s": 1000, "ms": 1, "us": 1 / 1000, "ns": 1 / 1_000_000}
_FIELDS = [
    "event_id",
    "user_id",
    "item_id",
    "event_type",
    "event_time",
    "surface",
    "value",
    "attributed_to",
    "attributes",
]


class FileRecord(msgspec.Struct, frozen=True):
    """One line or row: what to send, and why it isn't an event, if it isn't."""

    number: int
    key: bytes | None
    value: bytes
    problem: str | None = None


class ColumnMap(msgspec.Struct, frozen=True, kw_only=True):
    """How columns become fields.

    `columns`: field → column. `constants`: field → value. `ids`: "column" takes event_id from its
    column, "row" makes it from source name and row number (copies stay distinct), "content" from
    the row's content (copies collide, and are duplicates).
    """

    columns: Mapping[str, str] = {}
    constants: Mapping[str, str] = {}
    time_unit: str = "ms"
    ids: str = "column"

    def __post_init__(self) -> None:
        for field in (*self.columns, *self.constants):
            if field not in _FIELDS:
                raise ConfigError(f"{field!r} is no event field; fields are {', '.join(_FIELDS)}")


def format_of(name: str) -> str:
    """The format that a file's ending names. Raises ConfigError."""
    endings = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv"}
    endings |= {".tsv": "csv", ".parquet": "parquet", ".pq": "parquet"}
    found = endings.get(Path(name).suffix.lower())
    if found is None:
        raise ConfigError(f"can't tell the format of {name}; add --format {'|'.join(FORMATS)}")
    return found


def read_records(
    source: IO[bytes], name: str, file_format: str, column_map: ColumnMap
) -> Iterator[FileRecord]:
    """The records of a file or stream, in order. Raises ConfigError if it can't be read as such."""
    if file_format == "jsonl":
        plain = column_map == ColumnMap()
        yield from _plain_lines(source) if plain else _mapped_lines(source, name, column_map)
        return
    rows = _csv_rows(source, name) if file_format == "csv" else _parquet_rows(source, name)
    for number, row in enumerate(rows, 1):
        yield _record(number, row, name, column_map)


def _plain_lines(source: IO[bytes]) -> Iterator[FileRecord]:
    """Lines go out byte by byte as they are."""
    for number, line in enumerate(source, 1):
        value = line.rstrip(b"\r\n")
        if not value.strip():
            continue
        try:
            user_id = decode_record(value).user_id
        except InvalidRecord as error:
            yield FileRecord(number, _key_of(value), value, str(error))
        else:
            yield FileRecord(number, user_id.encode(), value)


def _key_of(value: bytes) -> bytes | None:
    """The user of a broken record where one can be made out, so that it keeps its place."""
    try:
        fields = json.loads(value)
        user_id = fields.get("user_id", fields.get("forget"))
    except (ValueError, AttributeError, RecursionError):
        return None
    return user_id.encode("utf-8", "replace") if isinstance(user_id, str) and user_id else None


def _mapped_lines(source: IO[bytes], name: str, column_map: ColumnMap) -> Iterator[FileRecord]:
    for number, line in enumerate(source, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            yield FileRecord(number, None, line.rstrip(b"\r\n"), f"not_json: {error}")
            continue
        if isinstance(row, dict):
            yield _record(number, row, name, column_map)
        else:
            yield FileRecord(number, None, line.rstrip(b"\r\n"), "wrong_type: not an object")


def _csv_rows(source: IO[bytes], name: str) -> Iterator[dict[str, Any]]:
    delimiter = "\t" if name.lower().endswith(".tsv") else ","
    try:
        reader = pyarrow.csv.open_csv(
            source,
            parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            # Ids such as 007 must not turn into numbers.
            convert_options=pyarrow.csv.ConvertOptions(default_column_type=pa.string()),
        )
        for batch in reader:
            for row in batch.to_pylist():
                yield {key: value for key, value in row.items() if value not in (None, "")}
    except pa.ArrowInvalid as error:
        raise ConfigError(f"{name} is not readable as CSV: {error}") from error


def _parquet_rows(source: IO[bytes], name: str) -> Iterator[dict[str, Any]]:
    try:
        handle = source if source.seekable() else io.BytesIO(source.read())
        for batch in pyarrow.parquet.ParquetFile(handle).iter_batches(batch_size=10_000):
            for row in batch.to_pylist():
                yield {key: value for key, value in row.items() if value is not None}
    except pa.ArrowInvalid as error:
        raise ConfigError(f"{name} is not readable as Parquet: {error}") from error


def _record(number: int, row: dict[str, Any], name: str, column_map: ColumnMap) -> FileRecord:
    fields: dict[str, Any] = dict(column_map.constants)
    for field in _FIELDS:
        column = column_map.columns.get(field, field)
        if column in row and field not in fields:
            fields[field] = row[column]
    if column_map.ids != "column":
        content = f"{name}:{number}" if column_map.ids == "row" else json.dumps(row, default=str)
        fields["event_id"] = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
    try:
        typed = _typed(fields, column_map.time_unit)
        event = event_from_mapping(typed)
        return FileRecord(number, event.user_id.encode(), encode_record(event))
    except InvalidRecord as error:
        value = json.dumps(fields, default=str).encode("utf-8", "replace")
        return FileRecord(number, _key_of(value), value, str(error))


def _typed(fields: dict[str, Any], time_unit: str) -> dict[str, Any]:
    typed = dict(fields)
    for field in ("event_id", "user_id", "item_id", "event_type", "surface", "attributed_to"):
        if isinstance(typed.get(field), int):
            typed[field] = str(typed[field])
    if "event_time" in typed:
        typed["event_time"] = _milliseconds(typed["event_time"], time_unit)
    if isinstance(typed.get("value"), str):
        try:
            typed["value"] = float(typed["value"])
        except ValueError:
            raise InvalidRecord("wrong_type", f"value {typed['value']!r} is no number") from None
    if isinstance(typed.get("value"), float) and math.isnan(typed["value"]):
        del typed["value"]  # a missing number in a table is NaN
    return typed


def _milliseconds(value: Any, unit: str) -> int:
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            value = value.replace(tzinfo=datetime.UTC)
        return round(float(value.timestamp()) * 1000)
    try:
        factor = TIME_UNITS[unit]
        return int(value) if factor == 1 else round(float(value) * factor)
    except (TypeError, ValueError):
        pass
    try:
        return _milliseconds(datetime.datetime.fromisoformat(str(value)), unit)
    except ValueError:
        message = f"event_time {value!r} is neither a number ({unit}) nor an ISO 8601 time"
        raise InvalidRecord("wrong_type", message) from None
