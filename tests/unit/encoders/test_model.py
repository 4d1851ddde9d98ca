"""What every reader of a representation relies on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from encoders.config import EncoderConfig
from encoders.model import JaggedBatch, UserEncoder, load_encoder, save_encoder
from tests.unit.encoders.conftest import MakeBatch

TOLERANCE = 1e-5
_COLUMNS = [field.name for field in dataclasses.fields(JaggedBatch)][:5]


def changed(batch: JaggedBatch, **columns: Any) -> JaggedBatch:
    return dataclasses.replace(batch, **columns)


def one(batch: JaggedBatch, row: int) -> JaggedBatch:
    """Sequence `row` of the batch, alone."""
    first, last = int(batch.offsets_B1[row]), int(batch.offsets_B1[row + 1])
    columns = {name: getattr(batch, name)[first:last] for name in _COLUMNS}
    return JaggedBatch(**columns, offsets_B1=torch.tensor([0, last - first]))


def encode(encoder: UserEncoder, batch: JaggedBatch) -> torch.Tensor:
    batch.check()
    with torch.inference_mode():
        vectors: torch.Tensor = encoder(batch)
    return vectors


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(lengths=st.lists(st.integers(1, 64), min_size=1, max_size=40))
def test_a_user_gets_the_same_vector_alone_and_in_any_batch(
    encoder: UserEncoder, make_batch: MakeBatch, lengths: list[int]
) -> None:
    batch = make_batch(lengths)
    together = encode(encoder, batch)
    for row in range(0, len(lengths), 7):
        alone = encode(encoder, one(batch, row))[0]
        torch.testing.assert_close(together[row], alone, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("ratio", [1.0, 1.5, 1e9])
def test_padding_changes_nothing(
    encoder: UserEncoder, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, ratio: float
) -> None:
    """From groups of one length each to one group that is padded to the longest sequence."""
    batch = make_batch([1, 2, 64, 3, 3, 50, 7, 64, 31])
    expected = torch.cat([encode(encoder, one(batch, row)) for row in range(9)])
    monkeypatch.setattr("encoders.layers._MAX_LENGTH_RATIO", ratio)
    monkeypatch.setattr("encoders.layers._MIN_GROUP_TOKENS", 1)
    torch.testing.assert_close(encode(encoder, batch), expected, rtol=0, atol=TOLERANCE)


def test_vectors_have_unit_norm_whatever_the_values(
    encoder: UserEncoder, make_batch: MakeBatch
) -> None:
    batch = make_batch([5, 1, 64])
    wild = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e38, -1e38]).repeat(14)
    vectors = encode(encoder, changed(batch, value_N=wild))
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(3))


def test_shifted_times_change_nothing(encoder: UserEncoder, make_batch: MakeBatch) -> None:
    batch = make_batch([20, 3])
    later = changed(batch, event_time_ms_N=batch.event_time_ms_N + 10 * 365 * 86_400_000)
    torch.testing.assert_close(
        encode(encoder, later), encode(encoder, batch), rtol=0, atol=TOLERANCE
    )


def test_stretched_gaps_change_the_vector(encoder: UserEncoder, make_batch: MakeBatch) -> None:
    batch = make_batch([20])
    start = batch.event_time_ms_N[0]
    slower = changed(batch, event_time_ms_N=start + 50 * (batch.event_time_ms_N - start))
    assert (encode(encoder, slower) - encode(encoder, batch)).norm() > 1e-3


def test_every_input_counts(encoder: UserEncoder, make_batch: MakeBatch) -> None:
    batch = make_batch([9])
    vector = encode(encoder, batch)
    for name in ("item_hash_N", "event_type_hash_N", "surface_hash_N", "value_N"):
        column = getattr(batch, name).clone()
        column[3] = 123_456_789
        assert (encode(encoder, changed(batch, **{name: column})) - vector).norm() > 1e-4, name


def test_absent_value_differs_from_the_mean_value(
    encoder: UserEncoder, make_batch: MakeBatch
) -> None:
    batch = make_batch([4])
    absent = encode(encoder, changed(batch, value_N=torch.full((4,), torch.nan)))
    mean = encode(encoder, changed(batch, value_N=torch.full((4,), encoder.config.value_mean)))
    assert (absent - mean).norm() > 1e-4


def test_no_state_sees_a_later_event(encoder: UserEncoder, make_batch: MakeBatch) -> None:
    """Training's state after an event is what serving gives to a user who has no later events."""
    batch = make_batch([12])
    with torch.inference_mode():
        states = encoder.states(batch)
    for length in (1, 5, 12):
        columns = {name: getattr(batch, name)[:length] for name in _COLUMNS}
        prefix = JaggedBatch(**columns, offsets_B1=torch.tensor([0, length]))
        torch.testing.assert_close(
            states[length - 1], encode(encoder, prefix)[0], rtol=0, atol=TOLERANCE
        )


