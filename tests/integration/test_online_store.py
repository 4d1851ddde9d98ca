"""Feast's contract for an online store, through Feast itself, on the real Cassandra.

What Feast documents for every store, and where a test says so, what its own stores get wrong.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pandas as pd
import pytest
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, PushSource, ValueType
from feast.protos.feast.serving.ServingService_pb2 import FieldStatus
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.type_map import python_values_to_proto_values
from feast.types import (
    Array,
    Bool,
    Bytes,
    Float32,
    Float64,
    Int32,
    Int64,
    String,
    UnixTimestamp,
)

from infra.local.stack import LocalStack
from streams.errors import StoreRejected, StoreUnavailable

MakeStore = Callable[..., FeatureStore]
NOW = datetime.now(UTC).replace(microsecond=123_456)
USER = Entity(name="user", join_keys=["user_id"], value_type=ValueType.STRING)


def view_of(
    name: str = "stats",
    *,
    entities: list[Entity] | None = None,
    ttl: timedelta | None = None,
    **features: Any,
) -> FeatureView:
    """A view with a push source `<name>_push`."""
    columns = features or {"a": Int64, "b": String}
    source = PushSource(
        name=f"{name}_push",
        batch_source=FileSource(
            name=f"{name}_file", path=f"{name}.parquet", timestamp_field="event_timestamp"
        ),
    )
    return FeatureView(
        name=name,
        entities=entities or [USER],
        schema=[Field(name=feature, dtype=dtype) for feature, dtype in columns.items()],
        ttl=ttl,
        source=source,
    )


def key_of(*values: Value, names: list[str] | None = None) -> EntityKey:
    return EntityKey(join_keys=names or ["user_id"], entity_values=values)


def user_key(user: str) -> EntityKey:
    return key_of(Value(string_val=user))


def write(
    store: FeatureStore, view: FeatureView, at: datetime, user: str = "u", **values: Value
) -> None:
    """What Feast's providers call, below its own conversions."""
    store._get_provider().online_write_batch(
        store.config, view, [(user_key(user), values, at, None)], None
    )


def read(store: FeatureStore, *features: str, users: tuple[str, ...] = ("u",)) -> dict[str, Any]:
    rows = [{"user_id": user} for user in users]
    answer = store.get_online_features(features=list(features), entity_rows=rows)
    found: dict[str, Any] = answer.to_dict()
    return found


def statuses(store: FeatureStore, *features: str, users: tuple[str, ...] = ("u",)) -> list[Any]:
    rows = [{"user_id": user} for user in users]
    proto = store.get_online_features(features=list(features), entity_rows=rows).proto
    return [
        [FieldStatus.Name(status) for status in result.statuses]
        for name, result in zip(proto.metadata.feature_names.val, proto.results, strict=True)
        if name != "user_id"
    ]


@pytest.fixture
def store(make_store: MakeStore) -> FeatureStore:
    return make_store()


# -- values ----------------------------------------------------------------------------------------

ALL_TYPES: dict[str, tuple[Any, list[Any]]] = {
    "int32": (Int32, [-(2**31), 2**31 - 1, 0]),
    "int64": (Int64, [-(2**63), 2**63 - 1, 0]),
    "float32": (Float32, [-0.5, 3.25, 0.0]),
    "float64": (Float64, [-1e300, 1.1, 0.0]),
    "text": (String, ["", "größer \x00 🙂", "x" * 100_000]),
    "raw": (Bytes, [b"", b"\x00\xff", bytes(range(256)) * 100]),
    "flag": (Bool, [True, False, False]),
    "ints": (Array(Int64), [[], [1], [-(2**63), 2**63 - 1]]),
    "ints32": (Array(Int32), [[0], [], [7] * 1_000]),
    "floats": (Array(Float32), [[], [0.5], [0.25] * 500]),
    "doubles": (Array(Float64), [[1.1], [], [0.1, 0.2]]),
    "texts": (Array(String), [[], [""], ["a", "ü", "x" * 500]]),
    "raws": (Array(Bytes), [[b""], [], [b"\xff"]]),
    "flags": (Array(Bool), [[], [True], [True, False]]),
}


