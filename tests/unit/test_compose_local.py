"""compose.yaml and `headwater up` start the same: versions, settings, options, memory bounds.

Only addresses and folders differ. What is compared is what the local stack's own code would run.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.local import cassandra as local_cassandra
from infra.local import kafka as local_kafka
from infra.local.cassandra import CassandraService
from infra.local.jars import read_lock
from infra.local.kafka import KafkaService
from infra.local.layout import Cache, Home
from infra.local.ports import NAMES
from infra.local.service import Plan, Service
from infra.local.triton import TritonService
from streams.settings import Settings
from tests.unit.compose import ROOT, SERVICES, environment, memory_limit, mounts, read_yaml, size


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    ports = {name: number for number, name in enumerate(NAMES, start=20_000)}
    return Plan(Home(tmp_path), Cache(), ports, attached=True)


def properties(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pairs = {key: value for key, _, value in (line.partition("=") for line in lines)}
    assert len(pairs) == len(lines), "a key is there twice"
    return pairs


KAFKA = properties((ROOT / "infra/kafka/server.properties").read_text(encoding="utf-8"))
KAFKA_ADDRESSES = {
    "advertised.listeners",
    "controller.quorum.voters",
    "inter.broker.listener.name",
    "listener.security.protocol.map",
    "listeners",
    "log.dirs",
}
CASSANDRA = read_yaml("infra/cassandra/cassandra.yaml")
CASSANDRA_ADDRESSES = {
    "commitlog_directory",
    "data_file_directories",
    "hints_directory",
    "listen_address",
    "native_transport_port",
    "rpc_address",
    "saved_caches_directory",
    "seed_provider",
    "storage_port",
}


def without(pairs: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    return {key: value for key, value in pairs.items() if key not in keys}


def test_kafka_has_the_local_settings() -> None:
    local = local_kafka._SERVER_PROPERTIES.format(
        port=1, controller_port=2, data="", max_message_bytes=local_kafka.MAX_MESSAGE_BYTES
    )
    assert without(KAFKA, KAFKA_ADDRESSES) == without(properties(local), KAFKA_ADDRESSES)


def test_kafka_has_the_contract_that_the_settings_count_on() -> None:
    kafka = Settings().kafka
    assert KAFKA["log.message.timestamp.type"] == "LogAppendTime"
    assert KAFKA["auto.create.topics.enable"] == "false"
    assert int(KAFKA["message.max.bytes"]) >= kafka.max_record_bytes
    assert int(KAFKA["log.retention.hours"]) == kafka.retention_hours
    assert int(KAFKA["num.partitions"]) == kafka.partitions
    assert int(KAFKA["default.replication.factor"]) == kafka.replication_factor


def test_kafka_listens_where_clients_look_for_it() -> None:
    listeners = dict(part.split("://") for part in KAFKA["listeners"].split(","))
    advertised = dict(part.split("://") for part in KAFKA["advertised.listeners"].split(","))
    assert advertised == {"PLAINTEXT": "kafka:9092", "HOST": "127.0.0.1:29092"}
    for name, address in advertised.items():
        assert listeners[name].rpartition(":")[2] == address.rpartition(":")[2]
    assert "127.0.0.1:29092:29092" in SERVICES["kafka"]["ports"]
    assert KAFKA["controller.quorum.voters"] == f"1@kafka{listeners['CONTROLLER']}"
    assert SERVICES["kafka"]["hostname"] == "kafka"
    protocols = dict(part.split(":") for part in KAFKA["listener.security.protocol.map"].split(","))
    assert set(protocols) == set(listeners)


def test_kafka_keeps_its_log_on_its_volume() -> None:
    assert ("kafka", KAFKA["log.dirs"], "") in list(mounts("kafka"))
    assert ("./infra/kafka", "/mnt/shared/config", "ro") in list(mounts("kafka"))


def test_cassandra_has_the_local_settings() -> None:
    local = yaml.safe_load(local_cassandra._CASSANDRA_YAML.format(port=1, storage_port=2, data=""))
    assert without(CASSANDRA, CASSANDRA_ADDRESSES) == without(local, CASSANDRA_ADDRESSES)


def test_cassandra_listens_where_clients_look_for_it() -> None:
    assert CASSANDRA["native_transport_port"] == 9042
    assert CASSANDRA["rpc_address"] == CASSANDRA["listen_address"] == "cassandra"
    (provider,) = CASSANDRA["seed_provider"]
    assert provider["parameters"] == [{"seeds": f"cassandra:{CASSANDRA['storage_port']}"}]
    assert SERVICES["cassandra"]["hostname"] == "cassandra"


def test_cassandra_keeps_its_data_on_its_volume_and_reads_our_file() -> None:
    folders = [
        *CASSANDRA["data_file_directories"],
        *(CASSANDRA[f"{name}_directory"] for name in ("commitlog", "saved_caches", "hints")),
    ]
    assert ("cassandra", "/var/lib/cassandra", "") in list(mounts("cassandra"))
    assert all(folder.startswith("/var/lib/cassandra/") for folder in folders)
    assert ("./infra/cassandra", "/etc/headwater", "ro") in list(mounts("cassandra"))
    options = environment("cassandra")["JVM_EXTRA_OPTS"].split()
    assert "-Dcassandra.config=file:///etc/headwater/cassandra.yaml" in options


def jvm_options(service: Service) -> set[str]:
    """Heap, garbage collector, bounds and Cassandra's own switches of a local JVM."""
    kept = ("-Xm", "-XX:", "-Dcassandra.")
    return {option for option in service.command() if option.startswith(kept)}


