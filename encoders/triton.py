"""Triton over plain HTTP, as far as publishing needs it: load a model, wait for it, try it.

The serving path has a client of its own (streams.encoding). Protocol: KServe v2 with Triton's model
repository and binary tensor extensions.
"""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import numpy as np

from encoders.data import Floats
from encoders.parity import Request
from streams.errors import EncoderRejected, EncoderUnavailable

_OUTPUT = "representation"
_TYPES = {np.dtype(np.int64): "INT64", np.dtype(np.float32): "FP32"}
_POLL_SECONDS = 0.2


class TritonRepository:
    """One server, `url` as host:port; `clock` counts seconds and `sleep` waits them.

    Raises EncoderUnavailable if it doesn't answer.
    """

    def __init__(
        self,
        url: str,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        timeout_seconds: float = 120.0,
    ) -> None:
        self._base = f"http://{url}/v2"
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._sleep = sleep

    def load(self, model: str) -> None:
        """Load all versions that the repository has. Raises EncoderRejected with Triton's word."""
        self._call(f"/repository/models/{model}/load", b"{}")

    def wait_ready(self, model: str, version: int) -> None:
        """Wait for that version. Raises EncoderUnavailable when the time is up."""
        deadline = self._clock() + self._timeout_seconds
        while not self._is_ready(model, version):
            if self._clock() > deadline:
                raise EncoderUnavailable(
                    f"version {version} of {model} isn't ready after {self._timeout_seconds:g} s; "
                    "see `headwater logs triton`"
                )
            self._sleep(_POLL_SECONDS)

    def encode(self, model: str, version: int, request: Request) -> Floats:
        """Representations of a request's sequences, (B, D). Raises EncoderRejected."""
        body, header_length = _infer_request(request)
        answer, headers = self._call(
            f"/models/{model}/versions/{version}/infer",
            body,
            {"Inference-Header-Content-Length": str(header_length)},
        )
        return _infer_answer(answer, int(headers["Inference-Header-Content-Length"]))

    def _is_ready(self, model: str, version: int) -> bool:
        try:
            self._call(f"/models/{model}/versions/{version}/ready")
        except EncoderRejected:
            return False
        return True

    def _call(
        self, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[bytes, Any]:
        asked = urllib.request.Request(self._base + path, body, headers or {})
        try:
            with urllib.request.urlopen(asked, timeout=self._timeout_seconds) as answer:
                return answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            text = error.read().decode("utf-8", "replace").strip()
            refused = f"Triton refuses {path}: {text or error.reason}"
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
                raise EncoderUnavailable(refused) from error
            raise EncoderRejected(refused) from error
        except (OSError, urllib.error.URLError) as error:
            raise EncoderUnavailable(
                f"no answer from Triton at {self._base}: {error}; start it with `headwater up`"
            ) from error


def _infer_request(request: Request) -> tuple[bytes, int]:
    """Body and length of its JSON part: tensors follow as bytes, since JSON has no NaN."""
    inputs = [
        {
            "name": name,
            "shape": list(values.shape),
            "datatype": _TYPES[values.dtype],
            "parameters": {"binary_data_size": values.nbytes},
        }
        for name, values in request.items()
    ]
    outputs = [{"name": _OUTPUT, "parameters": {"binary_data": True}}]
    header = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    return b"".join((header, *(values.tobytes() for values in request.values()))), len(header)


def _infer_answer(answer: bytes, header_length: int) -> Floats:
    (output,) = json.loads(answer[:header_length])["outputs"]
    values = np.frombuffer(answer, "<f4", math.prod(output["shape"]), header_length)
    return values.reshape(output["shape"]).astype(np.float32)
