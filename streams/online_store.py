"""Feast's online store on Cassandra: ordinary views, and sequences and representations as views.

Ordinary views are rows of `feature_row`: newest event time wins in any order of arrival, of equal
ones the later write, rows are whole, nulls are values. Sequence and representation views are read
straight from the tables that the workers write; Feast can't write them.

The sync interface runs in the process's loops for sync callers, the async one in the caller's.
Feast makes the store itself, which is why it reads the clock and the settings here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

import streams.feast_light  # noqa: F401 # isort: skip
from feast import Entity, FeatureView, utils
from feast.infra.online_stores.online_store import OnlineStore
from feast.infra.supported_async_methods import SupportedAsyncMethods
from feast.protos.feast.types.EntityKey_pb2 import EntityKey as EntityKeyProto
from feast.protos.feast.types.Value_pb2 import Value as ValueProto
from feast.repo_config import FeastConfigBaseModel, RepoConfig
from pydantic import PositiveFloat, PositiveInt, PrivateAttr

from streams.errors import HeadwaterError, StoreRejected, StoreUnavailable
from streams.feast_answers import (
    Answer,
    ReadRow,
    Request,
    add_schema_version,
    entity_key_bytes,
    outcomes_of,
    request_for,
    respond,
    rows_of,
    schema_version,
)
from streams.feast_reads import Reading, read_answers
from streams.feature_row_store import FeatureRow, purge, stored_view, view_name
from streams.reads import process_reads, serving
from streams.schema_store import create_schema
from streams.settings import CassandraSettings, load_settings
from streams.stores import StorePool, Stores, store_pool
from streams.views import view_of

Data = list[tuple[EntityKeyProto, dict[str, ValueProto], datetime, datetime | None]]
T = TypeVar("T")

_log = logging.getLogger(__name__)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_WRITE_CHUNK = 1_000


class HeadwaterOnlineStoreConfig(FeastConfigBaseModel):  # type: ignore[misc]
    """`online_store` in feature_store.yaml. What isn't set comes from the platform's settings."""

    type: Literal["streams.online_store.HeadwaterOnlineStore"] = (
        "streams.online_store.HeadwaterOnlineStore"
    )
    hosts: list[str] | None = None
    port: PositiveInt | None = None
    keyspace: str | None = None
    local_datacenter: str | None = None
    replication_factor: PositiveInt | None = None
    # Seconds after which a read or a write ends, connecting included.
    request_timeout: PositiveFloat | None = None
    connect_timeout: PositiveFloat | None = None
    # A value past its view's ttl is answered as OUTSIDE_MAX_AGE; False: as present.
    enforce_ttl: bool = True

    _settings: CassandraSettings | None = PrivateAttr(default=None)

    def use(self, settings: CassandraSettings) -> None:
        """Take what isn't set here from these settings."""
        chosen = {
            "contact_points": None if self.hosts is None else tuple(self.hosts),
            "port": self.port,
            "keyspace": self.keyspace,
            "local_datacenter": self.local_datacenter,
            "replication_factor": self.replication_factor,
            "request_timeout_seconds": self.request_timeout,
            "connect_timeout_seconds": self.connect_timeout,
        }
        merged = msgspec.structs.asdict(settings) | {
            key: value for key, value in chosen.items() if value is not None
        }
        self._settings = msgspec.convert(merged, CassandraSettings)

    def settings(self, repo_path: Path | None) -> CassandraSettings:
        """Where Cassandra is. Raises ConfigError."""
        if self._settings is None:
            self.use(load_settings(cwd=repo_path).cassandra)
        assert self._settings is not None
        return self._settings


