"""The local stack on real processes: readiness, durability, faults, and no orphans."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cassandra.cluster import Cluster, Session
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from infra.local.cassandra import CassandraService
from infra.local.kafka import KafkaService
from infra.local.layout import Home
from infra.local.probes import triton_models
from infra.local.processes import Record, read_record
from infra.local.stack import LocalStack, service_states
from infra.local.triton import TritonService

_GONE_SECONDS = 30.0
_HOLD_A_STACK = """
import signal, sys, time
from pathlib import Path
from infra.local.stack import LocalStack
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
with LocalStack(Path(sys.argv[1]), services={"triton"}):
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="headwater-test-") as folder:
        yield Path(folder)


def headwater(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "streams.cli", *arguments],
        env=os.environ | {"HEADWATER_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def record_of(home: Path, service: str) -> Record:
    record = read_record(Home(home).record(service))
    assert record is not None
    return record


def wait_until_gone(group: int) -> None:
    """Every process of the group has ended, the service's own children too."""
    deadline = time.monotonic() + _GONE_SECONDS
    while processes_of(group):
        assert time.monotonic() < deadline, f"process group {group} is still alive"
        time.sleep(0.05)


def processes_of(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[2]) == group and fields[0] not in "ZX":
                found.append(int(entry.name))
    return found


def hold_a_stack(home: Path) -> subprocess.Popen[str]:
    """Another process with a stack of its own; returns when that stack is ready."""
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD_A_STACK, str(home)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    return holder


class TestKafka:
    def test_topics_are_made_on_request_only(self, kafka_service: KafkaService) -> None:
        admin = AdminClient({"bootstrap.servers": kafka_service.address})
        admin.create_topics([NewTopic("stack-made", 2)])["stack-made"].result(30)
        topics = admin.list_topics(timeout=10).topics
        assert len(topics["stack-made"].partitions) == 2
        assert admin.list_topics("stack-unknown", timeout=10).topics["stack-unknown"].error

    def test_record_sizes(self, kafka_service: KafkaService) -> None:
        admin = AdminClient({"bootstrap.servers": kafka_service.address})
        admin.create_topics([NewTopic("stack-sizes", 1)])["stack-sizes"].result(30)
        # The client's own limit is lifted, so that it is the broker who answers.
        producer = Producer(
            {"bootstrap.servers": kafka_service.address, "message.max.bytes": 8_000_000}
        )
        outcomes: list[object] = []
        for size in (900_000, 1_100_000):
            producer.produce(
                "stack-sizes", bytes(size), on_delivery=lambda error, _: outcomes.append(error)
            )
            producer.flush(30)
        assert outcomes[0] is None
        assert isinstance(outcomes[1], KafkaException) or "MSG_SIZE_TOO_LARGE" in str(outcomes[1])

    def test_log_append_time_is_the_default(self, kafka_service: KafkaService) -> None:
        admin = AdminClient({"bootstrap.servers": kafka_service.address})
        admin.create_topics([NewTopic("stack-times", 1)])["stack-times"].result(30)
        producer = Producer({"bootstrap.servers": kafka_service.address})
        stamps: list[tuple[int, int]] = []
        producer.produce(
            "stack-times", b"x", timestamp=1, on_delivery=lambda _, m: stamps.append(m.timestamp())
        )
        producer.flush(30)
        assert stamps[0][1] > 1_600_000_000_000


class TestCassandra:
    @pytest.fixture
    def session(self, cassandra_service: CassandraService) -> Iterator[Session]:
        cluster = Cluster(["127.0.0.1"], port=cassandra_service.port, protocol_version=5)
        with cluster:
            yield cluster.connect()

    def test_acknowledged_writes_survive_a_kill(
        self, cassandra_service: CassandraService, session: Session
    ) -> None:
        session.execute(
            "CREATE KEYSPACE IF NOT EXISTS stack_test WITH replication = "
            "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        session.execute("CREATE TABLE IF NOT EXISTS stack_test.kept (id int PRIMARY KEY)")
        for number in range(100):
            session.execute("INSERT INTO stack_test.kept (id) VALUES (%s)", (number,))
        cassandra_service.kill()
        assert cassandra_service.state().state == "exited"
        port = cassandra_service.port
        cassandra_service.start()
        assert cassandra_service.port == port
        with Cluster(["127.0.0.1"], port=port, protocol_version=5) as cluster:
            rows = cluster.connect().execute("SELECT id FROM stack_test.kept")
            assert {row.id for row in rows} == set(range(100))

    def test_pause_and_resume(self, cassandra_service: CassandraService) -> None:
        cassandra_service.pause()
        assert cassandra_service.state().state == "paused"
        assert cassandra_service.probe() == "no answer in time"
        cassandra_service.resume()
        cassandra_service.wait_ready(10)
        assert cassandra_service.state().state == "ready"


class TestTriton:
    def test_a_restart_loads_the_models_again(self, triton_service: TritonService) -> None:
        model = triton_service.plan.home.models / "doubler"
        (model / "1").mkdir(parents=True)
        (model / "config.pbtxt").write_text(
            'backend: "python"\nmax_batch_size: 0\n'
            'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
            'output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
        )
        (model / "1" / "model.py").write_text(
            "class TritonPythonModel:\n"
            "    def execute(self, requests):\n"
            "        return [None for _request in requests]\n"
        )
        triton_service.restart()
        # Other tests of the run may have left models of theirs.
        http_port = triton_service.plan.ports["triton_http"]
        assert triton_models(http_port)["doubler:1"][0] == "READY"
        group = record_of(triton_service.plan.home.root, "triton").pid
        assert group is not None
        assert len(processes_of(group)) >= 2
        triton_service.kill()
        wait_until_gone(group)
        assert not list(Path("/dev/shm").glob(f"headwater-{http_port}-*"))
        shutil.rmtree(model)

    def test_a_killed_keeper_takes_all_with_it(self, triton_service: TritonService) -> None:
        record = record_of(triton_service.plan.home.root, "triton")
        assert record.pid is not None
        os.kill(record.warden, signal.SIGKILL)
        wait_until_gone(record.pid)
        assert triton_service.state().state == "exited"


class TestNoOrphans:
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    def test_the_stack_ends_with_its_holder(self, home: Path, number: signal.Signals) -> None:
        with hold_a_stack(home) as holder:
            record = record_of(home, "triton")
            assert record.pid is not None
            assert record.is_alive
            holder.send_signal(number)
            holder.wait(_GONE_SECONDS)
            wait_until_gone(record.pid)
            wait_until_gone(record.warden)
            # A new stack in the same home starts where the other one was cut off.
            with LocalStack(home, services={"triton"}) as stack:
                assert stack.triton.state().state == "ready"

    def test_two_stacks_side_by_side(self, home: Path, triton_service: TritonService) -> None:
        with hold_a_stack(home) as holder:
            other = service_states(home)[2]
            assert other.state == triton_service.state().state == "ready"
            assert other.address != triton_service.address
            holder.kill()
            wait_until_gone(record_of(home, "triton").warden)
        assert triton_service.state().state == "ready"


def test_everything_together_takes_less_than_4_gib(local_stack: LocalStack) -> None:
    groups = [service.pid for service in local_stack.services]
    pids = [pid for group in groups if group is not None for pid in processes_of(group)]
    lines = [
        line
        for pid in pids
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    ]
    assert len(lines) >= 3
    assert sum(int(line.split()[1]) for line in lines) < 4 << 20


class TestCommands:
    def test_up_status_down(self, home: Path) -> None:
        first = headwater(home, "up", "--only", "triton")
        assert first.returncode == 0, first.stderr
        pid = record_of(home, "triton").pid
        try:
            again = headwater(home, "up", "--only", "triton")
            assert again.returncode == 0
            assert "running already" in again.stdout
            assert record_of(home, "triton").pid == pid
            assert "Started GRPCInferenceService" in headwater(home, "logs", "triton").stdout
        finally:
            down = headwater(home, "down")
        assert down.returncode == 0
        assert pid is not None
        wait_until_gone(pid)
        assert [state.state for state in service_states(home)] == ["stopped"] * 3
        assert "Nothing is running" in headwater(home, "down").stdout

    def test_wrong_service_name(self, home: Path) -> None:
        done = headwater(home, "up", "--only", "redis")
        assert done.returncode == 2
        assert "kafka, cassandra, triton" in done.stderr

    def test_a_taken_port_is_replaced(self, home: Path) -> None:
        with LocalStack(home, services={"triton"}) as stack:
            first = stack.triton.settings()
        port = int(first["http_url"].rpartition(":")[2])
        with (
            socket.create_server(("127.0.0.1", port)),
            LocalStack(home, services={"triton"}) as stack,
        ):
            now = stack.triton.settings()
            assert now["http_url"] != first["http_url"]
            assert now["url"] == first["url"]
            assert stack.settings.triton.http_url == now["http_url"]
