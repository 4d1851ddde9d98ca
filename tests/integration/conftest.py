"""Feast stores on the run's Cassandra, each with a registry and a project of its own."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from feast import FeatureStore, RepoConfig

from streams.settings import CassandraSettings

MakeStore = Callable[..., FeatureStore]


@pytest.fixture
def make_store(cassandra_settings: CassandraSettings, tmp_path: Path) -> MakeStore:
    """Makes a FeatureStore; options go to `online_store`, `versioned` keeps versions apart."""

    def make(
        project: str | None = None, *, versioned: bool = False, **online_store: Any
    ) -> FeatureStore:
        name = project or f"p{secrets.token_hex(5)}"
        options = {
            "type": "streams.online_store.HeadwaterOnlineStore",
            "hosts": list(cassandra_settings.contact_points),
            "port": cassandra_settings.port,
            "keyspace": cassandra_settings.keyspace,
            "connect_timeout": 5.0,
            "request_timeout": 5.0,
        }
        config = RepoConfig(
            project=name,
            provider="local",
            registry={
                "path": str(tmp_path / f"{name}.db"),
                "enable_online_feature_view_versioning": versioned,
            },
            online_store=options | online_store,
            offline_store={"type": "file"},
            entity_key_serialization_version=3,
        )
        config.repo_path = tmp_path
        return FeatureStore(config=config)

    return make
