"""Representations: what an encoder's answer is, how it is declared, stored and asked for.

Pure: no I/O, no clock. The stored blob, little endian, format byte 1:

    0   u8   format
    1   u8   dtype, 1 = float32
    2   u16  D, the vector's width
    4   u32  zero
    8   i64  as_of, event time (ms) of the newest event in it
    16  i64  position, the log position that it reflects
    24  i64  encoded_at, ms
    32  f32[D]
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from streams.errors import InvalidRecord, UnknownFormat

FORMAT = 1
FLOAT32 = 1
HEADER = struct.Struct("<BBHIqqq")
MAX_DIMENSIONS = 2**16 - 1

Vector = NDArray[np.float32]


class RepresentationView(msgspec.Struct, frozen=True, kw_only=True):
    """A declared representation view: which encoder, from which sequences, how long it lives.

    The encoder gets the newest `max_length` events of all `sequences` together.
    """

    name: str
    encoder: str
    dimensions: int
    sequences: tuple[str, ...]
    max_length: int
    ttl_seconds: int | None = None


class Representation(msgspec.Struct, frozen=True, eq=False):
    """A user's vector with its facts; `vector` is (D,) float32, times are ms."""

    vector: Vector
    as_of: int
    position: int
    encoded_at: int

    def encode(self) -> bytes:
        """The blob described at the top."""
        vector = np.ascontiguousarray(self.vector, dtype="<f4")
        header = HEADER.pack(
            FORMAT, FLOAT32, len(vector), 0, self.as_of, self.position, self.encoded_at
        )
        return header + vector.tobytes()

    @classmethod
    def decode(cls, blob: bytes) -> Representation:
        """Read a blob. Raises UnknownFormat."""
        _, _, dimensions, _, as_of, position, encoded_at = read_header(blob)
        vector = np.frombuffer(blob, "<f4", dimensions, HEADER.size)
        return cls(vector, as_of, position, encoded_at)


def read_header(blob: bytes) -> tuple[int, int, int, int, int, int, int]:
    """The blob's header fields in their order. Raises UnknownFormat."""
    if len(blob) < HEADER.size or blob[0] != FORMAT or blob[1] != FLOAT32:
        raise UnknownFormat(
            f"a representation has format {blob[:2].hex() or 'nothing'}; "
            f"this version reads {FORMAT:02x}{FLOAT32:02x}: upgrade it"
        )
    return HEADER.unpack_from(blob)


class VersionState(StrEnum):
    """Life of an encoder's version; at most one is active."""

    READY = "ready"
    ACTIVE = "active"
    RETIRED = "retired"


class EncoderVersion(msgspec.Struct, frozen=True):
    """A version of an encoder: the text of a positive integer, as in the model repository."""

    encoder: str
    version: str
    state: VersionState
    created_at: int
    stats: dict[str, Any] = {}


def newest_first(versions: Sequence[EncoderVersion]) -> list[EncoderVersion]:
    """Versions by number, the largest first."""
    return sorted(versions, key=lambda version: int(version.version), reverse=True)


Trigger = Literal["event", "forget", "rebuild"]


class RefreshRequest(msgspec.Struct, frozen=True):
    """A record on the refresh topic: a user's sequences changed. Times are ms.

    `position` is the log position that the sequences have reached; `event_time` and `event_id`
    are of the newest event folded in, `oldest_event_time` and `ingested_at` of the oldest one.
    """

    user_id: str
    position: int
    event_time: int
    oldest_event_time: int
    ingested_at: int
    folded_at: int
    stored_at: int
    trigger: Trigger
    event_id: str

    def encode(self) -> bytes:
        """JSON, the record's value; its key is the user's id."""
        return _encode(self)

    @classmethod
    def decode(cls, value: bytes | None) -> RefreshRequest:
        """Read a record's value. Raises InvalidRecord."""
        if value is None:
            raise InvalidRecord("null_value", "a refresh request has no value")
        try:
            return _decode(value)
        except msgspec.ValidationError as error:
            raise InvalidRecord("wrong_type", str(error)) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRecord("not_json", str(error)) from error


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(RefreshRequest).decode
