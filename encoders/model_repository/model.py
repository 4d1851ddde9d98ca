"""Triton's python backend for one version of the user encoder.

`headwater export` copies this file into `<model repository>/<encoder>/<version>/`, with the weights
and the `encoders` modules that it imports beside it. Triton runs each version in a process of its
own, where numpy and torch are the only other packages.

Inputs and output are jagged, see `TENSORS`; bad input is answered with an error of its own and
doesn't touch the other requests.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

# Read when torch is loaded: threads that wait asleep leave the cores to Triton's other processes.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

_HERE = Path(__file__).resolve().parent
if (_HERE / "encoders").is_dir():
    sys.path.insert(0, str(_HERE))

from encoders.model import JaggedBatch, compute_device, computing, load_encoder  # noqa: E402

# Input tensor → column of the batch and its type.
TENSORS = {
    "item_hash": ("item_hash_N", np.int64),
    "event_type_hash": ("event_type_hash_N", np.int64),
    "surface_hash": ("surface_hash_N", np.int64),
    "event_time_ms": ("event_time_ms_N", np.int64),
    "value": ("value_N", np.float32),
    "offsets": ("offsets_B1", np.int64),
}
OUTPUT = "representation"
_WARM_UP_SEQUENCES = (1, 8, 64, 256)


class TritonPythonModel:
    """The names are the python backend's: it calls `initialize` once, then `execute`."""

    def initialize(self, args: dict[str, Any]) -> None:
        """Load the weights and run every kind of shape once, so that no request pays for it."""
        parameters = json.loads(args["model_config"])["parameters"]
        self.max_tokens = int(parameters["max_tokens"]["string_value"])
        torch.set_num_threads(int(parameters["threads"]["string_value"]))
        self.device = compute_device()
        self.encoder = load_encoder(_HERE).to(self.device)
        longest = self.encoder.config.max_length
        for length in {1, (longest + 1) // 2, longest}:
            for sequences in _WARM_UP_SEQUENCES:
                if sequences == 1 or sequences * length <= self.max_tokens:
                    self._encode(_blank_batch(sequences, length))

    def execute(self, requests: list[Any]) -> list[Any]:
        """One answer per request, in order."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            batch = _read(request)
            batch.check(self.max_tokens, self.encoder.config.max_length)
        except ValueError as error:
            told = pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(output_tensors=[], error=told)
        vectors = self._encode(batch).cpu().numpy()
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor(OUTPUT, vectors)])

    def _encode(self, batch: JaggedBatch) -> torch.Tensor:
        with torch.inference_mode(), computing(self.device):
            vectors: torch.Tensor = self.encoder(batch.to(self.device))
        return vectors


def _read(request: Any) -> JaggedBatch:
    columns = {}
    for name, (column, dtype) in TENSORS.items():
        values = pb_utils.get_input_tensor_by_name(request, name).as_numpy()
        columns[column] = torch.from_numpy(np.array(values, dtype))
    return JaggedBatch(**columns)


def _blank_batch(sequences: int, length: int) -> JaggedBatch:
    zeros = torch.zeros(sequences * length, dtype=torch.int64)
    offsets = torch.arange(0, sequences * length + 1, length)
    return JaggedBatch(zeros, zeros, zeros, zeros, torch.full(zeros.shape, torch.nan), offsets)
