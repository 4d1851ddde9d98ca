"""The exported encoder on a real Triton server."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from encoders.checkpoint import write_checkpoint
from encoders.config import EncoderConfig
from encoders.model import UserEncoder
from encoders.parity import TOLERANCE, ParityCase, parity_cases
from encoders.triton import TritonRepository
from infra.local.stack import LocalStack
from infra.local.triton import TritonService
from streams.errors import EncoderRejected, EncoderUnavailable

ENCODER = "triton_test_encoder"
CONFIG = EncoderConfig(dimensions=32, max_length=64, item_buckets=256)


def make_encoder(seed: int) -> UserEncoder:
    torch.manual_seed(seed)
    encoder = UserEncoder(CONFIG)
    encoder.eval()
    return encoder


def case_of(seed: int, sequences: int = 5) -> ParityCase:
    return parity_cases(make_encoder(seed), 10_000, sizes=(sequences,))[0]


def export(stack: LocalStack, scratch: Path, seed: int, version: int) -> None:
    """`headwater export --load` of an encoder with those random weights."""
    checkpoint = scratch / f"checkpoint-{seed}"
    write_checkpoint(checkpoint, make_encoder(seed), {})
    command = [sys.executable, "-m", "streams.cli", "export", "--checkpoint", str(checkpoint)]
    command += ["--encoder", ENCODER, "--version", str(version), "--threads", "1", "--load"]
    done = subprocess.run(
        command, env=stack.environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "serves it" in done.stdout


@pytest.fixture(scope="module")
def triton(
    triton_service: TritonService, lazy_stack: LocalStack, tmp_path_factory: pytest.TempPathFactory
) -> TritonRepository:
    """The server, with version 1 (weights of seed 1) exported and loaded."""
    assert triton_service.is_running
    export(lazy_stack, tmp_path_factory.mktemp("checkpoints"), seed=1, version=1)
    return TritonRepository(lazy_stack.settings.triton.http_url, time.monotonic, time.sleep)


@pytest.mark.parametrize("sequences", [1, 2, 100])
def test_triton_gives_the_checkpoints_vectors(triton: TritonRepository, sequences: int) -> None:
    case = case_of(1, sequences)
    vectors = triton.encode(ENCODER, 1, case.request)
    np.testing.assert_allclose(vectors, case.expected_BD, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=0, atol=1e-5)


def test_bad_requests_are_refused_with_the_reason(triton: TritonRepository) -> None:
    good = case_of(1, 1).request
    count = len(good["value"])
    for change, reason in (
        ({"offsets": np.array([0, 0, count])}, "sequence 0 is empty"),
        ({"offsets": np.array([0, count + 1, count])}, "its offsets decrease"),
        ({"value": good["value"][:-1]}, "value has shape"),
    ):
        with pytest.raises(EncoderRejected, match=reason):
            triton.encode(ENCODER, 1, good | change)
    assert len(triton.encode(ENCODER, 1, good)) == 1


def test_versions_are_served_side_by_side_without_a_gap(
    triton: TritonRepository, lazy_stack: LocalStack, tmp_path: Path
) -> None:
    """Requests for version 1 are answered all the while that version 2 comes."""
    case, done = case_of(1), threading.Event()
    failures: list[str] = []
    answered = 0

    def ask() -> None:
        nonlocal answered
        while not done.wait(0.02):
            try:
                vectors = triton.encode(ENCODER, 1, case.request)
                np.testing.assert_allclose(vectors, case.expected_BD, rtol=0, atol=TOLERANCE)
                answered += 1
            except (EncoderRejected, EncoderUnavailable, AssertionError) as error:
                failures.append(str(error))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        export(lazy_stack, tmp_path, seed=2, version=2)
    finally:
        done.set()
        asking.join()
    assert failures == []
    assert answered > 10
    other = case_of(2)
    second = triton.encode(ENCODER, 2, other.request)
    np.testing.assert_allclose(second, other.expected_BD, rtol=0, atol=TOLERANCE)
    assert np.abs(second - triton.encode(ENCODER, 1, other.request)).max() > 0.1


def test_a_version_that_is_not_there_is_refused(triton: TritonRepository) -> None:
    with pytest.raises(EncoderRejected, match="version 77"):
        triton.encode(ENCODER, 77, case_of(1).request)


def test_a_damaged_version_is_told_and_the_others_stay(
    triton: TritonRepository, lazy_stack: LocalStack
) -> None:
    model = lazy_stack.settings.model_repository_path / ENCODER
    shutil.copytree(model / "1", model / "66")
    (model / "66" / "weights.pt").write_bytes(b"damaged")
    try:
        with pytest.raises(EncoderRejected, match="66"):
            triton.load(ENCODER)
        case = case_of(1)
        vectors = triton.encode(ENCODER, 1, case.request)
        np.testing.assert_allclose(vectors, case.expected_BD, rtol=0, atol=TOLERANCE)
    finally:
        shutil.rmtree(model / "66")


def test_no_server_is_told() -> None:
    nobody = TritonRepository("127.0.0.1:9", time.monotonic, time.sleep)
    with pytest.raises(EncoderUnavailable, match="headwater up"):
        nobody.load(ENCODER)