def test_events_out_of_time_order_are_no_negative_gap(
    encoder: UserEncoder, make_batch: MakeBatch
) -> None:
    batch = make_batch([6])
    vectors = encode(encoder, changed(batch, event_time_ms_N=batch.event_time_ms_N.flip(0)))
    assert bool(vectors.isfinite().all())


def test_bfloat16_is_close(encoder: UserEncoder, make_batch: MakeBatch) -> None:
    """The way of a GPU, on the CPU: lower precision inside, float32 of unit norm outside."""
    batch = make_batch([40, 2, 17])
    expected = encode(encoder, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        vectors = encode(encoder, batch)
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(3))
    assert float((vectors * expected).sum(-1).min()) > 0.995


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"offsets_B1": torch.tensor([0, 2, 2, 5])}, "sequence 1 is empty"),
        ({"offsets_B1": torch.tensor([0, 4, 2, 5])}, "sequence 1 is empty or its offsets decrease"),
        ({"offsets_B1": torch.tensor([1, 2, 5])}, "offsets must go from 0 to 5"),
        ({"offsets_B1": torch.tensor([0, 2, 4])}, "offsets must go from 0 to 5"),
        ({"offsets_B1": torch.tensor([0])}, "one number more than there are sequences"),
        ({"value_N": torch.zeros(4)}, r"value has shape \(4,\); expected \(5,\)"),
        ({"item_hash_N": torch.zeros(4, dtype=torch.int64)}, r"expected \(4,\)"),
    ],
)
def test_bad_batches_are_told(
    make_batch: MakeBatch, columns: dict[str, torch.Tensor], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        changed(make_batch([2, 3]), **columns).check()


def test_too_many_tokens_are_told(make_batch: MakeBatch) -> None:
    make_batch([4, 4]).check(max_tokens=8)
    with pytest.raises(ValueError, match="8 tokens; at most 7 at once"):
        make_batch([4, 4]).check(max_tokens=7)


def test_too_long_sequences_are_told(make_batch: MakeBatch) -> None:
    make_batch([1, 9]).check(max_length=9)
    with pytest.raises(ValueError, match="sequence 1 has 9 events; keep the newest 8"):
        make_batch([1, 9]).check(max_length=8)


def test_saved_weights_give_the_same_vectors(
    encoder: UserEncoder, make_batch: MakeBatch, tmp_path: Path
) -> None:
    save_encoder(encoder, tmp_path)
    again = load_encoder(tmp_path)
    assert again.config == encoder.config
    batch = make_batch([3, 30])
    assert torch.equal(encode(again, batch), encode(encoder, batch))


def test_items_meet_the_representations(config: EncoderConfig) -> None:
    encoder = UserEncoder(config)
    items = encoder.items(torch.tensor([1, -5, 2**62]))
    torch.testing.assert_close(items.next_ID.norm(dim=-1), torch.ones(3))
    assert items.value_ID.shape == (3, config.dimensions)
    assert items.value_I.shape == (3,)