def test_every_value_type_comes_back_as_it_was(store: FeatureStore) -> None:
    view = view_of(**{name: dtype for name, (dtype, _) in ALL_TYPES.items()})
    store.apply([USER, view])
    frame = pd.DataFrame(
        {name: values for name, (_, values) in ALL_TYPES.items()}
        | {"user_id": ["u0", "u1", "u2"], "event_timestamp": [NOW] * 3}
    )
    store.push("stats_push", frame)
    found = read(store, *(f"stats:{name}" for name in ALL_TYPES), users=("u0", "u1", "u2"))
    for name, (_, values) in ALL_TYPES.items():
        assert found[name] == values, name


def test_timestamps_are_values_too(store: FeatureStore) -> None:
    view = view_of(seen=UnixTimestamp, all_seen=Array(UnixTimestamp))
    store.apply([USER, view])
    moment = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    (one,) = python_values_to_proto_values([moment], ValueType.UNIX_TIMESTAMP)
    (many,) = python_values_to_proto_values([[moment, moment]], ValueType.UNIX_TIMESTAMP_LIST)
    write(store, view, NOW, seen=one, all_seen=many)
    found = read(store, "stats:seen", "stats:all_seen")
    assert found["seen"] == [moment]
    assert found["all_seen"] == [[moment, moment]]


def test_nan_and_infinity_are_kept(store: FeatureStore) -> None:
    view = view_of(a=Float64)
    store.apply([USER, view])
    for user, number in (("nan", np.nan), ("inf", np.inf), ("-inf", -np.inf)):
        write(store, view, NOW, user, a=Value(double_val=number))
    found = read(store, "stats:a", users=("nan", "inf", "-inf"))["a"]
    assert np.isnan(found[0])
    assert found[1:] == [np.inf, -np.inf]


def test_a_null_that_was_written_clears_the_feature(store: FeatureStore) -> None:
    view = view_of()
    store.apply([USER, view])
    write(store, view, NOW, a=Value(int64_val=1), b=Value(string_val="x"))
    write(store, view, NOW + timedelta(seconds=1), a=Value(), b=Value())
    assert read(store, "stats:a", "stats:b") == {"user_id": ["u"], "a": [None], "b": [None]}
    assert statuses(store, "stats:a", "stats:b") == [["PRESENT"], ["PRESENT"]]


# -- entities --------------------------------------------------------------------------------------

KEYS: dict[ValueType, list[Any]] = {
    ValueType.STRING: ["", " ", "a\x00b", "a", "'; DROP TABLE x; --", "🙂ü", "/@#%", "x" * 10_000],
    ValueType.INT64: [-(2**63), 2**63 - 1, 0, -1, 1],
    ValueType.INT32: [-(2**31), 2**31 - 1, 0],
    ValueType.BYTES: [b"", b"\x00", b"\xff\x00", b"a"],
    ValueType.BOOL: [True, False],
    ValueType.DOUBLE: [0.5, -1e300],
    ValueType.FLOAT: [0.5, -2.0],
}


@pytest.mark.parametrize("kind", KEYS, ids=lambda kind: kind.name.lower())
def test_entity_keys_of_every_type(store: FeatureStore, kind: ValueType) -> None:
    entity = Entity(name="thing", join_keys=["thing_id"], value_type=kind)
    view = view_of(entities=[entity], a=Int64)
    store.apply([entity, view])
    keys = KEYS[kind]
    protos = python_values_to_proto_values(keys, kind)
    rows = [
        (key_of(proto, names=["thing_id"]), {"a": Value(int64_val=number)}, NOW, None)
        for number, proto in enumerate(protos)
    ]
    store._get_provider().online_write_batch(store.config, view, rows, None)
    answer = store.get_online_features(["stats:a"], [{"thing_id": key} for key in reversed(keys)])
    assert answer.to_dict()["a"] == list(reversed(range(len(keys))))


