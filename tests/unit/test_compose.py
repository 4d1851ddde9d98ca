"""compose.yaml against its own rules and the local stack: one platform, started in two ways.

No container runs here: the files are read and compared with what `headwater up` would start, with
the settings, the lock files and the command line that the images hold.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
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
from streams.cli import headwater
from streams.settings import Settings, load_settings

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
GPU: dict[str, Any] = yaml.safe_load((ROOT / "infra/triton/compose.gpu.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PROMETHEUS: dict[str, Any] = yaml.safe_load((ROOT / "infra/prometheus/prometheus.yml").read_text())

OURS = {name for name, one in SERVICES.items() if one["image"].startswith("headwater:")}
ENDS_BY_ITSELF = {"init", "headwater"}
GIB = 1 << 30
UNITS = {"M": 1 << 20, "G": GIB}

# Keys of a service that this file uses; another one is either a typing mistake or news for here.
SERVICE_KEYS = {
    *("image", "build", "command", "environment", "hostname", "networks", "ports", "profiles"),
    *("volumes", "tmpfs", "shm_size", "read_only", "cap_drop", "security_opt", "init", "deploy"),
    *("depends_on", "healthcheck", "restart", "stop_grace_period", "logging"),
}
HEALTH_KEYS = {"test", "interval", "timeout", "retries", "start_period", "start_interval"}


def size(text: str) -> int:
    """Bytes of a size such as 512M or 256m."""
    return int(text[:-1]) * UNITS[text[-1].upper()]


def environment(name: str) -> dict[str, str]:
    found: dict[str, str] = SERVICES[name].get("environment", {})
    return found


def settings_of(name: str) -> Settings:
    """The settings that the service's process would have."""
    return load_settings(None, environment(name), Path("/nonexistent"))


def mounts(name: str) -> Iterator[tuple[str, str, str]]:
    """(source, target, mode) of each volume."""
    for volume in SERVICES[name].get("volumes", ()):
        source, target, *mode = volume.split(":")
        yield source, target, "".join(mode)


# -- compose.yaml by itself ------------------------------------------------------------------------


def test_only_known_keys() -> None:
    assert {key for key in COMPOSE if not key.startswith("x-")} == {
        "name",
        "services",
        "networks",
        "volumes",
    }
    for name, service in SERVICES.items():
        assert set(service) <= SERVICE_KEYS, name
        assert set(service.get("healthcheck", {})) <= HEALTH_KEYS, name


def test_the_services_of_the_platform_are_there() -> None:
    assert set(SERVICES) >= {
        *("kafka", "cassandra", "triton", "init", "sequence-worker", "encoder-worker", "serve"),
        *("prometheus", "grafana"),
    }


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_pinned_to_a_full_version(name: str) -> None:
    image: str = SERVICES[name]["image"]
    assert re.fullmatch(r"[a-z0-9./-]+:v?\d+\.\d+\.\d+(@sha256:[0-9a-f]{64})?", image)
    if "build" in SERVICES[name]:
        assert image.rpartition(":")[2] == PROJECT["version"]
        assert (ROOT / SERVICES[name]["build"]["dockerfile"]).is_file()


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_a_memory_limit_and_bounded_logs(name: str) -> None:
    assert size(SERVICES[name]["deploy"]["resources"]["limits"]["memory"]) <= 2 * GIB
    assert SERVICES[name]["logging"]["options"]["max-size"]


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - ENDS_BY_ITSELF))
def test_what_runs_on_is_restarted_and_asked_for_its_health(name: str) -> None:
    service = SERVICES[name]
    assert service["restart"] == "unless-stopped"
    assert {"test", "interval", "timeout", "retries"} <= set(service["healthcheck"])
    assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")


@pytest.mark.parametrize(
    ("name", "request_", "port"),
    [
        ("kafka", "kafka-topics.sh", 9092),
        ("cassandra", "SELECT", 9042),
        ("triton", "/v2/health/ready", 8000),
        ("sequence-worker", "/live", 9101),
        ("encoder-worker", "/live", 9102),
        ("serve", "/health", 6566),
        ("prometheus", "/api/v1/query", 9090),
        ("grafana", "/api/health", 3000),
    ],
)
def test_health_is_asked_for_by_a_real_request(name: str, request_: str, port: int) -> None:
    test = " ".join(SERVICES[name]["healthcheck"]["test"])
    assert request_ in test
    assert str(port) in test


def test_dependencies_wait_for_what_they_need() -> None:
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            assert needed in SERVICES, name
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[needed], name
            else:
                assert how["condition"] == "service_completed_successfully", name
                assert needed in ENDS_BY_ITSELF, name
    assert set(SERVICES["init"]["depends_on"]) == {"kafka", "cassandra"}
    for name in ("sequence-worker", "encoder-worker", "serve"):
        assert "init" in SERVICES[name]["depends_on"]


