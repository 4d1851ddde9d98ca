"""Is the encoder any good? Next-item ranking on later events, against plain popularity.

What representations are worth to another model is measured in downstream.py.

Shape suffixes:
    Q  questions (events with a later new item)    M  items of the catalogue    D  model width
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from encoders.data import EventTable, Ints, jagged_batch, next_new_items, rows_of_windows
from encoders.model import UserEncoder
from encoders.objectives import Catalogue, next_item_scores

_QUESTIONS_PER_BATCH = 128


@dataclass(frozen=True)
class RankingReport:
    """Means over the questions. A target outside the catalogue counts as not found, for both."""

    questions: int
    k: int
    recall: float
    ndcg: float
    popularity_recall: float
    popularity_ndcg: float


def evaluate_next_item(
    encoder: UserEncoder,
    catalogue: Catalogue,
    table: EventTable,
    since_ms: int,
    k: int = 20,
    max_questions: int = 2_000,
    seed: int = 0,
) -> RankingReport:
    """Rank the catalogue for a user's next new item, for items first met at or after `since_ms`.

    The encoder sees the user's events before that item, later ones than `since_ms` among them, as
    it would when served fresh. Items that the user has met are no candidates. `encoder` was trained
    on events before `since_ms`, and the catalogue counts those only.
    """
    targets = next_new_items(table)
    asked_Q = np.flatnonzero(
        (targets.event_E >= 0) & (table.event_time_ms_E[targets.event_E] >= since_ms)
    )
    rng = np.random.default_rng(seed)
    asked_Q = np.sort(rng.permutation(asked_Q)[:max_questions])
    target_Q = catalogue.index(table.item_hash_E[targets.event_E[asked_Q]])
    place_E = catalogue.index(table.item_hash_E)
    first_Q = table.offsets_U1[table.event_users()[asked_Q]]
    ranks, popularity_ranks = [], []
    for start in range(0, len(asked_Q), _QUESTIONS_PER_BATCH):
        part = slice(start, start + _QUESTIONS_PER_BATCH)
        scores_QM = _scores(encoder, catalogue, table, first_Q[part], asked_Q[part])
        popularity_QM = catalogue.log_share_M.expand_as(scores_QM).clone()
        for row, (first, last) in enumerate(zip(first_Q[part], asked_Q[part], strict=True)):
            met = place_E[first : last + 1]
            known = torch.from_numpy(met[met >= 0])
            scores_QM[row, known] = popularity_QM[row, known] = -torch.inf
        ranks.append(_ranks(scores_QM, target_Q[part]))
        popularity_ranks.append(_ranks(popularity_QM, target_Q[part]))
    recall, ndcg = recall_and_ndcg(np.concatenate(ranks) if ranks else np.zeros(0), k)
    base_recall, base_ndcg = recall_and_ndcg(
        np.concatenate(popularity_ranks) if ranks else np.zeros(0), k
    )
    return RankingReport(len(asked_Q), k, recall, ndcg, base_recall, base_ndcg)


def recall_and_ndcg(rank_Q: NDArray[np.float64], k: int) -> tuple[float, float]:
    """Of one right item per question; rank 0 is the best, infinity stands for not found."""
    if not len(rank_Q):
        return float("nan"), float("nan")
    found_Q = rank_Q < k
    gain_Q = np.where(found_Q, 1 / np.log2(np.where(found_Q, rank_Q, 0) + 2), 0)
    return float(found_Q.mean()), float(gain_Q.mean())


def _scores(
    encoder: UserEncoder, catalogue: Catalogue, table: EventTable, first_Q: Ints, last_Q: Ints
) -> Tensor:
    starts_Q = np.maximum(first_Q, last_Q + 1 - encoder.config.max_length)
    batch = jagged_batch(table, *rows_of_windows(starts_Q, last_Q + 1))
    with torch.no_grad():
        items = encoder.items(catalogue.item_hash_M)
        return next_item_scores(encoder, encoder(batch), items.next_ID, catalogue.log_share_M)


def _ranks(scores_QM: Tensor, target_Q: Ints) -> NDArray[np.float64]:
    """How many items come before the target; of equals, half of them."""
    known_Q = torch.from_numpy(target_Q >= 0)
    target_Q1 = torch.from_numpy(np.maximum(target_Q, 0))[:, None]
    own_Q1 = scores_QM.gather(1, target_Q1)
    above_Q = (scores_QM > own_Q1).sum(1)
    equal_Q = (scores_QM == own_Q1).sum(1) - 1
    rank_Q = torch.where(known_Q, above_Q + equal_Q / 2, torch.inf)
    ranks: NDArray[np.float64] = rank_Q.double().numpy()
    return ranks
