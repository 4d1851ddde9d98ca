"""Views and projects come and go: isolation, drops, versions, names, many views."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from feast import FeatureStore, FeatureView, RepoConfig
from feast.protos.feast.types.Value_pb2 import Value
from feast.types import Int64

from streams.feature_row_store import purge
from streams.schema_store import admin_session, create_schema, drop_keyspace
from streams.settings import CassandraSettings
from tests.integration.test_online_store import (
    NOW,
    USER,
    read,
    statuses,
    user_key,
    view_of,
    write,
)

MakeStore = Callable[..., FeatureStore]


def put(store: FeatureStore, view: FeatureView, number: int, at: Any = NOW) -> None:
    write(store, view, at, a=Value(int64_val=number))


def test_projects_and_views_with_similar_names_are_apart(make_store: MakeStore) -> None:
    names = [("a_b", "c"), ("a", "b_c"), ("a", "c"), ("a_b", "b_c")]
    suffix = str(time.time_ns())
    stores = {p: make_store(f"{p}{suffix}") for p in {project for project, _ in names}}
    views = {name: view_of(name[1], a=Int64) for name in names}
    for project, store in stores.items():
        store.apply([USER, *(views[name] for name in names if name[0] == project)])
    for number, name in enumerate(names):
        put(stores[name[0]], views[name], number)
    for number, (project, view) in enumerate(names):
        assert read(stores[project], f"{view}:a")["a"] == [number]


def test_a_view_that_was_dropped_comes_back_empty(
    make_store: MakeStore, cassandra_settings: CassandraSettings
) -> None:
    store = make_store()
    view, other = view_of("stats", a=Int64), view_of("other", a=Int64)
    for round_number in range(3):
        store.apply([USER, view, other])
        assert statuses(store, "stats:a") == [["NOT_FOUND"]]
        # Older than what the last round deleted.
        put(store, view, round_number, NOW - timedelta(days=round_number))
        put(store, other, 7)
        assert read(store, "stats:a")["a"] == [round_number]
        store.apply([], objects_to_delete=[store.get_feature_view("stats")], partial=False)
        assert read(store, "other:a")["a"] == [7]
        with admin_session(cassandra_settings) as session:
            session.set_keyspace(cassandra_settings.keyspace)
            keys = session.execute(
                "SELECT DISTINCT feature_view, entity_key FROM feature_row", timeout=30
            )
            assert not [k for k in keys if k.feature_view.startswith(f"{store.project}/stats")]
        view = view_of("stats", a=Int64)
    assert purge(cassandra_settings) == 0


def test_teardown_deletes_this_project_only(make_store: MakeStore) -> None:
    mine, yours = make_store(), make_store()
    view = view_of(a=Int64)
    for store in (mine, yours):
        store.apply([USER, view])
        put(store, view, 1)
    mine.teardown()
    mine.apply([USER, view_of(a=Int64)])
    assert statuses(mine, "stats:a") == [["NOT_FOUND"]]
    assert read(yours, "stats:a")["a"] == [1]


def test_a_change_of_the_schema_keeps_what_is_stored(make_store: MakeStore) -> None:
    store = make_store()
    store.apply([USER, view_of(a=Int64)])
    put(store, store.get_feature_view("stats"), 1)
    store.apply([USER, view_of(a=Int64, added=Int64)])
    assert read(store, "stats:a", "stats:added") == {"user_id": ["u"], "a": [1], "added": [None]}


def test_versions_of_a_view_are_kept_apart(make_store: MakeStore) -> None:
    """`view@vN` names what was written under that schema; without it the newest one is meant."""
    store = make_store(versioned=True)
    store.apply([USER, view_of("versioned", a=Int64)])
    put(store, store.get_feature_view("versioned"), 1)
    store.apply([USER, view_of("versioned", a=Int64, b=Int64)])
    assert store.get_feature_view("versioned").current_version_number == 1
    assert statuses(store, "versioned:a") == [["NOT_FOUND"]]
    put(store, store.get_feature_view("versioned"), 2)
    assert read(store, "versioned:a")["a"] == [2]
    assert read(store, "versioned@v1:a")["a"] == [2]
    assert read(store, "versioned@v0:a")["a"] == [1]


def test_long_names(make_store: MakeStore) -> None:
    store = make_store("p" * 200)
    view = view_of("v" * 200, **{"f" * 300: Int64, "a": Int64})
    store.apply([USER, view])
    write(store, view, NOW, **{"f" * 300: Value(int64_val=3)})
    assert read(store, f"{'v' * 200}:{'f' * 300}")["f" * 300] == [3]


def test_two_keyspaces_in_one_process(
    make_store: MakeStore, cassandra_settings: CassandraSettings
) -> None:
    other = msgspec.structs.replace(cassandra_settings, keyspace=f"{cassandra_settings.keyspace}_b")
    create_schema(other)
    try:
        project = f"p{time.time_ns()}"
        here, there = make_store(project), make_store(project, keyspace=other.keyspace)
        view = view_of(a=Int64)
        here.apply([USER, view])
        there.apply([USER, view])
        put(here, view, 1)
        put(there, view, 2)
        assert read(here, "stats:a")["a"] == [1]
        assert read(there, "stats:a")["a"] == [2]
    finally:
        drop_keyspace(other)


def test_a_keyspace_that_was_dropped_and_made_again(
    make_store: MakeStore, cassandra_settings: CassandraSettings
) -> None:
    """Prepared statements of the first one are no good for the second."""
    again = msgspec.structs.replace(
        cassandra_settings, keyspace=f"{cassandra_settings.keyspace}_again"
    )
    store = make_store(keyspace=again.keyspace)
    view = view_of(a=Int64)
    try:
        for number in range(2):
            store.apply([USER, view])
            assert statuses(store, "stats:a") == [["NOT_FOUND"]]
            put(store, view, number)
            assert read(store, "stats:a")["a"] == [number]
            drop_keyspace(again)
    finally:
        drop_keyspace(again)


def test_feasts_precomputed_vectors_work(make_store: MakeStore) -> None:
    """Feast keeps them in a view without a source that isn't in the registry."""
    store = make_store()
    view = view_of(a=Int64)
    store.apply([USER, view])
    online_store = store._get_provider().online_store
    online_store.write_precomputed_vector(
        store.config, "service", store.project, user_key("u"), b"blob"
    )
    found = online_store.read_precomputed_vectors(
        store.config, "service", store.project, [user_key("u"), user_key("v")]
    )
    assert found == [b"blob", None]


