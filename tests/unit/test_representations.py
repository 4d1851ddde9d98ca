"""The codec of representations and the refresh request, without any store."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streams.errors import InvalidRecord, UnknownFormat
from streams.representations import (
    EncoderVersion,
    RefreshRequest,
    Representation,
    VersionState,
    newest_first,
)

REQUEST = RefreshRequest(
    user_id="u",
    position=1 << 52,
    event_time=4,
    oldest_event_time=1,
    ingested_at=2,
    folded_at=5,
    stored_at=6,
    trigger="event",
    event_id="e",
)


def test_a_blob_of_format_1_reads_for_ever() -> None:
    blob = bytes.fromhex(
        "01010200000000000a00000000000000000100000000100014000000000000000000803f000020c0"
    )
    found = Representation.decode(blob)
    assert found.vector.tolist() == [1.0, -2.5]
    assert (found.as_of, found.position, found.encoded_at) == (10, 1 << 52 | 1 << 8, 20)
    assert found.encode() == blob


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_any_float_vector_is_stored_as_float32(dtype: type) -> None:
    vector: Any = np.linspace(-1, 1, 64).astype(dtype)
    blob = Representation(vector, 1, 2, 3).encode()
    found = Representation.decode(blob)
    assert found.vector.dtype == np.float32
    assert np.array_equal(found.vector, vector.astype(np.float32))


@pytest.mark.parametrize(
    "blob", [b"", b"\x02\x01" + bytes(40), b"\x01\x02" + bytes(40), b"\x01\x01"]
)
def test_an_unknown_format_is_named(blob: bytes) -> None:
    with pytest.raises(UnknownFormat, match="upgrade"):
        Representation.decode(blob)


def test_a_refresh_request_survives_the_wire() -> None:
    assert RefreshRequest.decode(REQUEST.encode()) == REQUEST


@pytest.mark.parametrize(
    ("value", "reason"),
    [(None, "null_value"), (b"{", "not_json"), (b"\xff", "not_json"), (b"{}", "wrong_type")],
)
def test_a_bad_refresh_request_is_an_invalid_record(value: bytes | None, reason: str) -> None:
    with pytest.raises(InvalidRecord) as caught:
        RefreshRequest.decode(value)
    assert caught.value.reason == reason


def test_versions_are_ordered_as_numbers() -> None:
    versions = [EncoderVersion("e", v, VersionState.READY, 0) for v in ("9", "10", "1")]
    assert [v.version for v in newest_first(versions)] == ["10", "9", "1"]
