"""The stand-in for the encoder: its versions in the run's Triton, and its stored answers."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from infra.local.stack import LocalStack
from infra.local.triton import TritonService
from streams.cassandra import Session
from streams.encoding import EncoderClient
from streams.representation_store import RepresentationStore
from streams.representations import EncoderVersion, VersionState
from streams.sequences import stable_hash
from tests.worker_platform import ROOT, Platform

T = TypeVar("T")
ENCODER = "user_encoder"
MISBEHAVIOUR = {"refused": "refused-item", "not_finite": "nan-item", "zero": "zero-item"}
CONFIG = """\
name: "user_encoder"
backend: "python"
max_batch_size: 0
version_policy: {{ all {{ }} }}
input [
  {{ name: "item_hash" data_type: TYPE_INT64 dims: [ -1 ] }},
  {{ name: "event_type_hash" data_type: TYPE_INT64 dims: [ -1 ] }},
  {{ name: "surface_hash" data_type: TYPE_INT64 dims: [ -1 ] }},
  {{ name: "event_time_ms" data_type: TYPE_INT64 dims: [ -1 ] }},
  {{ name: "value" data_type: TYPE_FP32 dims: [ -1 ] }},
  {{ name: "offsets" data_type: TYPE_INT64 dims: [ -1 ] }}
]
output [ {{ name: "representation" data_type: TYPE_FP32 dims: [ -1, {dimensions} ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
{parameters}
"""


@pytest.fixture(scope="session")
def encoder_models(lazy_stack: LocalStack, triton_service: TritonService) -> Iterator[Path]:
    """Versions 1 and 2 of the stand-in, loaded."""
    assert triton_service.is_running
    folder = lazy_stack.home.models / ENCODER
    parameters = "\n".join(
        f'parameters {{ key: "{name}" value: {{ string_value: "{stable_hash(item)}" }} }}'
        for name, item in MISBEHAVIOUR.items()
    )
    for version in ("1", "2"):
        (folder / version).mkdir(parents=True)
        shutil.copy(ROOT / "tests/doubles/encoder_model.py", folder / version / "model.py")
    (folder / "config.pbtxt").write_text(CONFIG.format(dimensions=64, parameters=parameters))
    asyncio.run(_load(lazy_stack))
    yield folder
    shutil.rmtree(folder)


async def _load(stack: LocalStack) -> None:
    client = EncoderClient(stack.settings.triton)
    try:
        await client.load(ENCODER)
        assert await client.is_ready(ENCODER, "2")
    finally:
        await client.close()


@pytest.fixture
def encoding(platform: Platform, encoder_models: Path) -> Platform:
    """A platform whose encoder's version 1 is active."""
    assert encoder_models.is_dir()
    activate(platform, "1")
    return platform


def in_store(platform: Platform, call: Callable[[RepresentationStore], Awaitable[T]]) -> T:
    async def run() -> T:
        session = Session(platform.settings.cassandra)
        try:
            return await call(RepresentationStore(session))
        finally:
            await session.close()

    return asyncio.run(run())


def activate(platform: Platform, version: str) -> None:
    async def call(store: RepresentationStore) -> None:
        now = int(time.time() * 1000)
        await store.add_version(EncoderVersion(ENCODER, version, VersionState.READY, now))
        await store.activate(ENCODER, version)

    in_store(platform, call)
