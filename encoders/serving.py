"""An exported version comes into service: loaded, ready, and tried on the way that workers use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from encoders.checkpoint import read_checkpoint, read_metrics
from encoders.config import EncoderConfig
from encoders.parity import ParityCase, check_parity, parity_cases
from streams.cassandra import Session
from streams.encoding import EncoderClient
from streams.errors import EncoderRejected, EncoderUnavailable, HeadwaterError
from streams.representation_store import RepresentationStore
from streams.representations import EncoderVersion, VersionState
from streams.settings import Settings

_POLL_SECONDS = 0.2
# Sequences per request when a loaded version is tried.
_TRIED_SIZES = (1, 8, 64, 128)


@dataclass(frozen=True)
class Publication:
    """A checkpoint that lies in the model repository as `version` of `encoder`."""

    checkpoint: Path
    encoder: str
    version: str
    max_tokens: int
    activate: bool


async def take_into_service(
    settings: Settings, publication: Publication, clock: Callable[[], float]
) -> float:
    """Load, try and record the version, and activate it if so asked; the largest difference.

    `clock` is the time in seconds since the epoch.
    """
    trained = read_checkpoint(publication.checkpoint)
    cases = parity_cases(trained, publication.max_tokens, _TRIED_SIZES)
    client = EncoderClient(settings.triton)
    try:
        deadline = clock() + settings.triton.load_timeout_seconds
        await serve_version(client, publication.encoder, publication.version, deadline, clock)
        difference = await try_version(client, publication.encoder, publication.version, cases)
    finally:
        await client.close()
    session = Session(settings.cassandra)
    try:
        store = RepresentationStore(session)
        await store.add_version(_record(publication, trained.config, int(clock() * 1_000)))
        if publication.activate:
            await store.activate(publication.encoder, publication.version)
    finally:
        await session.close()
    return difference


def _record(publication: Publication, config: EncoderConfig, created_at: int) -> EncoderVersion:
    stats = {
        "dimensions": config.dimensions,
        "max_length": config.max_length,
        "held_out": read_metrics(publication.checkpoint).get("held_out"),
    }
    return EncoderVersion(
        publication.encoder, publication.version, VersionState.READY, created_at, stats
    )


async def serve_version(
    client: EncoderClient,
    encoder: str,
    version: str,
    deadline: float,
    clock: Callable[[], float],
) -> None:
    """Have the version loaded beside the others and wait until it takes requests.

    Raises HeadwaterError, with what to do, if it doesn't by `deadline`, a time of `clock`.
    """
    try:
        await client.load(encoder)
        while not await _is_ready(client, encoder, version):
            if clock() > deadline:
                raise EncoderUnavailable(f"version {version} of {encoder} doesn't get ready")
            await asyncio.sleep(_POLL_SECONDS)
    except EncoderUnavailable as error:
        raise EncoderUnavailable(
            f"{error}; start it with `headwater up` or see `headwater logs triton`, then run the "
            "same export again"
        ) from error
    except EncoderRejected as error:
        raise HeadwaterError(f"{error}; see `headwater logs triton`") from error


async def try_version(
    client: EncoderClient, encoder: str, version: str, cases: Sequence[ParityCase]
) -> float:
    """Send the requests, so that each size has been seen; the largest difference (parity)."""
    answers = []
    for case in cases:
        width = case.expected_BD.shape[1]
        encoded = await client.encode(encoder, version, case.request, width)
        answers.append(encoded.vectors)
    return check_parity(cases, answers, "Triton")


async def _is_ready(client: EncoderClient, encoder: str, version: str) -> bool:
    try:
        return await client.is_ready(encoder, version)
    except EncoderUnavailable:
        # While versions change over, the server answers so for a moment.
        return False
