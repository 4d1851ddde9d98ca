"""What a small ranker can make of served features: columns for `ranker.compare_downstream`.

A question is a user at a moment and an item: will the user like it? Everything here is a function
of what was served at that moment, so stale and fresh features come from the same code.

Shape suffixes:
    Q  questions    D  model width    L  events of one served sequence
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from encoders.checkpoint import read_checkpoint
from encoders.data import Floats, Ints

# Weight of an event by its item's cosine to the asked item: a tenth at a cosine that is 0.46 less.
_SIMILARITY_SCALE = 0.2
# So many events of average value are added to every mean: few events prove little.
_PRIOR_EVENTS = 5.0
_PRIOR_WEIGHT = 0.05
_NEWEST = 5


@dataclass(frozen=True, eq=False)
class Served:
    """What a reader got for one user. `vector` is None where there is no representation."""

    vector: Floats | None  # (D,)
    item_hash: Ints  # (L,), newest last
    value: Floats  # (L,), NaN = absent


class ItemSpace:
    """The encoder's item side, for ranking with representations outside of Triton."""

    def __init__(self, checkpoint: Path) -> None:
        self._encoder = read_checkpoint(checkpoint)
        self.value_mean = self._encoder.config.value_mean
        self.value_scale = self._encoder.config.value_scale

    def vectors(self, item_hash: Ints) -> tuple[Floats, Floats]:
        """For each item: its next-item vector and its value vector, (I, D) float32 each.

        A representation's dot product with the first says how likely the item is next, with the
        second how much more than other users' the user's standardised value will be.
        """
        distinct, place = np.unique(item_hash, return_inverse=True)
        with torch.inference_mode():
            items = self._encoder.items(torch.from_numpy(distinct))
        return items.next_ID.numpy()[place], items.value_ID.numpy()[place]


def served_features(
    space: ItemSpace, item_hash_Q: Ints, served: Sequence[Served], with_vector: bool = False
) -> Floats:
    """One row per question, (Q, F) float32: the item against what was served of the user.

    Absent parts are zeros with a flag. `with_vector` adds the representation itself, which pays
    where there are many more questions than dimensions.
    """
    next_QD, value_QD = space.vectors(item_hash_Q)
    width = next_QD.shape[1]
    vector_QD = np.stack(
        [np.zeros(width, np.float32) if one.vector is None else one.vector for one in served]
    )
    present_Q = np.array([one.vector is not None for one in served], np.float32)
    from_vector = np.stack(
        ((vector_QD * next_QD).sum(1), (vector_QD * value_QD).sum(1), present_Q), axis=1
    )
    from_sequence = _sequences_features(space, next_QD, served)
    parts = [from_vector, from_sequence, *([vector_QD] if with_vector else [])]
    return np.concatenate(parts, axis=1).astype(np.float32)


def _sequences_features(space: ItemSpace, next_QD: Floats, served: Sequence[Served]) -> Floats:
    """The vectors of all served items are made at once, then looked at question by question."""
    ends = np.cumsum([len(one.item_hash) for one in served])
    every_LD, _ = space.vectors(np.concatenate([one.item_hash for one in served]))
    rows = []
    for item_D, one, end in zip(next_QD, served, ends, strict=True):
        next_LD = every_LD[end - len(one.item_hash) : end]
        value_L = (one.value - space.value_mean) / space.value_scale
        rows.append(_sequence_features(item_D, next_LD, value_L))
    return np.stack(rows)


def _sequence_features(item_D: Floats, next_LD: Floats, value_L: Floats) -> Floats:
    """How the user values things, and things like this one; values are standardised."""
    length = np.log1p(len(value_L))
    valued = np.isfinite(value_L)
    if not valued.any():
        return np.array([0, 0, 0, 0, 0, length], np.float32)
    next_LD, value_L = next_LD[valued], value_L[valued]
    mean = value_L.sum() / (len(value_L) + _PRIOR_EVENTS)
    weight_L = np.exp((next_LD @ item_D - 1) / _SIMILARITY_SCALE)
    alike = (weight_L * (value_L - mean)).sum() / (weight_L.sum() + _PRIOR_WEIGHT)
    newest = value_L[-_NEWEST:].sum() / (len(value_L[-_NEWEST:]) + 1)
    return np.array([1, mean, newest, alike, value_L.std(), length], np.float32)
