"""Does the exported thing give the checkpoint's vectors? Random jagged batches, both ways."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from encoders.data import Floats, as_batch
from encoders.model import UserEncoder
from streams.encoder_input import EncoderInput
from streams.errors import HeadwaterError

TOLERANCE = 1e-5
_RUNNER = Path(__file__).parent / "model_repository" / "without_triton.py"
_RUN_SECONDS = 300
_SIZES = (1, 3, 32)


@dataclass(frozen=True)
class ParityCase:
    """A request, and the vectors that the checkpoint gives for it (B, D)."""

    request: EncoderInput
    expected_BD: Floats


def parity_cases(
    encoder: UserEncoder, max_tokens: int, sizes: Sequence[int] = _SIZES, seed: int = 0
) -> list[ParityCase]:
    """One request per batch size; lengths from 1 to the longest, within the token limit."""
    rng = np.random.default_rng(seed)
    cases = []
    for size in sizes:
        request = _random_request(size, min(encoder.config.max_length, max_tokens // size), rng)
        with torch.inference_mode():
            vectors_BD = encoder(as_batch(request))
        cases.append(ParityCase(request, vectors_BD.numpy()))
    return cases


def _random_request(size: int, longest: int, rng: np.random.Generator) -> EncoderInput:
    lengths_B = rng.integers(1, longest + 1, size)
    lengths_B[0] = longest
    count = int(lengths_B.sum())
    value_N = rng.normal(0, 3, count).astype(np.float32)
    value_N[rng.random(count) < 0.5] = np.nan
    hashes_3N = rng.integers(-(2**63), 2**63 - 1, (3, count))
    return EncoderInput(
        offsets=np.concatenate(([0], np.cumsum(lengths_B))),
        item_hash=hashes_3N[0],
        event_type_hash=hashes_3N[1],
        surface_hash=hashes_3N[2],
        event_time_ms=np.cumsum(rng.integers(0, 10**7, count)),
        value=value_N,
    )


def run_exported(
    version_directory: Path,
    requests: Sequence[EncoderInput],
    model_config: str,
    python: Path | None,
) -> list[NDArray[np.generic]]:
    """What the exported version answers in a process of its own, error texts included.

    `python` is the interpreter of Triton's environment if it has one of its own.
    """
    with tempfile.TemporaryDirectory(prefix="headwater-parity-") as scratch:
        asked, told = Path(scratch) / "requests.npz", Path(scratch) / "answers.npz"
        tensors: dict[str, Any] = {
            f"{number}/{name}": values
            for number, request in enumerate(requests)
            for name, values in request._asdict().items()
        }
        np.savez(asked, **tensors)
        paths = (_RUNNER, version_directory.resolve(), asked, told)
        command = [str(python or sys.executable), "-B", *map(str, paths), model_config]
        try:
            done = subprocess.run(
                command, cwd=scratch, capture_output=True, text=True, timeout=_RUN_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HeadwaterError(f"the exported encoder can't be tried: {error}") from error
        if done.returncode != 0:
            raise HeadwaterError(f"the exported encoder doesn't run:\n{done.stderr.strip()}")
        with np.load(told) as answers:
            return [answers[str(number)] for number in range(len(requests))]


def check_parity(
    cases: Sequence[ParityCase], answers: Sequence[NDArray[np.generic]], where: str
) -> float:
    """The largest difference. Raises HeadwaterError if it is above the tolerance."""
    differences = []
    for case, vectors_BD in zip(cases, answers, strict=True):
        if vectors_BD.shape != case.expected_BD.shape:
            raise HeadwaterError(f"{where} answers {vectors_BD.shape}: {str(vectors_BD)[:200]}")
        difference_BD = np.abs(vectors_BD.astype(np.float32) - case.expected_BD)
        differences.append(difference_BD.max())
    worst = float(np.max(differences))  # NaN if one of them is, unlike Python's max
    if not worst <= TOLERANCE:
        raise HeadwaterError(
            f"{where} differs from the checkpoint by {worst:.1e} (at most {TOLERANCE:.0e})"
        )
    return worst