def test_a_read_does_not_depend_on_the_number_of_views(make_store: MakeStore) -> None:
    """Neither in our part of it nor, once the registry's cache is filled, in Feast's."""
    store = make_store()
    view = view_of(a=Int64)
    store.apply([USER, view])
    put(store, view, 1)

    def num_calls() -> int:
        """Function calls of a read: its work, whatever else the machine does."""
        read(store, "stats:a")
        calls = 0

        def count(_: object, event: str, __: object) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        try:
            read(store, "stats:a")
        finally:
            sys.setprofile(None)
        return calls

    few = num_calls()
    store.apply([view_of(f"view{number}", a=Int64) for number in range(200)])
    assert abs(num_calls() - few) < 50  # of a hundred times as many


def test_configuration_comes_from_the_settings_unless_set(
    cassandra_settings: CassandraSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWATER_HOME", str(tmp_path))
    monkeypatch.setenv("HEADWATER_CASSANDRA__PORT", str(cassandra_settings.port))
    monkeypatch.setenv("HEADWATER_CASSANDRA__REQUEST_TIMEOUT_SECONDS", "7")
    config = RepoConfig(
        project="p",
        provider="local",
        registry=str(tmp_path / "r.db"),
        online_store={
            "type": "streams.online_store.HeadwaterOnlineStore",
            "keyspace": cassandra_settings.keyspace,
            "request_timeout": 3,
        },
        entity_key_serialization_version=3,
    )
    settings = config.online_store.settings(tmp_path)
    assert settings.port == cassandra_settings.port
    assert settings.keyspace == cassandra_settings.keyspace
    assert settings.request_timeout_seconds == 3
