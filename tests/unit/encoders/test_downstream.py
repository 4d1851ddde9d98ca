"""Columns for a ranker out of what was served, and the ranker's comparison."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from encoders.checkpoint import write_checkpoint
from encoders.data import Floats, Ints
from encoders.downstream import ItemSpace, Served, served_features
from encoders.model import UserEncoder
from encoders.ranker import area_under_roc, compare_downstream

NOBODY = Served(None, np.zeros(0, np.int64), np.zeros(0, np.float32))


@pytest.fixture
def space(encoder: UserEncoder, tmp_path: Path) -> ItemSpace:
    write_checkpoint(tmp_path / "checkpoint", encoder, {})
    return ItemSpace(tmp_path / "checkpoint")


def hashes(count: int) -> Ints:
    return np.random.default_rng(count).integers(-(2**63), 2**63 - 1, count)


def test_items_are_the_encoders(space: ItemSpace, encoder: UserEncoder) -> None:
    asked = np.array([5, -7, 5])
    next_ID, value_ID = space.vectors(asked)
    with torch.inference_mode():
        items = encoder.items(torch.from_numpy(asked))
    np.testing.assert_allclose(next_ID, items.next_ID.numpy(), atol=1e-6)
    np.testing.assert_allclose(value_ID, items.value_ID.numpy(), atol=1e-6)


def test_a_row_is_a_function_of_its_question_alone(space: ItemSpace) -> None:
    rng = np.random.default_rng(0)
    served = [
        Served(
            rng.normal(size=32).astype(np.float32) if length % 2 else None,
            hashes(length),
            np.where(rng.random(length) < 0.3, np.nan, rng.normal(size=length)).astype(np.float32),
        )
        for length in (0, 1, 9, 30, 4)
    ]
    asked = hashes(5)
    together = served_features(space, asked, served, with_vector=True)
    assert together.dtype == np.float32
    assert bool(np.isfinite(together).all())
    for row in range(5):
        alone = served_features(space, asked[row : row + 1], served[row : row + 1], True)[0]
        np.testing.assert_allclose(together[row], alone, atol=1e-5)


def test_nothing_served_is_zeros(space: ItemSpace) -> None:
    assert not served_features(space, hashes(2), [NOBODY, NOBODY]).any()


def test_values_of_similar_items_count_most(space: ItemSpace) -> None:
    """A user who valued this very item highly and another one low, and the other way around."""
    asked, other = hashes(2)
    history = np.array([asked, other])
    fan = Served(None, history, np.array([2.0, -2.0], np.float32))
    hater = Served(None, history, np.array([-2.0, 2.0], np.float32))
    rows = served_features(space, np.array([asked, asked]), [fan, hater])
    differing = np.flatnonzero(rows[0] > rows[1])
    assert len(differing) >= 1


def make_questions(count: int = 1_200) -> tuple[Floats, Floats, Floats, Floats]:
    rng = np.random.default_rng(11)
    item, user = rng.normal(size=(2, count)).astype(np.float32)
    labels = (item + 2 * user + rng.normal(size=count) > 0).astype(np.float32)
    old = (user * (rng.random(count) < 0.3)).astype(np.float32)
    return labels, item[:, None], old[:, None], user[:, None]


def test_better_features_are_worth_more() -> None:
    labels, base, stale, fresh = make_questions()
    train = np.arange(len(labels)) < 600
    report = compare_downstream(labels, base, stale, fresh, train, (0, 1, 2))
    assert report.without[0] + 0.03 < report.stale[0] < report.fresh[0] - 0.03
    assert all(0 <= score[1] < 0.02 for score in (report.without, report.stale, report.fresh))
    assert compare_downstream(labels, base, stale, fresh, train, (0, 1, 2)) == report


def test_noise_is_worth_nothing() -> None:
    labels, base, _, _ = make_questions()
    noise = np.random.default_rng(5).normal(size=(len(labels), 8)).astype(np.float32)
    train = np.arange(len(labels)) < 600
    report = compare_downstream(labels, base, noise, noise, train, (0, 1, 2))
    assert report.stale == report.fresh
    assert report.fresh[0] < report.without[0] + 0.03


def test_what_cannot_be_judged_is_told() -> None:
    labels, base, stale, fresh = make_questions(100)
    with pytest.raises(ValueError, match="label 0 and with label 1"):
        compare_downstream(np.ones_like(labels), base, stale, fresh, np.arange(100) < 50, (0,))
    broken = fresh.copy()
    broken[3] = np.nan
    with pytest.raises(ValueError, match="finite"):
        compare_downstream(labels, base, stale, broken, np.arange(100) < 50, (0,))


def test_area_under_roc_by_hand() -> None:
    labels = np.array([0, 0, 1, 1], np.float32)
    assert area_under_roc(np.array([1, 2, 3, 4], np.float32), labels) == 1.0
    assert area_under_roc(np.array([1, 3, 2, 4], np.float32), labels) == 0.75
    assert area_under_roc(np.zeros(4, np.float32), labels) == 0.5
