"""Feast's answers in their wire form, built from stored columns.

A value that is stored, or comes as a numpy column, is copied as bytes into the response instead of
being made a Python object, parsed and copied: for lists this is most of a request's time. Every
function gives serialized protobuf messages; field numbers are read from Feast's own descriptors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

import streams.feast_light  # noqa: F401 # isort: skip
from feast.protos.feast.serving.ServingService_pb2 import GetOnlineFeaturesResponse
from feast.protos.feast.types.Value_pb2 import FloatList, Int64List, StringList
from feast.protos.feast.types.Value_pb2 import Value as ValueProto
from numpy.typing import NDArray

from streams.columns import SequenceColumns, ranges
from streams.representations import HEADER, read_header

# Times that are six bytes long as a varint: 1971 to 2109.
_SIX_BYTES_FROM, _SIX_BYTES_TO = 1 << 35, 1 << 42
_SEVEN_BITS = np.arange(0, 42, 7)
_CONTINUES = np.array([0x80] * 5 + [0], np.uint8)
_SHORT = 128
_UINT64 = 2**64 - 1


def varint(number: int) -> bytes:
    """A non-negative number as protobuf writes it."""
    out = bytearray()
    while number >= _SHORT:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_LENGTHS = [varint(number) for number in range(4096)]


def _delimited(tag: bytes, payload: bytes) -> bytes:
    length = len(payload)
    return tag + (_LENGTHS[length] if length < len(_LENGTHS) else varint(length)) + payload


def _tag(message: type, field: str) -> bytes:
    number: int = message.DESCRIPTOR.fields_by_name[field].number  # type: ignore[attr-defined]
    return varint(number << 3 | 2)


_INTS, _FLOATS, _STRINGS = (
    _tag(ValueProto, f"{kind}_list_val") for kind in ("int64", "float", "string")
)
_INT_ITEMS, _FLOAT_ITEMS = _tag(Int64List, "val"), _tag(FloatList, "val")
_STRING_ITEM = _tag(StringList, "val")
_VECTOR = GetOnlineFeaturesResponse.FeatureVector
_VALUE, _STATUSES, _TIMES = (
    _tag(_VECTOR, field) for field in ("values", "statuses", "event_timestamps")
)


def feature_vector(
    values: Sequence[bytes], statuses: bytes, event_times: Sequence[int | None]
) -> bytes:
    """A FeatureVector of one row per entity: values, statuses (a byte each), times in µs."""
    made: dict[int | None, bytes] = {}
    times = []
    for event_time in event_times:
        stamp = made.get(event_time)
        if stamp is None:
            stamp = made[event_time] = _delimited(_TIMES, _timestamp(event_time))
        times.append(stamp)
    return b"".join(
        [*[_delimited(_VALUE, value) for value in values], _delimited(_STATUSES, statuses), *times]
    )


def _timestamp(event_time: int | None) -> bytes:
    if event_time is None:
        return b""
    seconds, micros = divmod(event_time, 1_000_000)  # Timestamp: int64 seconds, int32 nanos
    stamp = b"\x08" + varint(seconds & _UINT64) if seconds else b""
    return stamp + (b"\x10" + varint(micros * 1_000) if micros else b"")


def sequence_values(columns: SequenceColumns, features: Sequence[str]) -> dict[str, list[bytes]]:
    """A sequence view's features: a Value per user."""
    return {feature: _SEQUENCE_VALUES[feature](columns) for feature in features}


def _event_times(columns: SequenceColumns) -> list[bytes]:
    times, bounds = columns.event_time, columns.offsets.tolist()
    if len(times) and int(times.min()) >= _SIX_BYTES_FROM and int(times.max()) < _SIX_BYTES_TO:
        packed = ((times[:, None] >> _SEVEN_BITS) & 0x7F).astype(np.uint8) | _CONTINUES
        data = packed.tobytes()
        return [
            _delimited(_INTS, _delimited(_INT_ITEMS, data[6 * start : 6 * end]))
            for start, end in pairwise(bounds)
        ]
    return [
        _delimited(_INTS, Int64List(val=times[start:end].tolist()).SerializeToString())
        for start, end in pairwise(bounds)
    ]


def _values(columns: SequenceColumns) -> list[bytes]:
    data = columns.value.astype("<f4", copy=False).tobytes()
    return [
        _delimited(_FLOATS, _delimited(_FLOAT_ITEMS, data[4 * start : 4 * end]))
        for start, end in pairwise(columns.offsets.tolist())
    ]


def _item_ids(columns: SequenceColumns) -> list[bytes]:
    texts, places = columns.item_texts()
    lengths = np.diff(places) - 1
    if int(lengths.max(initial=0)) >= _SHORT:
        ids, bounds = columns.item_ids, columns.offsets.tolist()
        return [
            _delimited(_STRINGS, StringList(val=ids[start:end]).SerializeToString())
            for start, end in pairwise(bounds)
        ]
    # An FF before a text becomes the tag and the length.
    data = bytearray(texts[:-1].replace(b"\xff", _STRING_ITEM + b"\x00"))
    starts = places + np.arange(len(places))
    np.frombuffer(data, np.uint8)[starts[:-1] + 1] = lengths
    bounds = starts[columns.offsets].tolist()
    made = bytes(data)
    return [_delimited(_STRINGS, made[start:end]) for start, end in pairwise(bounds)]


def _coded(
    codes: NDArray[np.uint16], table: Sequence[str], columns: SequenceColumns
) -> list[bytes]:
    items = [_delimited(_STRING_ITEM, text.encode()) for text in table]
    sizes = np.array([len(item) for item in items] or [0])
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    flat = np.frombuffer(b"".join(items), np.uint8)
    lengths = sizes[codes]
    data = flat[ranges(starts[codes], lengths)].tobytes()
    bounds = np.concatenate(([0], np.cumsum(lengths)))[columns.offsets].tolist()
    return [_delimited(_STRINGS, data[start:end]) for start, end in pairwise(bounds)]


def _event_types(columns: SequenceColumns) -> list[bytes]:
    return _coded(columns.event_type, columns.event_types, columns)


def _surfaces(columns: SequenceColumns) -> list[bytes]:
    return _coded(columns.surface, columns.surfaces, columns)


_SEQUENCE_VALUES: Mapping[str, Callable[[SequenceColumns], list[bytes]]] = {
    "event_time": _event_times,
    "item_id": _item_ids,
    "event_type": _event_types,
    "surface": _surfaces,
    "value": _values,
}


def representation_values(
    blob: bytes, encoder: str, version: str, features: Sequence[str]
) -> dict[str, bytes]:
    """A representation view's features of one stored blob. Raises UnknownFormat."""
    _, _, dimensions, _, as_of, position, encoded_at = read_header(blob)
    found = {}
    for feature in features:
        if feature == "vector":
            data = blob[HEADER.size : HEADER.size + 4 * dimensions]
            found[feature] = _delimited(_FLOATS, _delimited(_FLOAT_ITEMS, data))
        elif feature in ("encoder", "version"):
            text = encoder if feature == "encoder" else version
            found[feature] = ValueProto(string_val=text).SerializeToString()
        else:
            fact = {"as_of": as_of, "position": position, "encoded_at": encoded_at}[feature]
            found[feature] = ValueProto(int64_val=fact).SerializeToString()
    return found