def test_composite_keys_are_not_their_parts(store: FeatureStore) -> None:
    user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.STRING)
    item = Entity(name="item", join_keys=["item_id"], value_type=ValueType.INT64)
    view = view_of(entities=[item, user], a=Int64)
    store.apply([user, item, view])
    pairs = [("u", 1), ("u", 2), ("u1", 2), ("", 1)]
    frame = pd.DataFrame(
        {
            "user_id": [user for user, _ in pairs],
            "item_id": [item for _, item in pairs],
            "a": range(4),
            "event_timestamp": [NOW] * 4,
        }
    )
    store.push("stats_push", frame)
    asked = [*pairs, ("u1", 1), ("u", 1)]
    answer = store.get_online_features(
        ["stats:a"], [{"item_id": item, "user_id": user} for user, item in asked]
    )
    assert answer.to_dict()["a"] == [0, 1, 2, 3, None, 0]


def test_answers_keep_the_order_of_the_request(store: FeatureStore) -> None:
    view = view_of()
    store.apply([USER, view])
    users = [f"u{number}" for number in range(150)]
    frame = pd.DataFrame(
        {"user_id": users, "a": range(150), "b": users, "event_timestamp": [NOW] * 150}
    )
    store.push("stats_push", frame)
    asked = [*users, "nobody", "u3", "u3", "nobody"]
    random.Random(1).shuffle(asked)
    found = read(store, "stats:a", "stats:b", users=tuple(asked))
    assert found["user_id"] == asked
    assert found["b"] == [None if user == "nobody" else user for user in asked]
    assert found["a"] == [None if user == "nobody" else int(user[1:]) for user in asked]
    (found_statuses,) = statuses(store, "stats:a", users=tuple(asked))
    assert found_statuses == ["NOT_FOUND" if user == "nobody" else "PRESENT" for user in asked]


def test_full_feature_names_and_columns_of_several_views(store: FeatureStore) -> None:
    one, two = view_of("one"), view_of("two", a=Int64, c=Float32)
    store.apply([USER, one, two])
    write(store, one, NOW, a=Value(int64_val=1), b=Value(string_val="b"))
    write(store, two, NOW, a=Value(int64_val=2), c=Value(float_val=0.5))
    answer = store.get_online_features(
        ["two:a", "one:a", "two:c"], [{"user_id": "u"}], full_feature_names=True
    )
    assert answer.to_dict() == {"user_id": ["u"], "two__a": [2], "one__a": [1], "two__c": [0.5]}


# -- time ------------------------------------------------------------------------------------------


def test_the_newest_event_time_wins_in_any_order_of_arrival(store: FeatureStore) -> None:
    view = view_of(a=Int64)
    store.apply([USER, view])
    for number in (3, 1, 5, 2, 4):
        moment = NOW + timedelta(microseconds=number)
        write(store, view, moment, a=Value(int64_val=number))
    answer = store.get_online_features(["stats:a"], [{"user_id": "u"}])
    assert answer.to_dict()["a"] == [5]
    assert answer.proto.results[1].event_timestamps[0].ToDatetime(UTC) == NOW + timedelta(
        microseconds=5
    )


def test_a_correction_with_the_same_event_time_wins(store: FeatureStore) -> None:
    view = view_of()
    store.apply([USER, view])
    for event_time in (NOW, NOW - timedelta(hours=7), NOW - timedelta(days=2_000)):
        user = str(event_time)
        for number in (9, 1, 5, 0):
            write(
                store,
                view,
                event_time,
                user,
                a=Value(int64_val=number),
                b=Value(string_val=str(number)),
            )
            assert read(store, "stats:a", "stats:b", users=(user,)) == {
                "user_id": [user],
                "a": [number],
                "b": [str(number)],
            }


