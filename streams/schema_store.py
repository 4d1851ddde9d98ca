"""The keyspace and its tables, and how they are created (cassandra-driver).

Every table is created `IF NOT EXISTS`, so that a later version adds tables without a migration.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cassandra import DriverException, OperationTimedOut, RequestExecutionException
from cassandra.cluster import (
    EXEC_PROFILE_DEFAULT,
    Cluster,
    ExecutionProfile,
    NoHostAvailable,
    Session,
)
from cassandra.policies import DCAwareRoundRobinPolicy

from streams.errors import StoreRejected, StoreUnavailable
from streams.settings import CassandraSettings

_TIMEOUT_SECONDS = 30.0

# Deletions must outlive every replay of the log that could bring a deleted row back. The events
# topic keeps seven days (`kafka.retention_hours`), Cassandra's own default of ten covers it.
_GC_GRACE_SECONDS = 10 * 24 * 3600

# A sequence's newest chunk is rewritten with every flush: tiered compaction keeps the write
# amplification low, and the newest version is found in the memtable or the youngest file.
# Chunks are 2-8 kB: 16 kB blocks compress several versions together.
_USER_SEQUENCE = f"""
CREATE TABLE IF NOT EXISTS user_sequence (
    user_id text,
    feature_view text,
    chunk bigint,
    value blob,
    mark blob static,
    PRIMARY KEY ((user_id), feature_view, chunk)
) WITH CLUSTERING ORDER BY (feature_view ASC, chunk DESC)
  AND compaction = {{'class': 'UnifiedCompactionStrategy', 'scaling_parameters': 'T4'}}
  AND compression = {{'class': 'LZ4Compressor', 'chunk_length_in_kb': 16}}
  AND gc_grace_seconds = {_GC_GRACE_SECONDS}
"""

# Read by every request, written once per refresh: levelled compaction keeps a read to one file.
# A vector is some hundred bytes of floats, which don't compress: small blocks, less to read.
# The version is part of the partition key (R7): a retired version leaves by its TTL, as whole
# partitions, and not as a storm of tombstones in the partitions of the live one.
_REPRESENTATION = f"""
CREATE TABLE IF NOT EXISTS representation (
    encoder text,
    version text,
    user_id text,
    value blob,
    PRIMARY KEY ((encoder, version, user_id))
) WITH compaction = {{'class': 'UnifiedCompactionStrategy', 'scaling_parameters': 'L4'}}
  AND compression = {{'class': 'LZ4Compressor', 'chunk_length_in_kb': 4}}
  AND gc_grace_seconds = {_GC_GRACE_SECONDS}
"""

# The active version is one cell per encoder, so that two activations can't leave two of them.
_ENCODER_VERSION = """
CREATE TABLE IF NOT EXISTS encoder_version (
    encoder text,
    version text,
    active text static,
    state text,
    created_at timestamp,
    stats text,
    PRIMARY KEY ((encoder), version)
)
"""

_STREAM_LOG = """
CREATE TABLE IF NOT EXISTS stream_log (
    topic text,
    epoch int,
    topic_id text,
    partitions int,
    opened_at timestamp,
    PRIMARY KEY ((topic), epoch)
) WITH CLUSTERING ORDER BY (epoch DESC)
"""

# Read-mostly like `representation`; a partition is one entity's row of one view.
_FEATURE_ROW = f"""
CREATE TABLE IF NOT EXISTS feature_row (
    feature_view text,
    entity_key blob,
    feature text,
    value blob,
    PRIMARY KEY ((feature_view, entity_key), feature)
) WITH compaction = {{'class': 'UnifiedCompactionStrategy', 'scaling_parameters': 'L4'}}
  AND compression = {{'class': 'LZ4Compressor', 'chunk_length_in_kb': 4}}
  AND gc_grace_seconds = {_GC_GRACE_SECONDS}
"""

# How often a view was dropped. It is part of `feature_row.feature_view`, so that a recreated view
# starts empty and takes any event time, also one below those that were deleted.
_VIEW_GENERATION = """
CREATE TABLE IF NOT EXISTS view_generation (
    feature_view text PRIMARY KEY,
    generation int
)
"""

TABLES: dict[str, str] = {
    "user_sequence": _USER_SEQUENCE,
    "representation": _REPRESENTATION,
    "encoder_version": _ENCODER_VERSION,
    "stream_log": _STREAM_LOG,
    "feature_row": _FEATURE_ROW,
    "view_generation": _VIEW_GENERATION,
}


@contextmanager
def admin_session(settings: CassandraSettings) -> Iterator[Session]:
    """A cassandra-driver session for schema and maintenance, without a keyspace.

    Raises StoreUnavailable or StoreRejected, also for what happens inside the block.
    """
    profile = ExecutionProfile(
        load_balancing_policy=DCAwareRoundRobinPolicy(settings.local_datacenter),
        request_timeout=_TIMEOUT_SECONDS,
    )
    cluster = Cluster(
        list(settings.contact_points),
        port=settings.port,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        connect_timeout=settings.connect_timeout_seconds,
        control_connection_timeout=settings.connect_timeout_seconds,
        protocol_version=5,
    )
    try:
        yield cluster.connect()
    except (NoHostAvailable, OperationTimedOut) as error:
        address = f"{','.join(settings.contact_points)}:{settings.port}"
        raise StoreUnavailable(f"Cassandra at {address} can't be reached: {error}") from error
    except (DriverException, RequestExecutionException) as error:
        raise StoreRejected(f"Cassandra refused: {error}") from error
    finally:
        cluster.shutdown()


def create_schema(settings: CassandraSettings) -> None:
    """Create the keyspace and every table that isn't there; safe to repeat and to race."""
    with admin_session(settings) as session:
        session.execute(_keyspace_statement(settings))
        session.set_keyspace(settings.keyspace)
        for statement in TABLES.values():
            session.execute(statement)


def drop_keyspace(settings: CassandraSettings) -> None:
    """Delete the keyspace with all that is in it."""
    with admin_session(settings) as session:
        session.execute(f"DROP KEYSPACE IF EXISTS {settings.keyspace}")


def _keyspace_statement(settings: CassandraSettings) -> str:
    replication = (
        f"{{'class': 'NetworkTopologyStrategy', "
        f"'{settings.local_datacenter}': {settings.replication_factor}}}"
    )
    return f"CREATE KEYSPACE IF NOT EXISTS {settings.keyspace} WITH replication = {replication}"
