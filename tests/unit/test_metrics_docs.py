"""docs/metrics.md and the catalogue say the same; the catalogue keeps its own rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streams import metric_docs
from streams.freshness import STAGES
from streams.metrics import BOUNDS, CATALOGUE, Metric
from streams.metrics import STAGES as STAGE_NAMES

ROOT = Path(__file__).resolve().parents[2]
# What would make the number of series grow with the traffic.
UNBOUNDED = {"user", "user_id", "item", "item_id", "event_id", "offset", "key", "detail"}


def test_the_page_is_the_generated_one() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert page == metric_docs.markdown(), "run: python -m streams.metric_docs > docs/metrics.md"


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_a_metric_is_named_and_labelled_by_the_rules(metric: Metric) -> None:
    assert re.fullmatch(r"headwater_[a-z0-9_]+", metric.name)
    assert metric.meaning
    assert metric.unit
    assert not set(metric.labels) & UNBOUNDED
    assert not metric.name.endswith(("_total", "_bucket", "_sum", "_count"))
    if metric.kind == "histogram":
        assert metric.name.endswith("_seconds")


def test_names_are_declared_once() -> None:
    names = [metric.name for metric in CATALOGUE]
    assert len(names) == len(set(names))


def test_the_stages_of_the_catalogue_are_those_of_the_picture() -> None:
    assert [stage.name for stage in STAGES] == list(STAGE_NAMES)


def test_buckets_resolve_a_millisecond_to_an_hour() -> None:
    assert BOUNDS[1] <= 0.001
    assert BOUNDS[-1] >= 3600
    assert max(BOUNDS[2:] / BOUNDS[1:-1]) < 1.2
