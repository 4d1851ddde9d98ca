from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from encoders.config import EncoderConfig
from encoders.data import EventTable, next_new_items, read_events
from encoders.evaluation import evaluate_next_item, recall_and_ndcg
from encoders.objectives import Catalogue, sample_candidates
from encoders.training import (
    Progress,
    Trained,
    TrainingOptions,
    fitted_config,
    train_encoder,
)
from streams.errors import ConfigError

OPTIONS = TrainingOptions(epochs=6, tokens_per_batch=200, warmup_steps=10)


@pytest.fixture
def table(events_file: Path) -> EventTable:
    return read_events(events_file)


def train(table: EventTable, config: EncoderConfig, options: TrainingOptions = OPTIONS) -> Trained:
    return train_encoder(table, config, options, clock=lambda: 0.0)


def test_learns_what_follows(table: EventTable, config: EncoderConfig) -> None:
    """Users stay within a group of 12 items out of 48, which popularity can't know."""
    cut = table.time_at(0.8)
    trained = train(table.before(cut), config)
    report = evaluate_next_item(trained.encoder, trained.catalogue, table, cut, k=5)
    assert report.questions > 50
    assert report.recall > 2 * report.popularity_recall
    assert report.ndcg > 2 * report.popularity_ndcg


def test_the_seed_decides(table: EventTable, config: EncoderConfig) -> None:
    first, again = train(table, config), train(table, config)
    other = train(table, config, TrainingOptions(**vars(OPTIONS) | {"seed": 1}))
    weights = [trained.encoder.item.tables[0].weight for trained in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert first.report == again.report


def test_time_is_up(table: EventTable, config: EncoderConfig) -> None:
    ticks = itertools.count()
    seen: list[Progress] = []
    options = TrainingOptions(**vars(OPTIONS) | {"seconds": 7.0})
    trained = train_encoder(table, config, options, lambda: float(next(ticks)), seen.append)
    assert trained.report.stopped_by == "seconds"
    assert 0 < trained.report.steps < 7
    assert [progress.share for progress in seen] == sorted(progress.share for progress in seen)
    assert bool(torch.isfinite(trained.encoder.item.tables[0].weight).all())


def test_scales_come_from_the_data(table: EventTable, config: EncoderConfig) -> None:
    fitted = fitted_config(table, config)
    assert fitted.value_mean == pytest.approx(2.5)
    assert fitted.value_scale == pytest.approx(np.std([1.0, 2.0, 3.0, 4.0]))
    gaps = np.diff(table.event_time_ms_E)[np.diff(table.event_users()) == 0]
    assert fitted.time_scale_seconds == pytest.approx(np.median(gaps) / 1000)


def test_nothing_to_learn_is_told(table: EventTable, config: EncoderConfig) -> None:
    with pytest.raises(ConfigError, match="nothing to learn"):
        train(table.before(0), config)


@pytest.mark.parametrize("name", ["seconds", "epochs", "tokens_per_batch", "learning_rate"])
def test_options_are_checked(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be above 0"):
        TrainingOptions(**{name: 0})


def test_few_items_are_all_candidates(table: EventTable) -> None:
    catalogue = Catalogue.of(table, next_new_items(table))
    places, log_weights = sample_candidates(
        torch.tensor([1]), catalogue, len(catalogue), torch.Generator()
    )
    assert places.tolist() == list(range(len(catalogue)))
    assert not bool(log_weights.any())


def test_a_sample_stands_for_the_items_left_out(table: EventTable) -> None:
    catalogue = Catalogue.of(table, next_new_items(table))
    target_T = torch.tensor([3, 3, 40])
    places, log_weights = sample_candidates(target_T, catalogue, 10, torch.Generator())
    assert {3, 40} <= set(places.tolist())
    assert len(set(places.tolist())) == len(places) <= 12
    assert float(log_weights.exp().sum()) == pytest.approx(len(catalogue))
    assert places.tolist() == sorted(places.tolist())


def test_catalogue_tells_known_from_unknown(table: EventTable) -> None:
    catalogue = Catalogue.of(table, next_new_items(table))
    known = catalogue.item_hash_M.numpy()
    assert catalogue.index(known[[5, 0]]).tolist() == [5, 0]
    assert catalogue.index(np.array([123, 2**63 - 1, -(2**63)])).tolist() == [-1, -1, -1]
    assert float(catalogue.log_share_M.exp().sum()) == pytest.approx(1.0, abs=1e-5)


def test_recall_and_ndcg_by_hand() -> None:
    recall, ndcg = recall_and_ndcg(np.array([0.0, 2.0, 9.0, np.inf]), k=5)
    assert recall == 0.5
    assert ndcg == pytest.approx((1 + 0.5) / 4)