def test_time_zones_name_the_same_moment_and_naive_is_utc(store: FeatureStore) -> None:
    view = view_of(a=Int64)
    store.apply([USER, view])
    tokyo = timezone(timedelta(hours=9))
    write(store, view, NOW.astimezone(tokyo), a=Value(int64_val=1))
    write(store, view, NOW.replace(tzinfo=None) - timedelta(minutes=1), a=Value(int64_val=2))
    assert read(store, "stats:a")["a"] == [1]
    write(store, view, NOW.replace(tzinfo=None) + timedelta(minutes=1), a=Value(int64_val=3))
    assert read(store, "stats:a")["a"] == [3]


def test_a_write_of_some_features_leaves_the_others(store: FeatureStore) -> None:
    view = view_of()
    store.apply([USER, view])
    write(store, view, NOW, a=Value(int64_val=1), b=Value(string_val="old"))
    later = NOW + timedelta(seconds=1)
    write(store, view, later, b=Value(string_val="new"))
    assert read(store, "stats:a", "stats:b") == {"user_id": ["u"], "a": [1], "b": ["new"]}
    ((at, values),) = store._get_provider().online_read(store.config, view, [user_key("u")])
    assert at == later
    assert {name: value.WhichOneof("val") for name, value in values.items()} == {
        "a": "int64_val",
        "b": "string_val",
    }


def test_a_changed_ttl_holds_at_once(store: FeatureStore) -> None:
    store.apply([USER, view_of(ttl=timedelta(days=1), a=Int64)])
    write(store, store.get_feature_view("stats"), NOW - timedelta(hours=2), a=Value(int64_val=1))
    assert statuses(store, "stats:a") == [["PRESENT"]]
    store.apply([USER, view_of(ttl=timedelta(hours=1), a=Int64)])
    assert statuses(store, "stats:a") == [["OUTSIDE_MAX_AGE"]]
    store.apply([USER, view_of(ttl=None, a=Int64)])
    assert statuses(store, "stats:a") == [["PRESENT"]]


def test_without_enforcement_an_old_value_is_present(make_store: MakeStore) -> None:
    """What stock Feast's stores do."""
    store = make_store(enforce_ttl=False)
    store.apply([USER, view_of(ttl=timedelta(hours=1), a=Int64)])
    write(store, store.get_feature_view("stats"), NOW - timedelta(days=9), a=Value(int64_val=1))
    assert statuses(store, "stats:a") == [["PRESENT"]]
    assert read(store, "stats:a")["a"] == [1]


def test_an_expired_value_is_no_value(store: FeatureStore) -> None:
    store.apply([USER, view_of(ttl=timedelta(hours=1), a=Int64)])
    view = store.get_feature_view("stats")
    at = NOW - timedelta(days=9)
    write(store, view, at, a=Value(int64_val=1))
    write(store, view, NOW, user="fresh", a=Value(int64_val=2))
    users = ("u", "fresh", "nobody")
    assert read(store, "stats:a", users=users)["a"] == [None, 2, None]
    assert statuses(store, "stats:a", users=users) == [["OUTSIDE_MAX_AGE", "PRESENT", "NOT_FOUND"]]
    rows = [{"user_id": user} for user in users]
    (_, column) = store.get_online_features(["stats:a"], rows).proto.results
    # To whole seconds and back, as Feast's own stores answer.
    found = [stamp.ToMicroseconds() for stamp in column.event_timestamps]
    assert found == [int(one.timestamp() * 1e6) for one in (at, NOW)] + [0]


def test_a_feature_that_was_never_written_is_not_found(store: FeatureStore) -> None:
    view = view_of("partly", first=Int64, second=String)
    store.apply([USER, view])
    write(store, view, NOW, first=Value(int64_val=1))
    assert statuses(store, "partly:first") == [["PRESENT"]]
    assert statuses(store, "partly:second") == [["NOT_FOUND"]]
    assert read(store, "partly:second") == {"user_id": ["u"], "second": [None]}


