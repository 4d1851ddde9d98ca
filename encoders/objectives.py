"""What the encoder learns: which new item a user's next one is, and what value it will carry.

Shape suffixes:
    N  tokens of a batch    T  tokens with a target    C  candidates    M  items of the catalogue
    D  model width
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from encoders.data import EventTable, Ints, Targets
from encoders.model import UserEncoder


@dataclass(frozen=True, eq=False)
class Catalogue:
    """The items that training saw as targets, and how often."""

    item_hash_M: Tensor  # (M,) int64, sorted
    log_share_M: Tensor  # (M,) float32, log of the item's share of all targets

    @classmethod
    def of(cls, table: EventTable, targets: Targets) -> Catalogue:
        chosen_E = targets.event_E[targets.event_E >= 0]
        item_hash_M, counts_M = np.unique(table.item_hash_E[chosen_E], return_counts=True)
        log_share_M = np.log(counts_M / max(1, counts_M.sum())).astype(np.float32)
        return cls(torch.from_numpy(item_hash_M), torch.from_numpy(log_share_M))

    def __len__(self) -> int:
        return len(self.item_hash_M)

    def index(self, item_hash: Ints) -> Ints:
        """Places in the catalogue, -1 for an item that isn't in it."""
        known_M = self.item_hash_M.numpy()
        place = np.minimum(np.searchsorted(known_M, item_hash), len(known_M) - 1)
        return np.where(known_M[place] == item_hash, place, -1)


def next_item_scores(
    encoder: UserEncoder, state_TD: Tensor, next_CD: Tensor, log_share_C: Tensor
) -> Tensor:
    """Unnormalised log probabilities that the user's next new item is C, (T, C).

    The item's overall share is a given, so the vectors learn what differs between users.
    """
    return torch.addmm(log_share_C, state_TD * encoder.log_sharpness.exp(), next_CD.T)


def sample_candidates(
    target_T: Tensor, catalogue: Catalogue, max_candidates: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Catalogue places (C,) that the softmax runs over, and the log of each one's weight.

    All items if there are few; else the batch's own targets and a uniform sample of the others,
    each of which stands for as many as were left out.
    """
    size = len(catalogue)
    if size <= max_candidates:
        return torch.arange(size), torch.zeros(size)
    own = torch.unique(target_T)
    drawn = torch.randperm(size, generator=generator)[:max_candidates]
    others = drawn[~torch.isin(drawn, own)]
    weight = (size - len(own)) / max(1, len(others))
    log_weight_C = torch.cat((torch.zeros(len(own)), torch.full((len(others),), weight).log()))
    candidate_C = torch.cat((own, others))
    order_C = candidate_C.argsort()
    return candidate_C[order_C], log_weight_C[order_C]


def next_item_loss(
    encoder: UserEncoder,
    state_TD: Tensor,
    target_T: Tensor,
    catalogue: Catalogue,
    max_candidates: int,
    generator: torch.Generator,
) -> Tensor:
    """Softmax cross-entropy of the next new item; `target_T` are places in the catalogue."""
    candidate_C, log_weight_C = sample_candidates(target_T, catalogue, max_candidates, generator)
    device = state_TD.device
    items = encoder.items(catalogue.item_hash_M[candidate_C].to(device))
    prior_C = (catalogue.log_share_M[candidate_C] + log_weight_C).to(device)
    scores_TC = next_item_scores(encoder, state_TD, items.next_ID, prior_C)
    place_T = torch.searchsorted(candidate_C, target_T).to(device)
    return functional.cross_entropy(scores_TC, place_T)


def value_loss(
    encoder: UserEncoder, state_TD: Tensor, item_hash_T: Tensor, value_T: Tensor
) -> Tensor:
    """Squared error of the next new item's standardised value, over those that have one."""
    present_T = value_T.isfinite()
    if not bool(present_T.any()):
        return state_TD.new_zeros(())
    items = encoder.items(item_hash_T[present_T])
    predicted_T = (state_TD[present_T] * items.value_ID).sum(-1) + items.value_I
    config = encoder.config
    return functional.mse_loss(
        predicted_T, (value_T[present_T] - config.value_mean) / config.value_scale
    )
