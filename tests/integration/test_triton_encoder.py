"""The exported encoder on a real Triton server, by the client that workers use."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from encoders.checkpoint import write_checkpoint
from encoders.config import EncoderConfig
from encoders.model import UserEncoder
from encoders.parity import TOLERANCE, ParityCase, parity_cases
from infra.local.stack import LocalStack
from infra.local.triton import TritonService
from streams.encoding import EncoderClient
from streams.errors import EncoderRejected, EncoderUnavailable, HeadwaterError
from streams.settings import CassandraSettings

ENCODER = "triton_test_encoder"
CONFIG = EncoderConfig(dimensions=32, max_length=64, item_buckets=256)


def make_encoder(seed: int) -> UserEncoder:
    torch.manual_seed(seed)
    encoder = UserEncoder(CONFIG)
    encoder.eval()
    return encoder


def case_of(seed: int, sequences: int = 5) -> ParityCase:
    return parity_cases(make_encoder(seed), 10_000, sizes=(sequences,))[0]


@dataclasses.dataclass(frozen=True)
class Cli:
    """`headwater` on the run's stack and keyspace."""

    environment: dict[str, str]
    scratch: Path

    def export(self, seed: int, version: int, *options: str) -> subprocess.CompletedProcess[str]:
        """Export an encoder with those random weights, and have it loaded."""
        checkpoint = self.scratch / f"checkpoint-{seed}"
        write_checkpoint(checkpoint, make_encoder(seed), {"held_out": {"recall": 0.5}})
        return self(
            *("export", "--checkpoint", str(checkpoint), "--encoder", ENCODER),
            *("--version", str(version), "--threads", "1", "--load", *options),
        )

    def versions(self) -> list[dict[str, object]]:
        done = self("versions", "--encoder", ENCODER, "--json")
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "streams.cli", *arguments]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=250, check=False
        )


@pytest.fixture(scope="module")
def cli(
    triton_service: TritonService,
    cassandra_settings: CassandraSettings,
    lazy_stack: LocalStack,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cli]:
    """With version 1 of the encoder (weights of seed 1) exported, loaded and active."""
    assert triton_service.is_running
    keyspace = {"HEADWATER_CASSANDRA__KEYSPACE": cassandra_settings.keyspace}
    made = Cli(lazy_stack.environment | keyspace, tmp_path_factory.mktemp("checkpoints"))
    done = made.export(1, 1, "--activate")
    assert done.returncode == 0, done.stderr
    assert "version 1 is active" in done.stdout
    yield made
    shutil.rmtree(lazy_stack.settings.model_repository_path / ENCODER)


@pytest.fixture
async def client(lazy_stack: LocalStack) -> AsyncIterator[EncoderClient]:
    connected = EncoderClient(lazy_stack.settings.triton)
    yield connected
    await connected.close()


async def check(client: EncoderClient, version: str, case: ParityCase) -> None:
    encoded = await client.encode(ENCODER, version, case.request, CONFIG.dimensions)
    assert bool(encoded.usable.all())
    np.testing.assert_allclose(encoded.vectors, case.expected_BD, rtol=0, atol=TOLERANCE)


@pytest.mark.usefixtures("cli")
@pytest.mark.parametrize("sequences", [1, 2, 100])
async def test_triton_gives_the_checkpoints_vectors(client: EncoderClient, sequences: int) -> None:
    await check(client, "1", case_of(1, sequences))


@pytest.mark.usefixtures("cli")
async def test_bad_requests_are_refused_with_the_reason(client: EncoderClient) -> None:
    good = case_of(1, 1).request
    for bad, reason in (
        (good._replace(offsets=np.array([0, 0, 64])), "sequence 0 is empty"),
        (good._replace(offsets=np.array([0, 65, 64])), "its offsets decrease"),
        (good._replace(value=good.value[:-1]), "value has shape"),
    ):
        with pytest.raises(EncoderRejected, match=reason):
            await client.encode(ENCODER, "1", bad, CONFIG.dimensions)
    await check(client, "1", case_of(1))


async def test_versions_are_served_side_by_side_without_a_gap(
    cli: Cli, client: EncoderClient
) -> None:
    """Requests for version 1 are answered all the while that version 2 comes."""
    case, answered = case_of(1), 0
    coming = asyncio.create_task(asyncio.to_thread(cli.export, 2, 2))
    while not coming.done():
        await check(client, "1", case)
        answered += 1
        await asyncio.wait([coming], timeout=0.02)
    done = await coming
    assert done.returncode == 0, done.stderr
    assert answered > 10
    await check(client, "2", case_of(2))
    request = case_of(2).request
    first = await client.encode(ENCODER, "1", request, CONFIG.dimensions)
    second = await client.encode(ENCODER, "2", request, CONFIG.dimensions)
    assert np.abs(first.vectors - second.vectors).max() > 0.1
    listed = {version["version"]: version for version in cli.versions()}
    assert listed["1"]["state"] == "active"
    assert listed["2"]["state"] == "ready"
    assert listed["2"]["stats"] == {
        "dimensions": 32,
        "max_length": 64,
        "held_out": {"recall": 0.5},
    }


async def test_an_interrupted_export_goes_on(cli: Cli, lazy_stack: LocalStack) -> None:
    """Published, but Triton was away: the same command again does the rest, another does not."""
    away = {"HEADWATER_TRITON__URL": "127.0.0.1:9"}
    stopped = dataclasses.replace(cli, environment=cli.environment | away).export(3, 3)
    assert stopped.returncode == 1
    assert "run the same export again" in stopped.stderr
    assert (lazy_stack.settings.model_repository_path / ENCODER / "3").is_dir()
    other = cli.export(4, 3)
    assert other.returncode == 2
    assert "versions never change" in other.stderr
    again = cli.export(3, 3)
    assert again.returncode == 0, again.stderr
    assert "already" in again.stdout
    assert "3" in {version["version"] for version in cli.versions()}


@pytest.mark.usefixtures("cli")
async def test_a_version_that_is_not_there_is_unavailable(client: EncoderClient) -> None:
    with pytest.raises(EncoderUnavailable, match="version 77"):
        await client.encode(ENCODER, "77", case_of(1).request, CONFIG.dimensions)


@pytest.mark.usefixtures("cli")
async def test_a_damaged_version_is_told_and_the_others_stay(
    client: EncoderClient, lazy_stack: LocalStack
) -> None:
    model = lazy_stack.settings.model_repository_path / ENCODER
    shutil.copytree(model / "1", model / "66")
    (model / "66" / "weights.pt").write_bytes(b"damaged")
    try:
        with pytest.raises(HeadwaterError, match="66"):
            await client.load(ENCODER)
        await check(client, "1", case_of(1))
    finally:
        shutil.rmtree(model / "66")


async def test_no_server_is_told(lazy_stack: LocalStack) -> None:
    settings = msgspec.structs.replace(lazy_stack.settings.triton, url="127.0.0.1:9")
    nobody = EncoderClient(settings)
    with pytest.raises(EncoderUnavailable, match=r"127\.0\.0\.1:9"):
        await nobody.load(ENCODER)
    await nobody.close()