def test_the_jvms_have_the_local_bounds(plan: Plan) -> None:
    kafka = {
        *environment("kafka")["KAFKA_HEAP_OPTS"].split(),
        *environment("kafka")["KAFKA_JVM_PERFORMANCE_OPTS"].split(),
    }
    assert kafka == jvm_options(KafkaService(plan)) - {"-XX:-UsePerfData"}

    found = {
        f"-Xmx{environment('cassandra')['MAX_HEAP_SIZE'].lower()}",
        *environment("cassandra")["JVM_EXTRA_OPTS"].split(),
    }
    # The image's own scripts set these, or something of the same effect.
    elsewhere = ("-Xms", "-XX:+", "-XX:-", "-Dcassandra-", "-Dcassandra.config", "-Dcassandra.stor")
    local = {o for o in jvm_options(CassandraService(plan)) if not o.startswith(elsewhere)}
    assert {option for option in found if not option.startswith(elsewhere)} == local


def test_containers_have_room_for_their_heaps(plan: Plan) -> None:
    for service in (KafkaService(plan), CassandraService(plan)):
        options = " ".join(jvm_options(service))
        heap = re.search(r"-Xmx(\d+m)", options)
        direct = re.search(r"MaxDirectMemorySize=(\d+m)", options)
        assert heap is not None
        assert direct is not None
        limit = memory_limit(service.name)
        assert limit >= 1.25 * (size(heap[1]) + size(direct[1])), service.name


TRITON_PLACES = {"backend-directory", "model-repository"}


def triton_options(words: list[str]) -> dict[str, str]:
    options = [word.removeprefix("--") for word in words if word.startswith("--")]
    return {key: value for key, _, value in (option.partition("=") for option in options)}


def test_triton_has_the_local_options(plan: Plan) -> None:
    script = (ROOT / "infra/triton/start.sh").read_text(encoding="utf-8")
    _, _, command = script.partition("exec tritonserver")
    found = triton_options(command.replace("\\\n", " ").split())
    local = triton_options(list(TritonService(plan).command()))
    assert set(found) == set(local)
    for name, value in local.items():
        if name.endswith("-address"):
            assert found[name] == "0.0.0.0", name
        elif name.endswith("-port"):
            assert f"127.0.0.1:{found[name]}:{found[name]}" in SERVICES["triton"]["ports"], name
        elif name == "backend-config":
            assert found[name].split("=")[0] == value.split("=")[0]
        elif name not in TRITON_PLACES:
            assert found[name] == value, name
    assert found["model-repository"] == "/models"


def test_triton_loads_every_model_at_its_start(tmp_path: Path) -> None:
    """The script, run with a server that only tells what it is asked to do."""
    models = tmp_path / "models"
    for name in ("user_encoder", "item_encoder", "no_model"):
        (models / name).mkdir(parents=True)
        if name != "no_model":
            (models / name / "config.pbtxt").touch()
    server = tmp_path / "tritonserver"
    server.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    server.chmod(0o755)
    script = (ROOT / "infra/triton/start.sh").read_text(encoding="utf-8")
    done = subprocess.run(
        ["sh", "-c", script.replace("/models", str(models)), "start", "--log-verbose=1"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout.splitlines()
    loaded = {word for word in words if word.startswith("--load-model=")}
    assert loaded == {"--load-model=user_encoder", "--load-model=item_encoder"}
    assert {f"--model-repository={models}", "--log-verbose=1"} <= set(words)


def test_versions_are_those_of_the_local_stack() -> None:
    versions = {jar.artifact: jar.version for jar in read_lock()}
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{versions['kafka_2.13']}"
    assert SERVICES["cassandra"]["image"] == f"cassandra:{versions['cassandra-all']}"
