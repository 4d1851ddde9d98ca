"""Fixtures of all tests: one local stack per run, started service by service when first asked for.

A test that needs only Cassandra asks for `cassandra_service`, so that a run of it alone starts
nothing else. The stack lies in a temporary home with free ports of its own, and ends with the
run, however that ends.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from infra.local.cassandra import CassandraService
from infra.local.kafka import KafkaService
from infra.local.stack import LocalStack
from infra.local.triton import TritonService
from streams.schema_store import create_schema, drop_keyspace
from streams.settings import CassandraSettings
from tests.encoder_double import encoder_models, encoding
from tests.worker_platform import applied_registry, platform

__all__ = ["applied_registry", "encoder_models", "encoding", "platform"]

_STACK_FIXTURES = {"lazy_stack", "local_stack"}


@pytest.fixture(scope="session")
def lazy_stack() -> Iterator[LocalStack]:
    """The run's stack, with nothing started yet."""
    stack = LocalStack(Path(tempfile.mkdtemp(prefix="headwater-test-")), disposable=True)
    try:
        yield stack
    finally:
        stack.close()


@pytest.fixture(scope="session")
def kafka_service(lazy_stack: LocalStack) -> KafkaService:
    """A running broker."""
    lazy_stack.start({"kafka"})
    return lazy_stack.kafka


@pytest.fixture(scope="session")
def cassandra_service(lazy_stack: LocalStack) -> CassandraService:
    """A running node."""
    lazy_stack.start({"cassandra"})
    return lazy_stack.cassandra


@pytest.fixture(scope="session")
def triton_service(lazy_stack: LocalStack) -> TritonService:
    """A running server with an empty model repository."""
    lazy_stack.start({"triton"})
    return lazy_stack.triton


@pytest.fixture(scope="session")
def local_stack(lazy_stack: LocalStack) -> LocalStack:
    """All services, started side by side; `local_stack.settings` has the addresses."""
    lazy_stack.start()
    return lazy_stack


@pytest.fixture(scope="session")
def cassandra_settings(
    lazy_stack: LocalStack, cassandra_service: CassandraService
) -> Iterator[CassandraSettings]:
    """A keyspace with all tables, for this run."""
    assert cassandra_service.is_running
    settings = msgspec.structs.replace(
        lazy_stack.settings.cassandra, keyspace=f"test_{secrets.token_hex(6)}"
    )
    create_schema(settings)
    yield settings
    drop_keyspace(settings)


@pytest.fixture
def unique() -> str:
    """A name that no other test uses."""
    return f"u-{secrets.token_hex(8)}"


@pytest.fixture(autouse=True)
def _services_are_mended(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test that paused or killed a service, it runs again for the next one."""
    yield
    if _STACK_FIXTURES & set(request.fixturenames):
        stack: LocalStack = request.getfixturevalue("lazy_stack")
        stack.mend()
