"""Bar charts: ages of the representations, reads by outcome; options for ECharts. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from streams.monitor.page import chart_style
from streams.monitor.page.chart_style import Options
from streams.monitor.snapshot import CoverageOfVersion, ReadOutcome


def ages(versions: Iterable[CoverageOfVersion]) -> Options:
    """Age of the representations: one bar per version, cut into the bins."""
    rows = list(versions)
    labels = [b.label for b in rows[0].ages] if rows else []
    names = [f"version {v.version}" for v in rows]
    series = [
        _bar(label, [count_at(v, place) for v in rows], f"var(--age-{min(place, 4) + 1})")
        for place, label in enumerate(labels)
    ]
    return _bars(names, series)


def count_at(version: CoverageOfVersion, place: int) -> int:
    """Users in a bin; versions may have been sampled with fewer bins."""
    return version.ages[place].count if place < len(version.ages) else 0


_OUTCOMES = (
    ("found", "var(--ok-solid)"),
    ("absent", "var(--idle-solid)"),
    ("expired", "var(--behind-solid)"),
    ("failed", "var(--down-solid)"),
)


def outcomes(reads: Iterable[ReadOutcome]) -> Options:
    """Reads per second by outcome: one bar per view."""
    rates = {(r.view, r.outcome): r.rate for r in reads}
    views = sorted({view for view, _outcome in rates})
    series = [
        _bar(outcome, [round(rates.get((view, outcome)) or 0, 2) for view in views], colour)
        for outcome, colour in _OUTCOMES
    ]
    return _bars(views, series)


def bars_height(num_bars: int) -> int:
    """Pixels that a chart of so many bars needs."""
    return 58 + 34 * max(1, num_bars)


def _bar(name: str, values: list[Any], colour: str) -> Options:
    return {
        "type": "bar",
        "name": name,
        "stack": "all",
        "barWidth": 16,
        "data": values,
        "animation": False,
        "itemStyle": {"color": colour, "borderColor": "var(--surface)", "borderWidth": 1},
        "emphasis": {"disabled": True},
    }


def _bars(names: list[str], series: list[Options]) -> Options:
    return chart_style.base() | {
        "grid": {"left": 0, "right": 12, "top": 30, "bottom": 0, "containLabel": True},
        "legend": chart_style.legend(),
        "tooltip": chart_style.tooltip() | {"trigger": "axis", "axisPointer": {"type": "none"}},
        "xAxis": chart_style.axis(type="value", minInterval=1),
        "yAxis": chart_style.axis(
            type="category", data=names, inverse=True, splitLine={"show": False}
        ),
        "series": series,
    }