def test_volumes_are_declared_and_files_are_mounted_read_only() -> None:
    used = set()
    for name in SERVICES:
        for source, target, mode in mounts(name):
            assert target.startswith("/"), name
            if source.startswith("./"):
                assert (ROOT / source).is_dir(), source
                assert mode == "ro", source
            else:
                used.add(source)
    assert used == set(COMPOSE["volumes"])


def test_one_network_and_ports_on_the_loopback_address_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert all(re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port) for port in published)
    assert len(set(published)) == len(published)
    assert {tuple(service["networks"]) for service in SERVICES.values()} == {("headwater",)}


@pytest.mark.parametrize("name", sorted({*OURS, "triton"}))
def test_our_processes_have_no_privileges(name: str) -> None:
    assert SERVICES[name]["cap_drop"] == ["ALL"]
    assert SERVICES[name]["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in SERVICES[name]


def test_docker_itself_takes_the_files() -> None:
    if shutil.which("docker") is None or _compose("version") != 0:
        pytest.skip("docker's compose plugin is not installed")
    assert _compose("-f", "compose.yaml", "config", "--quiet") == 0
    assert (
        _compose("-f", "compose.yaml", "-f", "infra/triton/compose.gpu.yaml", "config", "-q") == 0
    )


def _compose(*arguments: str) -> int:
    return subprocess.run(
        ["docker", "compose", *arguments], cwd=ROOT, capture_output=True, timeout=60, check=False
    ).returncode


def test_the_gpu_file_adds_a_device_and_nothing_else() -> None:
    assert set(GPU) == {"services"}
    assert set(GPU["services"]) == {"triton"}
    resources = GPU["services"]["triton"]["deploy"]["resources"]
    assert set(GPU["services"]["triton"]) == {"deploy"}
    (device,) = resources["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert "reservations" not in SERVICES["triton"]["deploy"]["resources"]


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(OURS))
def test_addresses_in_the_settings_are_those_of_the_services(name: str) -> None:
    settings = settings_of(name)
    assert settings.kafka.bootstrap_servers == "kafka:9092"
    assert settings.cassandra.contact_points == ("cassandra",)
    assert settings.cassandra.port == 9042
    assert settings.triton.url == "triton:8001"
    assert settings.triton.http_url == "triton:8000"
    assert settings.triton.metrics_url == "http://triton:8002/metrics"


@pytest.mark.parametrize("name", sorted(OURS))
def test_nothing_but_addresses_differs_from_the_defaults(name: str) -> None:
    """Topics, groups, bounds: what holds locally holds in containers."""
    addresses = {
        *("HEADWATER_KAFKA__BOOTSTRAP_SERVERS", "HEADWATER_CASSANDRA__CONTACT_POINTS"),
        *("HEADWATER_CASSANDRA__PORT", "HEADWATER_TRITON__URL", "HEADWATER_TRITON__HTTP_URL"),
        *("HEADWATER_TRITON__METRICS_URL", "HEADWATER_TRITON__MODEL_REPOSITORY"),
        *("HEADWATER_SERVE__HOST", "HEADWATER_SERVE__PORT"),
        *(f"HEADWATER_{who}_WORKER__METRICS_HOST" for who in ("SEQUENCE", "ENCODER")),
        *(f"HEADWATER_{who}_WORKER__METRICS_PORT" for who in ("SEQUENCE", "ENCODER")),
    }
    assert set(environment(name)) <= addresses


def test_servers_listen_where_others_look_for_them() -> None:
    sequence, encoder = settings_of("sequence-worker"), settings_of("encoder-worker")
    serve = settings_of("serve").serve
    assert (serve.host, serve.port) == ("0.0.0.0", 6566)
    assert (sequence.sequence_worker.metrics_host, sequence.sequence_worker.metrics_port) == (
        "0.0.0.0",
        9101,
    )
    assert (encoder.encoder_worker.metrics_host, encoder.encoder_worker.metrics_port) == (
        "0.0.0.0",
        9102,
    )


def test_a_worker_has_the_time_that_its_drain_takes() -> None:
    settings = Settings()
    for name, drain_seconds in (
        ("sequence-worker", settings.sequence_worker.drain_seconds),
        ("encoder-worker", settings.encoder_worker.drain_seconds),
    ):
        grace = int(SERVICES[name]["stop_grace_period"].removesuffix("s"))
        assert grace >= drain_seconds + 15, name


@pytest.mark.parametrize("name", sorted(OURS - {"headwater"}))
def test_commands_are_those_of_the_command_line(name: str) -> None:
    command: click.Command = headwater
    for word in SERVICES[name]["command"]:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None, word
        command = found
    assert not isinstance(command, click.Group)


def test_state_and_models_are_shared_by_all_who_need_them() -> None:
    for name in OURS:
        assert ("headwater", "/var/lib/headwater", "") in list(mounts(name))
        assert ("models", "/models", "") in list(mounts(name))
        assert settings_of(name).triton.model_repository == "/models"
    assert ("models", "/models", "ro") in list(mounts("triton"))


# -- the same as `headwater up` --------------------------------------------------------------------


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
CASSANDRA: dict[str, Any] = yaml.safe_load((ROOT / "infra/cassandra/cassandra.yaml").read_text())
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
        limit = size(SERVICES[service.name]["deploy"]["resources"]["limits"]["memory"])
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
    assert 'set -- "$@" "--load-model=' in script


def test_versions_are_those_of_the_local_stack() -> None:
    versions = {jar.artifact: jar.version for jar in read_lock()}
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{versions['kafka_2.13']}"
    assert SERVICES["cassandra"]["image"] == f"cassandra:{versions['cassandra-all']}"


# -- images ----------------------------------------------------------------------------------------

DOCKERFILES = sorted((ROOT / "infra/images").glob("*/Dockerfile"))


def instructions(dockerfile: Path) -> list[str]:
    """The instructions, one a line, without comments."""
    text = re.sub(r"^#.*\n", "", dockerfile.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)
def test_images_are_built_from_a_lock_and_run_without_root(dockerfile: Path) -> None:
    lines = instructions(dockerfile)
    bases = [line for line in lines if line.startswith("FROM ")]
    assert len(bases) == 2
    assert all(re.match(r"FROM python:3\.11\.\d+-slim-bookworm\b", base) for base in bases)
    assert PROJECT["requires-python"] == ">=3.11,<3.12"
    (locked,) = (line for line in lines if "--require-hashes" in line)
    assert "--only-binary :all:" in locked
    final = lines[lines.index(bases[-1]) :]
    assert "USER headwater" in final
    assert final.index("USER headwater") > max(
        place for place, line in enumerate(final) if line.startswith(("RUN", "COPY"))
    )
    assert "pip" not in " ".join(final)


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)
def test_images_copy_what_is_there_and_not_ignored(dockerfile: Path) -> None:
    ignored = dockerfile.with_name("Dockerfile.dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    for line in instructions(dockerfile):
        if line.startswith("COPY ") and "--from" not in line:
            *sources, _target = [w for w in line.split()[1:] if not w.startswith("--")]
            for source in sources:
                assert (ROOT / source).exists(), source
                assert f"!{source}" in ignored, source


def test_the_headwater_image_holds_every_package() -> None:
    text = (ROOT / "infra/images/headwater/Dockerfile").read_text(encoding="utf-8")
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    for package in {name.partition(".")[0] for name in tool["setuptools"]["packages"]}:
        assert f"COPY {package} /src/{package}" in text
    assert "HEADWATER_HOME=/var/lib/headwater" in text


# -- Prometheus and Grafana ------------------------------------------------------------------------


def targets() -> Iterator[tuple[str, int]]:
    """(host, port) of everything that Prometheus reads."""
    for job in PROMETHEUS["scrape_configs"]:
        for found in job.get("dns_sd_configs", ()):
            assert found["type"] == "A"
            yield from ((name, found["port"]) for name in found["names"])
        for static in job.get("static_configs", ()):
            for target in static["targets"]:
                host, _, port = target.partition(":")
                yield host, int(port)


def test_prometheus_reads_every_process_that_has_metrics() -> None:
    sequence = settings_of("sequence-worker").sequence_worker
    encoder = settings_of("encoder-worker").encoder_worker
    assert set(targets()) >= {
        ("sequence-worker", sequence.metrics_port),
        ("encoder-worker", encoder.metrics_port),
        ("triton", int(Settings().triton.metrics_url.rpartition(":")[2].split("/")[0])),
    }
    assert all(host in SERVICES or host == "localhost" for host, _ in targets())


def test_prometheus_reads_more_often_than_freshness_changes() -> None:
    """A freshness alert looks at minutes; five seconds show a stall of one within it."""
    assert PROMETHEUS["global"]["scrape_interval"] == "5s"
    assert ("./infra/prometheus", "/etc/prometheus", "ro") in list(mounts("prometheus"))
    assert "--config.file=/etc/prometheus/prometheus.yml" in SERVICES["prometheus"]["command"]


def test_grafana_asks_prometheus() -> None:
    folder = ROOT / "infra/grafana/provisioning/datasources"
    (source,) = yaml.safe_load((folder / "prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["isDefault"] is True
    assert "127.0.0.1:9090:9090" in SERVICES["prometheus"]["ports"]
    assert ("./infra/grafana/provisioning", "/etc/grafana/provisioning", "ro") in list(
        mounts("grafana")
    )


def test_the_files_are_plain_data() -> None:
    """No anchors that a reader would have to follow are left after reading: it is all JSON."""
    for content in (COMPOSE, GPU, PROMETHEUS, CASSANDRA):
        assert json.loads(json.dumps(content)) == content
