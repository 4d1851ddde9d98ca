"""Feast as it comes, on its own Cassandra store: what fetch and push stand against."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from feast import Entity, FeatureStore, FeatureView, Field, FileSource, PushSource, RepoConfig
from feast.types import Array, Float32, Int64, String
from feast.value_type import ValueType


def stock_store(folder: Path, port: int, keyspace: str) -> FeatureStore:
    """A store with its registry in `folder`."""
    return FeatureStore(
        config=RepoConfig(
            project="bench",
            provider="local",
            registry={"path": str(folder / "registry.db"), "cache_ttl_seconds": 3_600},
            online_store={
                "type": "cassandra",
                "hosts": ["127.0.0.1"],
                "port": port,
                "keyspace": keyspace,
                "protocol_version": 5,
                "load_balancing": {
                    "load_balancing_policy": "TokenAwarePolicy(DCAwareRoundRobinPolicy)",
                    "local_dc": "datacenter1",
                },
            },
            offline_store={"type": "file"},
            entity_key_serialization_version=3,
        )
    )


def _user() -> Entity:
    return Entity(name="user", join_keys=["user_id"], value_type=ValueType.STRING)


def _source(folder: Path, name: str) -> FileSource:
    return FileSource(
        name=f"{name}_file", path=str(folder / "none.parquet"), timestamp_field="event_timestamp"
    )


def last_event_store(folder: Path, port: int, keyspace: str) -> FeatureStore:
    """A view of the newest event per user, which `last_event_push` writes."""
    store, user = stock_store(folder, port, keyspace), _user()
    push = PushSource(name="last_event_push", batch_source=_source(folder, "last_event"))
    view = FeatureView(
        name="last_event",
        entities=[user],
        schema=[
            Field(name="item_id", dtype=String),
            Field(name="event_type", dtype=String),
            Field(name="surface", dtype=String),
        ],
        ttl=timedelta(days=3_650),
        source=push,
    )
    store.apply([user, push, view])
    return store


SEQUENCE_FIELDS: dict[str, Any] = {
    "event_time": Array(Int64),
    "item_id": Array(String),
    "event_type": Array(String),
    "surface": Array(String),
    "value": Array(Float32),
}
REPRESENTATION_FIELDS: dict[str, Any] = {
    "vector": Array(Float32),
    "version": String,
    "as_of": Int64,
    "encoded_at": Int64,
}


def features_store(folder: Path, port: int, keyspace: str, sequences: list[str]) -> FeatureStore:
    """Views with the same values as the platform's sequences and one representation."""
    store, user = stock_store(folder, port, keyspace), _user()
    views = [
        FeatureView(
            name=name,
            entities=[user],
            schema=[Field(name=field, dtype=dtype) for field, dtype in fields.items()],
            ttl=timedelta(days=3_650),
            source=_source(folder, name),
        )
        for name, fields in [
            *((name, SEQUENCE_FIELDS) for name in sequences),
            ("user_representation", REPRESENTATION_FIELDS),
        ]
    ]
    store.apply([user, *views])
    return store
