"""A small ranker, and what three sets of features are worth to it.

Knows arrays, not where they come from. The ranker is a network of one hidden layer, trained in
seconds; the comparison trains it anew for each set of features and seed, and judges all of them on
the same later questions.

Shape suffixes:
    Q  questions    F  features
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from encoders.data import Floats

Mask = NDArray[np.bool_]

_HIDDEN, _DROPOUT = 32, 0.2
_EPOCHS, _BATCH = 20, 256
_RATE, _WEIGHT_DECAY = 3e-3, 1e-2
_MAX_FEATURE = 5.0  # standard deviations


@dataclass(frozen=True)
class DownstreamReport:
    """Area under the ROC curve on the later questions: (mean, standard deviation) over seeds."""

    without: tuple[float, float]
    stale: tuple[float, float]
    fresh: tuple[float, float]


def compare_downstream(
    labels_Q: Floats,
    base_QF: Floats,
    stale_QF: Floats,
    fresh_QF: Floats,
    train_Q: Mask,
    seeds: Sequence[int],
) -> DownstreamReport:
    """The ranker with `base`, with base and `stale`, with base and `fresh` features.

    Trained on the questions in `train_Q`, judged on the others. Raises ValueError if one of the two
    parts lacks likes or dislikes, or if a feature isn't finite.
    """
    if not all(np.isfinite(features).all() for features in (base_QF, stale_QF, fresh_QF)):
        raise ValueError("features must be finite: replace what is absent by a value and a flag")
    for part in (train_Q, ~train_Q):
        if len(np.unique(labels_Q[part])) < 2:
            raise ValueError("both parts need questions with label 0 and with label 1")
    sets = (base_QF, np.hstack((base_QF, stale_QF)), np.hstack((base_QF, fresh_QF)))
    results = [
        [judge(labels_Q, features_QF, train_Q, seed) for seed in seeds] for features_QF in sets
    ]
    without, stale, fresh = ((float(np.mean(r)), float(np.std(r))) for r in results)
    return DownstreamReport(without, stale, fresh)


def judge(labels_Q: Floats, features_QF: Floats, train_Q: Mask, seed: int) -> float:
    """Train the ranker with one set of features; its area under the ROC curve on the rest."""
    torch.manual_seed(seed)
    mean_F, scale_F = features_QF[train_Q].mean(0), features_QF[train_Q].std(0) + 1e-6
    standard_QF = ((features_QF - mean_F) / scale_F).clip(-_MAX_FEATURE, _MAX_FEATURE)
    inputs_QF = torch.from_numpy(standard_QF.astype(np.float32))
    targets_Q = torch.from_numpy(labels_Q)
    ranker = nn.Sequential(
        nn.Linear(inputs_QF.shape[1], _HIDDEN),
        nn.GELU(),
        nn.Dropout(_DROPOUT),
        nn.Linear(_HIDDEN, 1),
    )
    optimizer = torch.optim.AdamW(ranker.parameters(), lr=_RATE, weight_decay=_WEIGHT_DECAY)
    questions = torch.from_numpy(np.flatnonzero(train_Q))
    for _ in range(_EPOCHS):
        for chosen in questions[torch.randperm(len(questions))].split(_BATCH):
            scores = ranker(inputs_QF[chosen])[:, 0]
            loss = functional.binary_cross_entropy_with_logits(scores, targets_Q[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    ranker.eval()
    with torch.inference_mode():
        scores_Q = ranker(inputs_QF)[:, 0].numpy()
    return area_under_roc(scores_Q[~train_Q], labels_Q[~train_Q])


def area_under_roc(scores_Q: Floats, labels_Q: Floats) -> float:
    """The chance that a liked item scores above a disliked one; ties count half."""
    order = np.argsort(scores_Q, kind="stable")
    distinct, place = np.unique(scores_Q[order], return_inverse=True)
    counts = np.bincount(place, minlength=len(distinct))
    middle = np.cumsum(counts) - (counts - 1) / 2
    ranks = np.empty(len(scores_Q))
    ranks[order] = middle[place]
    liked = labels_Q > 0
    positives, negatives = int(liked.sum()), int((~liked).sum())
    return float((ranks[liked].sum() - positives * (positives + 1) / 2) / (positives * negatives))
