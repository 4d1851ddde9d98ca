"""The event contract as data: golden records and blobs decode for ever, bad ones keep their reason.

A record or blob in tests/golden is never changed: its like lies in logs and stores. What is
generated (the JSON Schema) is written anew by `python -m tests.golden.regenerate`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.chunks import Chunk, decode_head
from streams.errors import InvalidRecord, UnknownFormat
from streams.events import (
    MAX_EVENT_TIME,
    REASONS,
    Event,
    Forget,
    decode_record,
    encode_record,
    event_from_mapping,
)
from streams.representations import RefreshRequest, Representation
from streams.sequences import Mark
from tests.golden import regenerate

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDS: list[dict[str, Any]] = json.loads((GOLDEN / "records.json").read_text(encoding="utf-8"))
BLOBS = {
    name: bytes.fromhex(blob)
    for name, blob in json.loads((GOLDEN / "blobs.json").read_text()).items()
}
GOOD = {"event_id": "e", "user_id": "u", "item_id": "i", "event_type": "t", "event_time": 1}


def wire(without: str = "", **changes: object) -> bytes:
    """A good event's JSON with some fields changed and one left out."""
    return json.dumps({k: v for k, v in (GOOD | changes).items() if k != without}).encode()


# -- records ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("golden", RECORDS, ids=lambda golden: golden["name"])
def test_golden_records_decode_for_ever(golden: dict[str, Any]) -> None:
    fields = golden["record"]
    record = decode_record(golden["wire"].encode())
    assert record == msgspec.convert(fields, Forget if fields.get("forget") else Event)
    assert decode_record(encode_record(record)) == record


DEEP = b"[" * 100_000 + b"]" * 100_000
INVALID: list[tuple[str, bytes | None, str]] = [
    ("no value", None, "null_value"),
    ("empty", b"", "not_json"),
    ("text", b"hello", "not_json"),
    ("cut off", wire()[:-1], "not_json"),
    ("two in one", wire() * 2, "not_json"),
    ("UTF-16", wire().decode().encode("utf-16-le"), "not_json"),
    ("byte order mark", b"\xef\xbb\xbf" + wire(), "not_json"),
    ("no UTF-8 in a field", wire().replace(b'"u"', b'"\xff"'), "not_utf8"),
    ("no UTF-8 at all", b"\xff\xfe", "not_utf8"),
    ("overlong UTF-8", wire().replace(b'"u"', b'"\xc0\x80"'), "not_utf8"),
    ("half a surrogate pair", wire().replace(b'"u"', b'"\\ud800"'), "invalid_value"),
    ("NaN", wire(value=float("nan")), "invalid_value"),
    ("infinite time", wire().replace(b": 1", b": 1e999"), "invalid_value"),
    ("an infinite value", wire(value=0).replace(b": 0", b": 1e999"), "invalid_value"),
    ("beyond float32", wire(value=1e39), "invalid_value"),
    ("array", b"[1]", "wrong_type"),
    ("null", b"null", "wrong_type"),
    ("number as id", wire(user_id=7), "wrong_type"),
    ("null as id", wire(user_id=None), "wrong_type"),
    ("time as text", wire(event_time="1"), "wrong_type"),
    ("time as float", wire(event_time=1.0), "wrong_type"),
    ("time as bool", wire(event_time=True), "wrong_type"),
    ("value as text", wire(value="1"), "wrong_type"),
    ("null in attributes", wire(attributes={"a": None}), "wrong_type"),
    ("bool in attributes", wire(attributes={"a": True}), "wrong_type"),
    ("list in attributes", wire(attributes={"a": []}), "wrong_type"),
    ("empty id", wire(event_id=""), "invalid_value"),
    ("empty surface", wire(surface=""), "invalid_value"),
    ("long event id", wire(event_id="é" * 65), "invalid_value"),
    ("long user id", wire(user_id="é" * 257), "invalid_value"),
    ("negative time", wire(event_time=-1), "invalid_value"),
    ("late time", wire(event_time=MAX_EVENT_TIME + 1), "invalid_value"),
    ("huge time", wire().replace(b": 1", b": 1" + b"0" * 5000), "invalid_value"),
    ("many attributes", wire(attributes={str(n): n for n in range(17)}), "invalid_value"),
    ("large attribute", wire(attributes={"a": "x" * 900_000}), "invalid_value"),
    ("deep unknown field", wire(x=1).replace(b'"x": 1', b'"x":' + DEEP), "invalid_value"),
    ("deep instead of an object", DEEP, "wrong_type"),
    ("later schema", wire(schema=2), "unsupported_schema"),
    ("later schema with other types", wire(schema=2, event_time="now"), "unsupported_schema"),
    ("schema as text", wire(schema="1"), "wrong_type"),
    ("deletion of nobody", wire(forget=""), "invalid_value"),
    ("deletion of a number", wire(forget=7), "wrong_type"),
    ("deletion without a time", b'{"forget": "u", "event_id": "e"}', "missing_field"),
    ("later deletion", wire(forget="u", schema=2), "unsupported_schema"),
    *((f"no {field}", wire(without=field), "missing_field") for field in GOOD),
]


@pytest.mark.parametrize(
    ("value", "reason"), [case[1:] for case in INVALID], ids=[c[0] for c in INVALID]
)
def test_what_is_no_event_has_a_bounded_reason(value: bytes | None, reason: str) -> None:
    """R5: the reason is one of a few, and the detail says more."""
    assert reason in REASONS
    with pytest.raises(InvalidRecord) as caught:
        decode_record(value)
    assert (caught.value.reason, bool(caught.value.detail)) == (reason, True)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_the_detail_names_the_number_that_json_lacks(number: str) -> None:
    with pytest.raises(InvalidRecord, match=f"JSON has no {number}"):
        decode_record(wire(value=float(number)))


