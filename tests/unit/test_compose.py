"""compose.yaml by its own rules, and against the settings: what it would start, and how.

No container runs here; where Docker's compose plugin is installed, it reads the files too.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib

import click
import pytest

from streams.cli import headwater
from streams.settings import Settings
from tests.unit.compose import (
    COMPOSE,
    GIB,
    OURS,
    ROOT,
    SERVICES,
    environment,
    memory_limit,
    mounts,
    read_yaml,
    settings_of,
)

GPU = read_yaml("infra/triton/compose.gpu.yaml")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ENDS_BY_ITSELF = {"init", "headwater"}

# Keys of a service that this file uses; another one is either a typing mistake or news for here.
SERVICE_KEYS = {
    *("image", "build", "command", "environment", "hostname", "networks", "ports", "profiles"),
    *("volumes", "tmpfs", "shm_size", "read_only", "cap_drop", "security_opt", "init", "deploy"),
    *("depends_on", "healthcheck", "restart", "stop_grace_period", "logging"),
}
HEALTH_KEYS = {"test", "interval", "timeout", "retries", "start_period", "start_interval"}


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
    assert memory_limit(name) <= 2 * GIB
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
        *("HEADWATER_SERVE__METRICS_HOST", "HEADWATER_SERVE__METRICS_PORT"),
        *(f"HEADWATER_MONITOR__{key}" for key in ("HOST", "PORT", "TOKEN", "TARGETS")),
        *(f"HEADWATER_MONITOR__{key}" for key in ("HOST", "PORT", "TARGETS", "TOKEN")),
        *(f"HEADWATER_{who}_WORKER__METRICS_HOST" for who in ("SEQUENCE", "ENCODER")),
        *(f"HEADWATER_{who}_WORKER__METRICS_PORT" for who in ("SEQUENCE", "ENCODER")),
    }
    assert set(environment(name)) <= addresses


def test_servers_listen_where_others_look_for_them() -> None:
    sequence, encoder = settings_of("sequence-worker"), settings_of("encoder-worker")
    serve = settings_of("serve").serve
    assert (serve.host, serve.port) == ("0.0.0.0", 6566)
    assert (serve.metrics_host, serve.metrics_port) == ("0.0.0.0", 9103)
    assert (sequence.sequence_worker.metrics_host, sequence.sequence_worker.metrics_port) == (
        "0.0.0.0",
        9101,
    )
    assert (encoder.encoder_worker.metrics_host, encoder.encoder_worker.metrics_port) == (
        "0.0.0.0",
        9102,
    )


def test_the_monitor_finds_the_workers_and_asks_for_a_token() -> None:
    monitor = settings_of("monitor").monitor
    assert (monitor.host, monitor.port) == ("0.0.0.0", 9400)
    assert monitor.token
    assert monitor.targets == ("sequence-worker:9101", "encoder-worker:9102", "serve:9103")


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
