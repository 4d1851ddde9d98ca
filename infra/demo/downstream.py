"""What fresh features are worth: one small ranker, without, with stale and with fresh features.

Questions are the sampled later events in their order: will the user like this item? The first part
of them trains the ranker, the rest judges it. All three rankers see the item's and the user's
likes in the earlier part; two of them see the served representation and sequence besides.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.table import Table

from encoders.downstream import ItemSpace, served_features
from encoders.ranker import compare_downstream
from infra.demo.movielens import LIKED
from infra.demo.serving import Sample
from streams.chunks import stable_hash
from streams.errors import HeadwaterError
from streams.events import Event

TRAIN_SHARE = 0.5
SEEDS = (0, 1, 2)
_PRIOR = 10.0


class Worth(msgspec.Struct):
    """Mean and standard deviation over the seeds, of the area under the ROC curve."""

    metric: str
    questions: int
    judged: int
    without: tuple[float, float]
    stale: tuple[float, float]
    fresh: tuple[float, float]

    def as_json(self) -> dict[str, Any]:
        """For the demo's report."""
        names = ("without", "stale", "fresh")
        means = {name: round(getattr(self, name)[0], 4) for name in names}
        spread = {f"{name}_std": round(getattr(self, name)[1], 4) for name in names}
        facts = {"metric": self.metric, "questions": self.questions, "judged": self.judged}
        return facts | means | spread

    def table(self) -> Table:
        """For the terminal."""
        table = Table("ranker", self.metric, "gain", box=None, pad_edge=False, header_style="dim")
        for name, text in (
            ("without", "without user features"),
            ("stale", "with stale ones (end of training)"),
            ("fresh", "with fresh ones"),
        ):
            mean, spread = getattr(self, name)
            gain = "" if name == "without" else f"{mean - self.without[0]:+.4f}"
            table.add_row(text, f"{mean:.4f} ± {spread:.4f}", gain)
        return table


def compare(samples: list[Sample], checkpoint: Path, earlier: list[Event]) -> Worth:
    """Train and judge the three rankers. Raises HeadwaterError if there is too little to judge."""
    if len(samples) < 100:
        raise HeadwaterError(f"only {len(samples)} later events were sampled; 100 are needed")
    labels = np.array([sample.is_liked for sample in samples], np.float32)
    items = np.array([stable_hash(sample.event.item_id) for sample in samples], np.int64)
    space = ItemSpace(checkpoint)
    train = np.arange(len(samples)) < int(len(samples) * TRAIN_SHARE)
    report = compare_downstream(
        labels,
        _base_features(samples, earlier),
        served_features(space, items, [_there(sample.stale) for sample in samples]),
        served_features(space, items, [_there(sample.fresh) for sample in samples]),
        train,
        SEEDS,
    )
    return Worth(
        "auc", len(samples), int((~train).sum()), report.without, report.stale, report.fresh
    )


def _there(served: Any) -> Any:
    assert served is not None, "finish() leaves only samples that were read"
    return served


def _base_features(samples: list[Sample], earlier: list[Event]) -> np.ndarray[Any, Any]:
    """How much the item, and the user, was looked at and liked in the earlier part; (Q, 6)."""
    views = [event for event in earlier if event.event_type == "view"]
    overall = float(np.mean([(event.value or 0) >= LIKED for event in views]))
    by_item = _likes(views, "item_id")
    by_user = _likes(views, "user_id")
    rows = []
    for sample in samples:
        row: list[float] = []
        for counts, key in ((by_item, sample.event.item_id), (by_user, sample.event.user_id)):
            seen, liked = counts.get(key, (0, 0))
            share = (liked + _PRIOR * overall) / (seen + _PRIOR)
            row += [float(np.log1p(seen)), share, float(seen == 0)]
        rows.append(row)
    return np.array(rows, np.float32)


def _likes(views: list[Event], field: str) -> dict[str, tuple[int, int]]:
    counts: dict[str, tuple[int, int]] = {}
    for event in views:
        key = getattr(event, field)
        seen, liked = counts.get(key, (0, 0))
        counts[key] = (seen + 1, liked + ((event.value or 0) >= LIKED))
    return counts
