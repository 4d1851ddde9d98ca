"""The event contract: what a record on the events topic may be, and how it is decoded.

Pure: no I/O, no clock. DESIGN: one JSON object per record, key = user_id, unknown fields ignored,
a changed meaning is a new `schema` number. What is not an event raises `InvalidRecord` (R5).
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

import msgspec

from streams.errors import InvalidRecord

# Reasons of a dead letter; bounded, since they are metric labels.
REASONS = (
    "null_value",
    "not_utf8",
    "not_json",
    "missing_field",
    "wrong_type",
    "invalid_value",
    "unsupported_schema",
    "key_mismatch",
    "future_event_time",
)

SCHEMA = 1
# Times are int64 milliseconds; 2**53 is also the safe range of a JSON number.
MAX_EVENT_TIME = 2**53 - 1

EventId = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
EntityId = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
ShortText = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
AttributeText = Annotated[str, msgspec.Meta(max_length=1024)]
EventTime = Annotated[int, msgspec.Meta(ge=0, le=MAX_EVENT_TIME)]
# Stored as float32.
Value = Annotated[float, msgspec.Meta(ge=-3.4e38, le=3.4e38)]
Attributes = Annotated[dict[ShortText, AttributeText | int | float], msgspec.Meta(max_length=16)]


class Event(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One engagement of a user with an item.

    `event_time` is the producer's clock, milliseconds since the epoch, UTC. `event_id` is made by
    the producer and kept over redeliveries. `value` is finite.
    """

    event_id: EventId
    user_id: EntityId
    item_id: EntityId
    event_type: ShortText
    event_time: EventTime
    surface: ShortText | None = None
    value: Value | None = None
    attributed_to: EventId | None = None
    attributes: Attributes | None = None
    schema: int = SCHEMA
    # A record that carries `forget` is a deletion, whatever else it carries.
    forget: msgspec.UnsetType | None = msgspec.UNSET


class Forget(msgspec.Struct, frozen=True, gc=False):
    """Deletion of a user: nothing with an event time up to `event_time` stays or comes back."""

    forget: EntityId
    event_id: EventId
    event_time: EventTime
    schema: int = SCHEMA

    @property
    def user_id(self) -> str:
        return self.forget


class _SchemaOnly(msgspec.Struct):
    """What every version of a record has."""

    schema: int = SCHEMA


_decode_event = msgspec.json.Decoder(Event).decode
_decode_forget = msgspec.json.Decoder(Forget).decode
_decode_schema = msgspec.json.Decoder(_SchemaOnly).decode
_encode = msgspec.json.Encoder().encode


def decode_record(value: bytes | None) -> Event | Forget:
    """Decode a record's value. Raises InvalidRecord with a bounded reason and a detail to read."""
    try:
        event = _decode_event(value)  # type: ignore[arg-type]
        if event.schema != SCHEMA:
            raise _unsupported(event.schema)
        return event
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError, RecursionError) as error:
        return _second_look(value, error)


def encode_record(record: Event | Forget) -> bytes:
    """The record as JSON. Raises InvalidRecord if a decoder would refuse it."""
    number = record.value if isinstance(record, Event) else None
    if isinstance(number, float) and not math.isfinite(number):
        raise InvalidRecord("invalid_value", f"value is {number}; it must be finite")
    try:
        encoded = _encode(record)
    except (TypeError, UnicodeEncodeError, ValueError) as error:
        raise InvalidRecord("wrong_type", str(error)) from error
    decode_record(encoded)
    return encoded


def event_from_mapping(fields: dict[str, Any]) -> Event | Forget:
    """Build a record from loose fields (a CSV or Parquet row). Raises InvalidRecord."""
    try:
        if "forget" in fields:
            return msgspec.convert(fields, Forget)
        return msgspec.convert(fields, Event)
    except msgspec.ValidationError as error:
        raise InvalidRecord(_reason(str(error)), str(error)) from error


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a record, generated from the code."""
    (event, forget), components = msgspec.json.schema_components(
        [Event, Forget], ref_template="#/$defs/{name}"
    )
    for record in components.values():
        record["properties"]["schema"] = {"const": SCHEMA, "default": SCHEMA}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Engagement event",
        "anyOf": [event, forget],
        "$defs": components,
    }


def _second_look(value: bytes | None, error: Exception) -> Event | Forget:
    """The slow path: a deletion, or the exact reason why the record is neither."""
    if value is None:
        raise InvalidRecord("null_value", "the record has no value") from None
    if b'"forget"' in value or "`$.forget`" in str(error):
        try:
            forget = _decode_forget(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as forget_error:
            error = forget_error
        else:
            if forget.schema != SCHEMA:
                raise _unsupported(forget.schema) from None
            return forget
    raise _what_is_wrong(value, error) from None


def _what_is_wrong(value: bytes, error: Exception) -> InvalidRecord:
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError as unicode_error:
        return InvalidRecord("not_utf8", str(unicode_error))
    if isinstance(error, RecursionError):
        return InvalidRecord("invalid_value", "nested too deeply")
    if not isinstance(error, msgspec.ValidationError):
        return _malformed(text, error)
    try:  # a record of a later schema may differ in anything else
        schema = _decode_schema(value).schema
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        schema = SCHEMA
    if schema != SCHEMA:
        return _unsupported(schema)
    return InvalidRecord(_reason(str(error)), str(error))


def _malformed(text: str, error: Exception) -> InvalidRecord:
    """Tell NaN and Infinity, which many encoders write, from what is no JSON at all."""
    found: list[str] = []
    try:
        json.loads(text, parse_constant=found.append)
    except (ValueError, RecursionError):
        return InvalidRecord("not_json", str(error))
    return InvalidRecord("invalid_value", f"JSON has no {found[0]}" if found else str(error))


def _reason(message: str) -> str:
    if "missing required field" in message:
        return "missing_field"
    if message.startswith("Expected `") and ", got `" in message:
        return "wrong_type"
    return "invalid_value"


def _unsupported(schema: int) -> InvalidRecord:
    return InvalidRecord("unsupported_schema", f"schema {schema}; this version reads {SCHEMA}")