class HeadwaterOnlineStore(OnlineStore):  # type: ignore[misc]
    """See the module. Every failure is a StoreUnavailable or a StoreRejected, in time."""

    @property
    def async_supported(self) -> SupportedAsyncMethods:
        """Both reads and writes; Feast's feature server asks."""
        return SupportedAsyncMethods(read=True, write=True)

    def _is_versioned_read_supported(self) -> bool:
        return True

    # -- reading -------------------------------------------------------------------------------

    def online_read(
        self,
        config: RepoConfig,
        table: FeatureView,
        entity_keys: list[EntityKeyProto],
        requested_features: list[str] | None = None,
    ) -> list[ReadRow]:
        """Per entity (newest event time, values by feature), or (None, None) if there is no row.

        A value that is past its ttl is left out, as this interface has no word for it.
        """
        request = self._request(config, table, entity_keys, requested_features)
        (answer,) = self._run(config, self._read(config, [request]))
        return rows_of(request, answer)

    async def online_read_async(
        self,
        config: RepoConfig,
        table: FeatureView,
        entity_keys: list[EntityKeyProto],
        requested_features: list[str] | None = None,
    ) -> list[ReadRow]:
        """Like `online_read`, in the caller's loop."""
        request = self._request(config, table, entity_keys, requested_features)
        (answer,) = await self._read(config, [request])
        return rows_of(request, answer)

    def _read_features_per_fv(
        self,
        config: RepoConfig,
        grouped_refs: list[tuple[FeatureView, list[str]]],
        join_key_values: dict[str, list[ValueProto]],
        entity_name_to_join_key_map: dict[str, str],
        online_features_response: Any,
        full_feature_names: bool,
        include_feature_view_version_metadata: bool,
    ) -> None:
        """Called by Feast for get_online_features: all views in one go, with every status."""
        requests, places = self._requests(
            config, grouped_refs, join_key_values, entity_name_to_join_key_map
        )
        answers = self._run(config, self._read(config, requests))
        for request, answer, rows in zip(requests, answers, places, strict=True):
            respond(online_features_response, request, answer, rows, full_feature_names)
            if include_feature_view_version_metadata:
                add_schema_version(online_features_response, request.table)

    async def _read_features_per_fv_async(
        self,
        config: RepoConfig,
        grouped_refs: list[tuple[FeatureView, list[str]]],
        join_key_values: dict[str, list[ValueProto]],
        entity_name_to_join_key_map: dict[str, str],
        online_features_response: Any,
        full_feature_names: bool,
        include_feature_view_version_metadata: bool,
    ) -> None:
        """Called by Feast for get_online_features_async, and so by the feature server."""
        requests, places = self._requests(
            config, grouped_refs, join_key_values, entity_name_to_join_key_map
        )
        answers = await self._read(config, requests)
        for request, answer, rows in zip(requests, answers, places, strict=True):
            respond(online_features_response, request, answer, rows, full_feature_names)
            if include_feature_view_version_metadata:
                add_schema_version(online_features_response, request.table)

    def _requests(
        self,
        config: RepoConfig,
        grouped_refs: list[tuple[FeatureView, list[str]]],
        join_key_values: dict[str, list[ValueProto]],
        join_keys: dict[str, str],
    ) -> tuple[list[Request], list[list[int]]]:
        """The requests, and for each the place of every row's entity in it."""
        requests, places = [], []
        for table, features in grouped_refs:
            entities, indexes, length = utils._get_unique_entities(
                table, join_key_values, join_keys
            )
            keys = utils._get_entity_key_protos(entities)
            requests.append(self._request(config, table, keys, features))
            rows = [0] * length
            for place, destinations in enumerate(indexes):
                for row in destinations:
                    rows[row] = place
            places.append(rows)
        return requests, places

    def _request(
        self,
        config: RepoConfig,
        table: FeatureView,
        entity_keys: Sequence[EntityKeyProto],
        features: Sequence[str] | None,
    ) -> Request:
        version = config.entity_key_serialization_version
        return request_for(table, view_of(table), entity_keys, features, version)

    async def _read(self, config: RepoConfig, requests: Sequence[Request]) -> list[Answer]:
        reading = Reading(
            config.project,
            time.time_ns() // 1_000,
            time.time,
            config.online_store.enforce_ttl,
            config.registry.enable_online_feature_view_versioning,
        )
        timeout = self._settings(config).request_timeout_seconds
        reads = process_reads()
        try:
            answers = await read_answers(self._stores(config), requests, reading, timeout)
        except HeadwaterError:
            for request in requests:
                reads.outcomes(request.table.name, {"failed": len(request.keys)})
            raise
        for request, answer in zip(requests, answers, strict=True):
            reads.outcomes(request.table.name, outcomes_of(answer))
        return answers

    # -- writing -------------------------------------------------------------------------------

    def online_write_batch(
        self,
        config: RepoConfig,
        table: FeatureView,
        data: Data,
        progress: Callable[[int], Any] | None,
    ) -> None:
        """Store rows; a row's features are one atomic write at its event time (naive: UTC)."""
        for start in range(0, len(data), _WRITE_CHUNK):
            chunk = data[start : start + _WRITE_CHUNK]
            settings = self._settings(config)
            # Each write has its own deadline, and there are this many turns of them.
            turns = 2 + len(chunk) // settings.max_requests_in_flight
            limit = turns * settings.request_timeout_seconds
            self._run(config, self._write(config, table, chunk), limit)
            if progress is not None:
                progress(len(chunk))

    async def online_write_batch_async(
        self,
        config: RepoConfig,
        table: FeatureView,
        data: Data,
        progress: Callable[[int], Any] | None,
    ) -> None:
        """Like `online_write_batch`, in the caller's loop."""
        for start in range(0, len(data), _WRITE_CHUNK):
            chunk = data[start : start + _WRITE_CHUNK]
            await self._write(config, table, chunk)
            if progress is not None:
                progress(len(chunk))

    async def _write(self, config: RepoConfig, table: FeatureView, data: Data) -> None:
        view = view_of(table)
        if view is not None:
            raise StoreRejected(
                f"{table.name} is a {type(view).__name__}: the workers fill it from the events "
                "topic, Feast can't write it; send events with EventProducer or `headwater produce`"
            )
        stores = self._stores(config)
        name = view_name(config.project, table.name)
        versioning = config.registry.enable_online_feature_view_versioning
        stored = stored_view(
            name, await stores.generations.get(name), schema_version(table, versioning)
        )
        key_version = config.entity_key_serialization_version
        outcomes = await stores.feature_rows.write_many(
            [
                FeatureRow(
                    stored,
                    entity_key_bytes(key, key_version),
                    {feature: value.SerializeToString() for feature, value in values.items()},
                    _microseconds(event_time),
                )
                for key, values, event_time, _ in data
            ]
        )
        failed = [outcome for outcome in outcomes if outcome is not None]
        if failed:
            raise type(failed[0])(
                f"view {table.name}: {len(failed)} of {len(data)} rows aren't stored: {failed[0]}"
            )

    # -- the life of the tables ----------------------------------------------------------------

    def update(
        self,
        config: RepoConfig,
        tables_to_delete: Sequence[FeatureView],
        tables_to_keep: Sequence[FeatureView],  # noqa: ARG002
        entities_to_delete: Sequence[Entity],  # noqa: ARG002
        entities_to_keep: Sequence[Entity],  # noqa: ARG002
        partial: bool,  # noqa: ARG002
    ) -> None:
        """Called by `apply`: create what is missing, delete the rows of dropped ordinary views.

        Rows of a dropped sequence or representation view are derived from the log and stay.
        """
        create_schema(self._settings(config))
        self._drop(config, tables_to_delete)

    def teardown(
        self,
        config: RepoConfig,
        tables: Sequence[FeatureView],
        entities: Sequence[Entity],  # noqa: ARG002
    ) -> None:
        """Delete the rows of these views."""
        create_schema(self._settings(config))
        self._drop(config, tables)

    def _drop(self, config: RepoConfig, tables: Sequence[FeatureView]) -> None:
        names = [
            view_name(config.project, table.name) for table in tables if view_of(table) is None
        ]
        if not names:
            return
        pool = self._pool(config)

        async def drop() -> None:
            for name in names:
                await pool.stores().feature_rows.drop(name)

        self._run(config, drop(), 2 * len(names) * pool.settings.request_timeout_seconds)
        for name in names:
            pool.forget_generation(name)
        purge(pool.settings)

    async def initialize(self, config: RepoConfig) -> None:
        """Called when a feature server starts: connect before the first request does."""
        try:
            await self._stores(config).session.connect()
        except StoreUnavailable as error:
            _log.warning("%s; requests fail until it is there", error)
        self._config = config
        serving()

    async def close(self) -> None:
        """Called when a feature server ends: close its connections."""
        if self._config is not None:
            await self._pool(self._config).close()

    _config: RepoConfig | None = None

    # -- sessions ------------------------------------------------------------------------------

    def _settings(self, config: RepoConfig) -> CassandraSettings:
        settings: CassandraSettings = config.online_store.settings(config.repo_path)
        return settings

    def _pool(self, config: RepoConfig) -> StorePool:
        return store_pool(self._settings(config))

    def _stores(self, config: RepoConfig) -> Stores:
        return self._pool(config).stores()

    def _run(
        self, config: RepoConfig, work: Coroutine[Any, Any, T], timeout: float | None = None
    ) -> T:
        pool = self._pool(config)
        return pool.run(work, timeout or pool.settings.request_timeout_seconds)


def _microseconds(moment: datetime) -> int:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // _MICROSECOND
