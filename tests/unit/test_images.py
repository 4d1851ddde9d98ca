"""The images' Dockerfiles, and what Prometheus and Grafana are told about the containers."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.settings import Settings
from tests.unit.compose import ROOT, SERVICES, mounts, read_yaml, settings_of

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROMETHEUS = read_yaml("infra/prometheus/prometheus.yml")
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
    assert PYPROJECT["project"]["requires-python"] == ">=3.11,<3.12"
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
    packages = PYPROJECT["tool"]["setuptools"]["packages"]
    for package in {name.partition(".")[0] for name in packages}:
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
    folder = "infra/grafana/provisioning/datasources"
    (source,) = read_yaml(f"{folder}/prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["isDefault"] is True
    assert "127.0.0.1:9090:9090" in SERVICES["prometheus"]["ports"]
    assert ("./infra/grafana/provisioning", "/etc/grafana/provisioning", "ro") in list(
        mounts("grafana")
    )