def test_microseconds_order_event_times(store: FeatureStore) -> None:
    view = view_of(a=Int64)
    store.apply([USER, view])
    later = NOW + timedelta(microseconds=1)
    write(store, view, later, a=Value(int64_val=2))
    write(store, view, NOW, a=Value(int64_val=1))
    assert read(store, "stats:a")["a"] == [2]
    ((at, _),) = store._get_provider().online_read(store.config, view, [user_key("u")])
    assert at == later


# -- what goes wrong -------------------------------------------------------------------------------


def test_a_key_that_is_too_long_is_told(store: FeatureStore) -> None:
    view = view_of(a=Int64)
    store.apply([USER, view])
    with pytest.raises(StoreRejected, match="bytes"):
        write(store, view, NOW, user="x" * 60_000, a=Value(int64_val=1))
    with pytest.raises(StoreRejected, match="bytes"):
        read(store, "stats:a", users=("x" * 60_000, "u"))
    write(store, view, NOW, user="x" * 30_000, a=Value(int64_val=1))
    assert read(store, "stats:a", users=("x" * 30_000,))["a"] == [1]


def test_a_hung_store_ends_reads_and_writes_in_a_clear_error(
    make_store: MakeStore, lazy_stack: LocalStack
) -> None:
    store = make_store(request_timeout=0.5)
    view = view_of(a=Int64)
    store.apply([USER, view])
    write(store, view, NOW, a=Value(int64_val=1))
    many = tuple(f"u{number}" for number in range(100))
    lazy_stack.cassandra.pause()
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="Cassandra"):
        read(store, "stats:a", users=many)
    with pytest.raises(StoreUnavailable, match="Cassandra"):
        write(store, view, NOW, a=Value(int64_val=2))
    assert time.monotonic() - began < 10  # not a speed: both end, long before a driver's default
    lazy_stack.cassandra.resume()


# -- async -----------------------------------------------------------------------------------------


async def test_the_async_interface_says_the_same(store: FeatureStore) -> None:
    view = view_of()
    await asyncio.to_thread(store.apply, [USER, view])
    frame = pd.DataFrame(
        {"user_id": ["u", "v"], "a": [1, 2], "b": ["x", None], "event_timestamp": [NOW] * 2}
    )
    await store.push_async("stats_push", frame)
    provider = store._get_provider()
    assert provider.async_supported.online.read
    assert provider.async_supported.online.write
    rows = [{"user_id": user} for user in ("v", "nobody", "u", "v")]
    features = ["stats:b", "stats:a"]
    found = await store.get_online_features_async(features, rows)
    same = await asyncio.to_thread(store.get_online_features, features, rows)
    assert found.to_dict() == same.to_dict()
    assert found.to_dict()["a"] == [2, None, 1, 2]
    keys = [user_key("u"), user_key("nobody")]
    assert await provider.online_read_async(store.config, view, keys) == provider.online_read(
        store.config, view, keys
    )


async def test_progress_is_told(store: FeatureStore) -> None:
    view = view_of(a=Int64)
    await asyncio.to_thread(store.apply, [USER, view])
    rows = [(user_key(f"u{n}"), {"a": Value(int64_val=n)}, NOW, None) for n in range(2_500)]
    seen: list[int] = []
    online_store = store._get_provider().online_store
    await online_store.online_write_batch_async(store.config, view, rows, seen.append)
    assert sum(seen) == 2_500
    await asyncio.to_thread(online_store.online_write_batch, store.config, view, rows, seen.append)
    assert sum(seen) == 5_000
    found = await online_store.online_read_async(store.config, view, [user_key("u2499")])
    assert found[0][1] == {"a": Value(int64_val=2_499)}
