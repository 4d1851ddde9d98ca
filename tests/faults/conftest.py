"""One stack and keyspace for all fault tests; topics, groups and users of its own for each."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.local.cassandra import CassandraService
from infra.local.kafka import KafkaService
from infra.local.stack import LocalStack
from streams import cli, kafka
from streams.settings import CassandraSettings
from streams.views import DeclaredViews
from tests.faults.feed import Feed
from tests.faults.harness import Run
from tests.worker_platform import PARTITIONS, Platform

Headwater = Callable[..., tuple[int, str]]


@pytest.fixture
def arena(
    lazy_stack: LocalStack,
    kafka_service: KafkaService,
    cassandra_settings: CassandraSettings,
    cassandra_service: CassandraService,
    applied_registry: tuple[Path, DeclaredViews],
    tmp_path: Path,
) -> Iterator[Platform]:
    """Like `platform`, in the run's keyspace, which is there already."""
    assert kafka_service.is_running
    assert cassandra_service.is_running
    name = f"f{secrets.token_hex(4)}"
    home = tmp_path / "home"
    home.mkdir()
    registry, views = applied_registry
    shutil.copy(registry, home / "registry.db")
    shutil.copy(lazy_stack.home.root / "stack.toml", home / "stack.toml")
    environ = {
        "HEADWATER_HOME": str(home),
        "HEADWATER_KAFKA__EVENTS_TOPIC": f"{name}-events",
        "HEADWATER_KAFKA__REFRESH_TOPIC": f"{name}-refresh",
        "HEADWATER_KAFKA__DEAD_LETTERS_TOPIC": f"{name}-dead",
        "HEADWATER_KAFKA__PARTITIONS": str(PARTITIONS),
        "HEADWATER_KAFKA__SESSION_TIMEOUT_SECONDS": "6",
        "HEADWATER_KAFKA__COMMIT_INTERVAL_SECONDS": "0.1",
        "HEADWATER_CASSANDRA__KEYSPACE": cassandra_settings.keyspace,
        "HEADWATER_SEQUENCE_WORKER__GROUP": f"{name}-sequences",
        "HEADWATER_SEQUENCE_WORKER__EPOCH_CHECK_SECONDS": "1",
    }
    made = Platform(home, environ, views)
    kafka.create_topics(made.settings.kafka)
    try:
        yield made
    finally:
        for worker in made.workers:
            worker.end()
        lazy_stack.mend()
        kafka.delete_topics(made.settings.kafka)


@pytest.fixture
def run(arena: Platform, request: pytest.FixtureRequest) -> Iterator[Run]:
    """A run with its feed; the seed is the test's name, so that each has another stream."""
    seed = sum(request.node.name.encode())
    with Run(arena, Feed(seed, prefix=arena.settings.kafka.events_topic)) as made:
        yield made


@pytest.fixture
def headwater(
    arena: Platform, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Headwater:
    """The command line on this test's platform: answers its exit code and what it printed."""

    def call(*arguments: str, **environ: Any) -> tuple[int, str]:
        with monkeypatch.context() as patched:
            for name, value in (arena.environ | environ).items():
                patched.setenv(name, value)
            capfd.readouterr()
            code = cli.run(list(arguments))
            output = capfd.readouterr()
        return code, output.out + output.err

    return call
