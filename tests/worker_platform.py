"""A platform of a test's own on the run's Kafka and Cassandra: topics, keyspace, groups, home.

Workers are real processes, forked off a server that has imported them already, so that a test that
starts many of them doesn't wait for imports. They can be killed; their /state is read over HTTP.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import secrets
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from infra.local.cassandra import CassandraService
from infra.local.kafka import KafkaService
from infra.local.stack import LocalStack
from streams import kafka
from streams.cassandra import Session
from streams.chunks import StoredEvent
from streams.errors import StoreUnavailable
from streams.events import Event, Forget
from streams.representations import RefreshRequest
from streams.schema_store import create_schema, drop_keyspace
from streams.sequence_store import SequenceStore
from streams.sequences import SequenceView, sequence_events
from streams.settings import CassandraSettings, Settings, load_settings
from streams.views import DeclaredViews, apply_repo
from streams.workers.registration import running_workers
from tests.worker_child import run_worker

ROOT = Path(__file__).resolve().parent.parent
PARTITIONS = 4

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.worker_child"])


def wait_until(holds: Callable[[], Any], seconds: float, what: str) -> Any:
    """The first true answer of `holds`, asked again and again; fails when the time is over."""
    deadline = time.monotonic() + seconds
    pause = 0.01
    while True:
        found = holds()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.25)


class WorkerProcess:
    """One worker's process."""

    def __init__(self, platform: Platform, role: str, environ: Mapping[str, str]) -> None:
        self.role = role
        self._platform = platform
        self.log = platform.home / f"{role}-{secrets.token_hex(3)}.log"
        self._process = _processes.Process(
            target=run_worker, args=(role, dict(environ), str(self.log)), daemon=True
        )
        # multiprocessing reads a process's exit code once: of two threads that ask at the same
        # time, the second would be told 255.
        self._asking = threading.Lock()
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def output(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    @property
    def is_running(self) -> bool:
        with self._asking:
            return self._process.is_alive()

    def ends_within(self, seconds: float) -> bool:
        """Wait for its end, at most so long."""
        deadline = time.monotonic() + seconds
        while self.is_running and time.monotonic() < deadline:
            time.sleep(0.01)
        return not self.is_running

    def url(self) -> str | None:
        """Its HTTP address, None before it is registered."""
        for address in running_workers(self._platform.settings):
            if address.pid == self.pid:
                return address.url
        return None

    def get(self, page: str) -> tuple[int, str]:
        """(status, body) of a page; status 0 if there is no answer."""
        url = self.url()
        if url is None:
            return 0, ""
        try:
            with urllib.request.urlopen(f"{url}/{page}", timeout=10) as answer:
                return int(answer.status), answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def state(self) -> dict[str, Any]:
        """/state, or nothing if there is no answer."""
        status, body = self.get("state")
        found: dict[str, Any] = json.loads(body) if status == 200 else {}
        return found

    def wait_ready(self, seconds: float = 60.0) -> WorkerProcess:
        def ready() -> bool:
            assert self.is_running, f"ended with {self.exit_code()}:\n{self.output()}"
            return self.get("ready")[0] == 200

        wait_until(ready, seconds, f"{self.role} worker is ready")
        return self

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert self.ends_within(10)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def terminate(self, seconds: float = 40.0) -> int:
        """SIGTERM; answers the exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self.exit_code(seconds)

    def exit_code(self, seconds: float = 40.0) -> int:
        """Wait for its end; negative for a signal."""
        ended = self.ends_within(seconds)
        assert ended, f"{self.role} worker is still running:\n{self.output()}"
        code = self._process.exitcode
        assert code is not None
        return code

    def end(self) -> None:
        if self.is_running:
            self.kill()


class Platform:
    """Everything that one test needs; nothing of it is shared with another one."""

    def __init__(self, home: Path, environ: dict[str, str], views: DeclaredViews) -> None:
        self.home = home
        self.environ = environ
        self.settings: Settings = load_settings(environ=environ, cwd=ROOT)
        self.views = views
        self.workers: list[WorkerProcess] = []

    def worker(self, role: str = "sequence", **environ: str) -> WorkerProcess:
        """Start a worker, with more variables."""
        process = WorkerProcess(self, role, self.environ | environ)
        self.workers.append(process)
        return process

    def committed(self) -> int:
        """Records that the sequence workers' group has acknowledged."""
        return sum(found.committed or 0 for found in self._offsets())

    def lag(self) -> int:
        """Records on the events topic that aren't acknowledged."""
        return sum(found.lag for found in self._offsets())

    def _offsets(self) -> list[kafka.PartitionOffsets]:
        settings = self.settings
        return kafka.group_offsets(
            settings.kafka, settings.sequence_worker.group, settings.kafka.events_topic
        )

    def wait_caught_up(self, seconds: float = 90.0) -> None:
        wait_until(lambda: self.lag() == 0, seconds, "every record is acknowledged")

    def counters(self) -> dict[str, int]:
        """R4's counters, summed over the running workers."""
        total: dict[str, int] = {}
        for worker in self.workers:
            if worker.role == "sequence" and worker.is_running:
                for name, count in worker.state().get("counters", {}).items():
                    total[name] = total.get(name, 0) + count
        return total

    def sequences(self, users: Iterable[str]) -> dict[tuple[str, str], list[StoredEvent]]:
        """The stored sequences by (user, view)."""
        return asyncio.run(self._sequences(list(users)))

    async def _sequences(self, users: list[str]) -> dict[tuple[str, str], list[StoredEvent]]:
        session = Session(self.settings.cassandra)
        try:
            store = SequenceStore(session)
            found = {}
            for user in users:
                stored = await store.load_all(user)
                for name, view in self.views.sequences.items():
                    rows = [row for row in stored.rows if row.view == name]
                    found[user, name] = sequence_events(rows, view)
            return found
        finally:
            await session.close()

    def refresh_requests(self) -> list[RefreshRequest]:
        """All that was asked for so far."""
        topic = self.settings.kafka.refresh_topic
        return [
            RefreshRequest.decode(message.value())
            for bounds in kafka.topic_bounds(self.settings.kafka, topic)
            for message in kafka.read_range(
                self.settings.kafka, topic, bounds.partition, bounds.start, bounds.end
            )
        ]


def expected_sequence(
    records: Iterable[Event | Forget], user: str, view: SequenceView
) -> list[StoredEvent]:
    """R1, word by word: the newest `max_length` distinct events of the view's types, ordered by
    (event_time, event_id), no older than `max_age` before the newest, newer than the mark."""
    own = [record for record in records if record.user_id == user]
    marks = [record.event_time for record in own if isinstance(record, Forget)]
    distinct = {
        record.event_id: record
        for record in own
        if isinstance(record, Event)
        and record.event_type in view.event_types
        and record.event_time > max(marks, default=-1)
    }
    events = sorted(distinct.values(), key=lambda event: (event.event_time, event.event_id))
    events = events[-view.max_length :]
    if view.max_age_ms is not None and events:
        oldest = events[-1].event_time - view.max_age_ms
        events = [event for event in events if event.event_time >= oldest]
    return [_stored(event) for event in events]


def _stored(event: Event) -> StoredEvent:
    value = float("nan") if event.value is None else event.value
    return StoredEvent(
        event.event_time, event.event_id, event.item_id, event.event_type, event.surface or "",
        value,
    )  # fmt: skip


def comparable(events: Iterable[StoredEvent]) -> list[tuple[Any, ...]]:
    """Sequences as tuples; an absent value (NaN) as None."""
    return [(*event[:5], None if event.value != event.value else event.value) for event in events]


@pytest.fixture(scope="session")
def applied_registry(
    lazy_stack: LocalStack,
    cassandra_settings: CassandraSettings,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, DeclaredViews]:
    """The registry of feature_repo/, applied once, and what it declares."""
    home = tmp_path_factory.mktemp("registry")
    shutil.copy(lazy_stack.home.root / "stack.toml", home / "stack.toml")
    environ = {
        "HEADWATER_HOME": str(home),
        "HEADWATER_CASSANDRA__KEYSPACE": cassandra_settings.keyspace,
    }
    settings = load_settings(environ=environ, cwd=ROOT)
    return settings.registry_path, apply_repo(settings)


def _has_schema(settings: CassandraSettings) -> bool:
    """A schema change on a busy machine may take longer than the driver waits."""
    try:
        create_schema(settings)
    except StoreUnavailable:
        return False
    return True


@pytest.fixture
def platform(
    lazy_stack: LocalStack,
    kafka_service: KafkaService,
    cassandra_service: CassandraService,
    applied_registry: tuple[Path, DeclaredViews],
    tmp_path: Path,
) -> Iterator[Platform]:
    """Topics, keyspace and a home for one test; its workers end with it."""
    assert kafka_service.is_running
    assert cassandra_service.is_running
    name = f"t{secrets.token_hex(5)}"
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
        "HEADWATER_CASSANDRA__KEYSPACE": name,
        "HEADWATER_SEQUENCE_WORKER__GROUP": f"{name}-sequences",
        "HEADWATER_ENCODER_WORKER__GROUP": f"{name}-encoder",
    }
    made = Platform(home, environ, views)
    wait_until(lambda: _has_schema(made.settings.cassandra), 90, "the keyspace is created")
    kafka.create_topics(made.settings.kafka)
    try:
        yield made
    finally:
        for worker in made.workers:
            worker.end()
        lazy_stack.mend()
        drop_keyspace(made.settings.cassandra)
        kafka.delete_topics(made.settings.kafka)
