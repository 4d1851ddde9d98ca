"""The encoder as others see it: a client of the model that Triton serves.

Every request names the version, so that a reload can't mix two spaces (R7). What comes back is
checked before anyone may store it.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import InferInput, InferRequestedOutput
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from streams.encoder_input import EncoderInput
from streams.errors import (
    EncoderMismatch,
    EncoderRejected,
    EncoderUnavailable,
    HeadwaterError,
)
from streams.settings import TritonSettings

OUTPUT = "representation"
_SMALLEST_NORM = 1e-6
# Answers that say "not now". Triton answers INTERNAL while a backend's process is being replaced.
_NOT_NOW = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "RESOURCE_EXHAUSTED", "INTERNAL")


class Encoded(NamedTuple):
    """An encoder's answer.

    vectors  (B, D) float32
    usable   (B,) bool: finite, and of a length above zero; others must not be stored
    """

    vectors: NDArray[np.float32]
    usable: NDArray[np.bool_]


class EncoderClient:
    """One channel to Triton, with a bounded number of requests in flight."""

    def __init__(self, settings: TritonSettings) -> None:
        self._settings = settings
        self._slots = asyncio.Semaphore(settings.max_requests_in_flight)
        self._client = InferenceServerClient(settings.url)

    async def encode(
        self, encoder: str, version: str, batch: EncoderInput, dimensions: int
    ) -> Encoded:
        """Encode B sequences by one version.

        Raises EncoderUnavailable if nobody answers or the version isn't loaded, EncoderRejected if
        the request is refused, EncoderMismatch if the answer hasn't (B, `dimensions`) numbers.
        """
        async with self._slots:
            answer = await self._call(
                self._client.infer(
                    encoder,
                    _inputs(batch),
                    model_version=version,
                    outputs=[InferRequestedOutput(OUTPUT)],
                    client_timeout=self._settings.request_timeout_seconds,
                )
            )
        vectors = answer.as_numpy(OUTPUT)
        expected = (batch.num_sequences, dimensions)
        if vectors is None or vectors.shape != expected or vectors.dtype != np.float32:
            found = "nothing" if vectors is None else f"{vectors.dtype} {vectors.shape}"
            raise EncoderMismatch(
                f"version {version} of {encoder} answered {found}; float32 {expected} is declared: "
                "activate another version, or change the view"
            )
        usable = np.isfinite(vectors).all(axis=1)
        usable &= np.linalg.norm(np.where(usable[:, None], vectors, 0), axis=1) > _SMALLEST_NORM
        return Encoded(vectors, usable)

    async def is_ready(self, encoder: str, version: str) -> bool:
        """Whether the version takes requests. Raises EncoderUnavailable if nobody answers."""
        return bool(
            await self._call(
                self._client.is_model_ready(
                    encoder, version, client_timeout=self._settings.request_timeout_seconds
                )
            )
        )

    async def load(self, encoder: str) -> None:
        """Have the encoder's versions of the model repository loaded, new ones beside those that
        are. Raises EncoderUnavailable, EncoderRejected."""
        await self._call(
            self._client.load_model(encoder, client_timeout=self._settings.load_timeout_seconds)
        )

    async def unload(self, encoder: str) -> None:
        """Have all versions of the encoder unloaded."""
        await self._call(
            self._client.unload_model(encoder, client_timeout=self._settings.load_timeout_seconds)
        )

    async def close(self) -> None:
        """Close the channel."""
        await self._client.close()

    async def _call(self, call: Any) -> Any:
        try:
            return await call
        except InferenceServerException as error:
            raise self._translated(error) from error

    def _translated(self, error: InferenceServerException) -> HeadwaterError:
        status = str(error.status() or "").removeprefix("StatusCode.")
        # A python model's error brings its traceback along, which Triton's own log has as well.
        told = str(error.message()).partition("\n")[0]
        text = f"Triton at {self._settings.url}: {told}"
        # A version that isn't loaded (yet) is NOT_FOUND or UNAVAILABLE: it can come back.
        if status in _NOT_NOW or status == "NOT_FOUND":
            return EncoderUnavailable(text)
        return EncoderRejected(text)


def _inputs(batch: EncoderInput) -> list[InferInput]:
    inputs = []
    for name, column in batch._asdict().items():
        values = np.ascontiguousarray(column)
        tensor = InferInput(name, list(values.shape), np_to_triton_dtype(values.dtype))
        tensor.set_data_from_numpy(values)
        inputs.append(tensor)
    return inputs
