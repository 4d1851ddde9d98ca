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
_REQUIRED = ("event_id", "user_id", "item_id", "event_type", "event_time")
_FIELDS = (*_REQUIRED, "surface", "value", "attributed_to", "attributes")
_TEXTS = ("event_id", "user_id", "item_id", "event_type", "surface", "attributed_to")


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

    def check(self, found: list[str], name: str) -> None:
        """Refuse a table without the columns: not one of its rows could be an event."""
        made = {*self.constants, *(() if self.ids == "column" else ("event_id",))}
        for field in _FIELDS:
            column = self.columns.get(field, field)
            needed = field in self.columns or (field in _REQUIRED and field not in made)
            if needed and column not in found:
                raise ConfigError(
                    f"{name} has no column {column!r} for {field}; its columns are "
                    f"{', '.join(found)}: name one with --map {field}=COLUMN"
                )


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
    read = _csv_rows if file_format == "csv" else _parquet_rows
    for number, row in enumerate(read(source, name, column_map), 1):
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
        except (ValueError, RecursionError) as error:
            yield FileRecord(number, None, line.rstrip(b"\r\n"), f"not_json: {error}")
            continue
        if isinstance(row, dict):
            yield _record(number, row, name, column_map)
        else:
            yield FileRecord(number, None, line.rstrip(b"\r\n"), "wrong_type: not an object")


def _csv_rows(source: IO[bytes], name: str, column_map: ColumnMap) -> Iterator[dict[str, Any]]:
    delimiter = "\t" if name.lower().endswith(".tsv") else ","
    try:
        reader = pyarrow.csv.open_csv(
            source,
            parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            # Ids such as 007 must not turn into numbers.
            convert_options=pyarrow.csv.ConvertOptions(default_column_type=pa.string()),
        )
        column_map.check(reader.schema.names, name)
        for batch in reader:
            for row in batch.to_pylist():
                yield {key: value for key, value in row.items() if value not in (None, "")}
    except pa.ArrowInvalid as error:
        raise ConfigError(f"{name} is not readable as CSV: {error}") from error


def _parquet_rows(source: IO[bytes], name: str, column_map: ColumnMap) -> Iterator[dict[str, Any]]:
    try:
        handle = source if source.seekable() else io.BytesIO(source.read())
        table = pyarrow.parquet.ParquetFile(handle)
        column_map.check(table.schema_arrow.names, name)
        for batch in table.iter_batches(batch_size=10_000):
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
        value = encode_record(event)
        return FileRecord(number, event.user_id.encode(), value)
    except InvalidRecord as error:
        value = json.dumps(fields, default=_not_json).encode()
        return FileRecord(number, _key_of(value), value, str(error))


def _not_json(value: Any) -> dict[str, str]:
    """A date or bytes in a refused row, readable, and of a type that no field has."""
    return {type(value).__name__: str(value)}


def _typed(fields: dict[str, Any], time_unit: str) -> dict[str, Any]:
    typed = dict(fields)
    for field in _TEXTS:
        if field in typed:
            typed[field] = _text(typed[field])
    if "event_time" in typed:
        typed["event_time"] = _milliseconds(typed["event_time"], time_unit)
    if "attributes" in typed:
        typed["attributes"] = _attributes(typed["attributes"])
    if isinstance(typed.get("value"), str):
        try:
            typed["value"] = float(typed["value"])
        except ValueError:
            raise InvalidRecord("wrong_type", f"value {typed['value']!r} is no number") from None
    if isinstance(typed.get("value"), float) and math.isnan(typed["value"]):
        del typed["value"]  # a missing number in a table is NaN
    return typed


def _text(value: Any) -> Any:
    """Ids are often numbers in tables, and texts are sometimes bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise InvalidRecord("not_utf8", str(error)) from None
    return value


def _attributes(value: Any) -> Any:
    """A JSON text, a map's pairs or a struct, whose nulls are absent keys."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise InvalidRecord("wrong_type", "attributes are no JSON object") from None
    if isinstance(value, list) and all(isinstance(pair, tuple) for pair in value):
        value = dict(value)
    if isinstance(value, dict):
        return {key: item for key, item in value.items() if item is not None}
    return value


def _milliseconds(value: Any, unit: str) -> int:
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            value = value.replace(tzinfo=datetime.UTC)
        return round(float(value.timestamp()) * 1000)
    number = None if isinstance(value, bool) else _number(value)
    if number is not None:
        return round(number * TIME_UNITS[unit])
    try:
        return _milliseconds(datetime.datetime.fromisoformat(str(value)), unit)
    except ValueError:
        message = f"event_time {value!r} is neither a number ({unit}) nor an ISO 8601 time"
        raise InvalidRecord("wrong_type", message) from None


def _number(value: Any) -> int | float | None:
    """The number that a value or text is, exact where it is an integer; None if it is none."""
    for convert in (int, float):
        try:
            number = convert(value)
        except (TypeError, ValueError, OverflowError):
            continue
        if number == value or isinstance(value, str):
            return number if math.isfinite(number) else None
    return None
