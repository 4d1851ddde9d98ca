"""A stand-in for the encoder inside Triton: same tensors, a vector that a test can compute.

    [number of events, sum of item hashes mod 1000, sum of surface hashes mod 1000, values' sum,
     newest event time in s, version, 1, 0, 0, …]

Some items misbehave, see `MISBEHAVIOUR` in the test; their hashes are parameters of the model.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

DIMENSIONS = 64


class TritonPythonModel:
    """The names are the python backend's."""

    def initialize(self, args: dict[str, Any]) -> None:
        self.version = float(args["model_version"])
        parameters = json.loads(args["model_config"])["parameters"]
        self.bad = {key: int(value["string_value"]) for key, value in parameters.items()}

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        def read(name: str) -> Any:
            return pb_utils.get_input_tensor_by_name(request, name).as_numpy()

        offsets, items = read("offsets"), read("item_hash")
        if self.bad["refused"] in items:
            error = pb_utils.TritonError("refused item", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(output_tensors=[], error=error)
        surfaces, values, times = read("surface_hash"), read("value"), read("event_time_ms")
        out = np.zeros((len(offsets) - 1, DIMENSIONS), np.float32)
        for row, (low, high) in enumerate(itertools.pairwise(offsets)):
            part = slice(int(low), int(high))
            out[row, 0] = high - low
            out[row, 1] = (items[part] % 1000).sum()
            out[row, 2] = (surfaces[part] % 1000).sum()
            out[row, 3] = np.nansum(values[part])
            out[row, 4] = times[high - 1] // 1000
            out[row, 5] = self.version
            out[row, 6] = 1
            if self.bad["not_finite"] in items[part]:
                out[row, 7] = np.nan
            if self.bad["zero"] in items[part]:
                out[row] = 0
        tensor = pb_utils.Tensor("representation", out)
        return pb_utils.InferenceResponse(output_tensors=[tensor])
