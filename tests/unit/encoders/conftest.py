"""Small encoders, random jagged batches, and events with something to learn in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from encoders.config import EncoderConfig
from encoders.model import JaggedBatch, UserEncoder

MakeBatch = Callable[[Sequence[int]], JaggedBatch]


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Small tensors gain nothing from threads, and tests may share the machine."""
    torch.set_num_threads(1)


@pytest.fixture
def config() -> EncoderConfig:
    return EncoderConfig(dimensions=32, max_length=64, item_buckets=256)


@pytest.fixture
def encoder(config: EncoderConfig) -> UserEncoder:
    torch.manual_seed(7)
    made = UserEncoder(config)
    made.eval()
    return made


@pytest.fixture
def make_batch() -> MakeBatch:
    """Random sequences of the given lengths; half of the values are absent."""

    def make(lengths: Sequence[int]) -> JaggedBatch:
        generator = torch.Generator().manual_seed(sum(lengths))
        count = sum(lengths)

        def hashes() -> torch.Tensor:
            return torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator)

        gaps_ms = torch.randint(0, 10**6, (count,), generator=generator)
        value_N = torch.randn(count, generator=generator)
        value_N[torch.rand(count, generator=generator) < 0.5] = torch.nan
        return JaggedBatch(
            item_hash_N=hashes(),
            event_type_hash_N=hashes(),
            surface_hash_N=hashes(),
            event_time_ms_N=1_700_000_000_000 + gaps_ms.cumsum(0),
            value_N=value_N,
            offsets_B1=torch.tensor([0, *lengths]).cumsum(0),
        )

    return make


@pytest.fixture
def events_file(tmp_path: Path) -> Path:
    """60 users who go through the items of one of four groups; each view has a value."""
    rng = np.random.default_rng(3)
    rows = []
    for user in range(60):
        group = user % 4
        for place, item in enumerate(rng.permutation(12)[:10]):
            time = 1_700_000_000_000 + int(rng.integers(0, 10**8)) + place * 10_000
            name = f"item-{group}-{item}"
            rows.append((f"{user}-{place}", f"user-{user}", name, "view", time, None, 1.0 + group))
    names = ("event_id", "user_id", "item_id", "event_type", "event_time", "surface", "value")
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    path = tmp_path / "events.parquet"
    pyarrow.parquet.write_table(pa.table(columns), path)
    return path
