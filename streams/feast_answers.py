"""What Feast asks of the online store, and the answers in the forms that Feast takes.

No I/O: `streams.feast_reads` reads an answer, `streams.online_store` is what Feast calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import streams.feast_light  # noqa: F401 # isort: skip
from feast.infra.key_encoding_utils import serialize_entity_key
from feast.metrics import track_feature_statuses
from feast.protos.feast.serving.ServingService_pb2 import FieldStatus
from feast.protos.feast.types.EntityKey_pb2 import EntityKey as EntityKeyProto
from feast.protos.feast.types.Value_pb2 import Value as ValueProto

from streams.errors import StoreRejected
from streams.feast_values import feature_vector
from streams.feature_row_store import check_entity_key
from streams.representations import RepresentationView
from streams.sequences import SequenceView
from streams.views import REPRESENTATION_FEATURES, SEQUENCE_FEATURES

PRESENT = int(FieldStatus.PRESENT)
NOT_FOUND = int(FieldStatus.NOT_FOUND)
EXPIRED = int(FieldStatus.OUTSIDE_MAX_AGE)
# Feast's key encoding knows bytes, strings, integers and timestamps; these are ours, in its form.
_OTHER_KEY_TYPES = (
    "double_val",
    "float_val",
    "bool_val",
    "uuid_val",
    "time_uuid_val",
    "decimal_val",
    "zoned_timestamp_val",
)
ReadRow = tuple[datetime | None, dict[str, ValueProto] | None]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Request(NamedTuple):
    """Some features of one view for some distinct entities; `view` is None for an ordinary one."""

    table: Any
    view: SequenceView | RepresentationView | None
    keys: list[bytes]
    user_ids: list[str]
    features: list[str]


class Answer(NamedTuple):
    """Per feature of the request, per entity: a serialized Value, its status, its time in µs.

    A value that isn't present is empty, which is Feast's null.
    """

    values: list[list[bytes]]
    statuses: list[list[int]]
    times: list[list[int | None]]


def outcomes_of(answer: Answer) -> dict[str, int]:
    """How many of the entities had a value, none, or an old one."""
    statuses = answer.statuses[0] if answer.statuses else []
    return {
        "found": statuses.count(PRESENT),
        "absent": statuses.count(NOT_FOUND),
        "expired": statuses.count(EXPIRED),
    }


def request_for(
    table: Any,
    view: SequenceView | RepresentationView | None,
    entity_keys: Sequence[EntityKeyProto],
    features: Sequence[str] | None,
    key_version: int,
) -> Request:
    """Check a request before anything is read. Raises StoreRejected."""
    keys = [entity_key_bytes(key, key_version) for key in entity_keys]
    for key in keys:
        check_entity_key(key)
    user_ids = [] if view is None else [_user_id(key, table.name) for key in entity_keys]
    names = [field.name for field in table.features] if features is None else list(features)
    if view is not None:
        known = SEQUENCE_FEATURES if isinstance(view, SequenceView) else REPRESENTATION_FEATURES
        for name in names:
            if name not in known:
                raise StoreRejected(f"view {table.name} has no feature {name!r}")
    return Request(table, view, keys, user_ids, names)


def schema_version(table: Any, versioning: bool) -> int:
    """The version of a view's schema that is asked for, if Feast keeps versions apart; else 0."""
    if not versioning:
        return 0
    tag = getattr(table.projection, "version_tag", None)
    number = getattr(table, "current_version_number", None) if tag is None else tag
    return number or 0


def entity_key_bytes(key: EntityKeyProto, key_version: int) -> bytes:
    """An entity key in Feast's encoding, for key types that it lacks in a like one."""
    kinds = [value.WhichOneof("val") for value in key.entity_values]
    if not any(kind in _OTHER_KEY_TYPES for kind in kinds):
        try:
            encoded: bytes = serialize_entity_key(key, entity_key_serialization_version=key_version)
        except (ValueError, UnicodeEncodeError) as error:
            raise StoreRejected(f"an entity key can't be stored: {error}") from error
        return encoded
    pairs = sorted(zip(key.join_keys, key.entity_values, strict=True), key=lambda pair: pair[0])
    parts = [b"headwater"]
    for name, value in pairs:
        for part in (name.encode(), value.SerializeToString(deterministic=True)):
            parts += [len(part).to_bytes(4, "little"), part]
    return b"".join(parts)


def _user_id(key: EntityKeyProto, view: str) -> str:
    """The user of a sequence or representation view's key."""
    kind = key.entity_values[0].WhichOneof("val") if len(key.entity_values) == 1 else None
    if kind == "string_val":
        return str(key.entity_values[0].string_val)
    if kind in ("int64_val", "int32_val"):
        return str(getattr(key.entity_values[0], kind))
    raise StoreRejected(f"view {view}: an entity is one user id, a text or a whole number")


def respond(
    response: Any, request: Request, answer: Answer, rows: Sequence[int], full_names: bool
) -> None:
    """Add an answer to Feast's response, one FeatureVector per feature."""
    name = request.table.projection.name_to_use()
    response.metadata.feature_names.val.extend(
        f"{name}__{feature}" if full_names else feature for feature in request.features
    )
    present = 0
    for values, statuses, times in zip(*answer, strict=True):
        row_statuses = bytes([statuses[place] for place in rows])
        present += row_statuses.count(PRESENT)
        response.results.add().MergeFromString(
            feature_vector(
                [values[place] for place in rows], row_statuses, [times[place] for place in rows]
            )
        )
    missing = len(request.features) * len(rows) - present
    track_feature_statuses(request.table.name, present, missing)


def add_schema_version(response: Any, table: Any) -> None:
    name = table.projection.name_alias or table.projection.name
    if name not in [known.name for known in response.metadata.feature_view_metadata]:
        metadata = response.metadata.feature_view_metadata.add()
        metadata.name = name
        metadata.version = getattr(table, "current_version_number", 0) or 0


def rows_of(request: Request, answer: Answer) -> list[ReadRow]:
    rows: list[ReadRow] = []
    for place in range(len(request.keys)):
        times = [at for column in answer.times if (at := column[place]) is not None]
        if not times:
            rows.append((None, None))
            continue
        values: Mapping[str, ValueProto] = {
            feature: ValueProto.FromString(column[place])
            for feature, column, statuses in zip(
                request.features, answer.values, answer.statuses, strict=True
            )
            if statuses[place] == PRESENT
        }
        rows.append((_EPOCH + timedelta(microseconds=max(times)), dict(values)))
    return rows