@given(st.binary(max_size=60) | st.binary(max_size=20).map(lambda tail: wire()[:-1] + tail))
def test_any_bytes_are_a_record_or_an_invalid_one(value: bytes) -> None:
    try:
        record = decode_record(value)
    except InvalidRecord as error:
        assert error.reason in REASONS  # noqa: PT017 - either way is right
    else:
        assert decode_record(encode_record(record)) == record


def texts(most: int) -> st.SearchStrategy[str]:
    return st.text(st.characters(codec="utf-8"), min_size=1, max_size=most)


TIMES = st.integers(0, MAX_EVENT_TIME)
EVENTS = st.builds(
    Event,
    event_id=texts(64),
    user_id=texts(256),
    item_id=texts(256),
    event_type=texts(64),
    event_time=TIMES,
    surface=st.none() | texts(64),
    value=st.none() | st.floats(-3.4e38, 3.4e38),
    attributed_to=st.none() | texts(64),
    attributes=st.none()
    | st.dictionaries(
        texts(64),
        texts(20) | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
        max_size=16,
    ),
)
FORGETS = st.builds(Forget, forget=texts(256), event_id=texts(64), event_time=TIMES)


@given(EVENTS | FORGETS)
def test_every_record_decodes_to_what_was_encoded(record: Event | Forget) -> None:
    encoded = encode_record(record)
    assert decode_record(encoded) == record
    assert event_from_mapping(json.loads(encoded)) == record


@pytest.mark.parametrize(
    "record",
    [
        Event("e", "", "i", "t", 1),
        Event("e", "u" * 257, "i", "t", 1),
        Event("e\ud800", "u", "i", "t", 1),
        Event("e", "u", "i", "t", -1),
        Event("e", "u", "i", "t", 1, value=float("nan")),
        Event("e", "u", "i", "t", 1, value=float("inf")),
        Event("e", "u", "i", "t", 1, value="many"),  # type: ignore[arg-type]
        Event("e", "u", "i", "t", 1, attributes={"a": float("nan")}),
        Event("e", "u", "i", "t", 1, attributes={"a": {1}}),  # type: ignore[dict-item]
        Event("e", "u", "i", "t", 1, schema=2),
        Forget("", "e", 1),
    ],
    ids=repr,
)
def test_a_producer_refuses_what_a_worker_would(record: Event | Forget) -> None:
    with pytest.raises(InvalidRecord):
        encode_record(record)


# -- the schema ------------------------------------------------------------------------------------


def test_the_schema_is_up_to_date() -> None:
    """Else run `python -m tests.golden.regenerate`."""
    assert regenerate.SCHEMA_FILE.read_text(encoding="utf-8") == regenerate.schema_text()


def test_the_schema_names_the_fields_and_bounds_of_the_contract() -> None:
    schema = json.loads(regenerate.SCHEMA_FILE.read_text(encoding="utf-8"))
    event, forget = schema["$defs"]["Event"], schema["$defs"]["Forget"]
    assert event["required"] == list(GOOD)
    assert forget["required"] == ["forget", "event_id", "event_time"]
    assert set(event["properties"]) == set(Event.__struct_fields__)
    assert event["properties"]["schema"] == forget["properties"]["schema"]
    assert event["properties"]["event_id"] == {"type": "string", "minLength": 1, "maxLength": 64}
    assert event["properties"]["user_id"] == {"type": "string", "minLength": 1, "maxLength": 256}


# -- stored values ---------------------------------------------------------------------------------


def test_every_kind_of_stored_value_is_golden() -> None:
    assert set(regenerate.encoded_now()) <= set(BLOBS), "run python -m tests.golden.regenerate"


@pytest.mark.parametrize("name", sorted(regenerate.encoded_now()))
def test_a_format_is_written_byte_by_byte_as_before(name: str) -> None:
    """R2: two writers at one log position, of two releases, write the same rows."""
    assert regenerate.encoded_now()[name] == BLOBS[name]


def test_golden_chunks_decode_for_ever() -> None:
    chunk = Chunk.decode(BLOBS["chunk-1"])
    assert repr(tuple(chunk)) == repr(regenerate.EVENTS)
    assert chunk.encode() == BLOBS["chunk-1"]


def test_golden_heads_and_marks_decode_for_ever() -> None:
    assert decode_head(BLOBS["head-1"]) == regenerate.DIRECTORY
    assert Mark.decode(BLOBS["mark-1"]) == regenerate.MARK


def test_golden_representations_decode_for_ever() -> None:
    found, expected = Representation.decode(BLOBS["representation-1"]), regenerate.REPRESENTATION
    assert (found.as_of, found.position, found.encoded_at) == (
        expected.as_of,
        expected.position,
        expected.encoded_at,
    )
    np.testing.assert_array_equal(found.vector, expected.vector)


def test_golden_refresh_requests_decode_for_ever() -> None:
    assert RefreshRequest.decode(BLOBS["refresh-request-1"]) == regenerate.REQUEST


@pytest.mark.parametrize(
    "decode", [Chunk.decode, decode_head, Mark.decode, Representation.decode], ids=repr
)
@pytest.mark.parametrize("blob", [b"", b"\x02", b"\x02" + bytes(40)])
def test_a_blob_of_another_format_asks_for_an_upgrade(decode: Any, blob: bytes) -> None:
    with pytest.raises(UnknownFormat):
        decode(blob)
