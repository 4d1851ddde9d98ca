"""Freshness over time: options for ECharts and tables that say the same. Pure.

A chart has at most `MAX_POINTS` points in each of `MAX_SERIES` lines, whatever the range.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from streams.monitor.answers import History, HistoryPoint, Series
from streams.monitor.page import chart_style, words
from streams.monitor.page.chart_style import Options

MAX_POINTS = 360
MAX_SERIES = 6
MAX_TABLE_ROWS = 12
Rows = list[dict[str, Any]]

# JavaScript: seconds as in words.duration, short enough for an axis.
_SECONDS = (
    "v => v == null ? '–' : v === 0 ? '0' : v >= 3600 ? +(v / 3600).toPrecision(3) + ' h'"
    " : v >= 120 ? +(v / 60).toPrecision(3) + ' min' : v >= 1 ? +v.toPrecision(3) + ' s'"
    " : +(v * 1000).toPrecision(3) + ' ms'"
)


class Measure(msgspec.Struct, frozen=True):
    """What is drawn over time: a figure of a step, and how two steps become one."""

    name: str
    title: str
    value: Callable[[HistoryPoint], float | None]
    merge: Callable[[Sequence[float]], float]
    is_log: bool
    is_per_version: bool


P99 = Measure("p99", "p99", lambda p: p.p99_seconds, max, True, True)
P50 = Measure("p50", "p50", lambda p: p.p50_seconds, statistics.median, True, True)
WAITING = Measure("waiting", "Oldest event waits", lambda p: p.staleness_seconds, max, False, False)


def series_name(series: Series, measure: Measure, *, many: bool) -> str:
    """What a line is called; with `many` encoders each is named."""
    if not series.encoder or not measure.is_per_version:
        return f"{series.feature.capitalize()}s"
    return f"{series.encoder} version {series.version}" if many else f"Version {series.version}"


def chosen(history: History, measure: Measure) -> list[Series]:
    """The series that are drawn: those measured last, at most `MAX_SERIES`, in a steady order.

    What a feature waits is the same for all versions: one line. What events took is drawn by
    version, or for the whole feature where no version is known.
    """

    def last(series: Series) -> int:
        return max((p.at for p in series.points if p.count), default=0)

    ranked = sorted(history.series, key=last, reverse=True)
    if measure.is_per_version:
        known = {s.feature for s in ranked if s.encoder}
        kept = [s for s in ranked if s.encoder or s.feature not in known]
    else:
        by_feature: dict[str, Series] = {}
        for series in sorted(ranked, key=lambda s: s.encoder != ""):
            by_feature.setdefault(series.feature, series)
        kept = list(by_feature.values())
    place = {"sequence": 0, "representation": 1}
    return sorted(
        kept[:MAX_SERIES],
        key=lambda s: (place.get(s.feature, 2), s.encoder, _natural(s.version)),
    )


def _natural(version: str) -> tuple[int, str]:
    return (int(version), "") if version.isdigit() else (0, version)


def line(history: History, series: Series, measure: Measure) -> list[tuple[int, float | None]]:
    """(ms, seconds) with None where nothing was measured, thinned to `MAX_POINTS`."""
    step_ms = history.step_seconds * 1000
    wanted = -(-history.range_seconds * 1000 // MAX_POINTS)
    width = max(1, -(-wanted // step_ms)) * step_ms
    bins: dict[int, list[float]] = {}
    for point in series.points:
        value = measure.value(point)
        if value is not None:
            bins.setdefault(point.at // width * width, []).append(value)
    first, last = history.at - history.range_seconds * 1000, history.at
    moments = range(first // width * width, last + 1, width)
    return [(at, measure.merge(bins[at]) if at in bins else None) for at in moments]


def over_time(history: History, measure: Measure) -> Options:
    """Lines over time, and each objective as a dashed one."""
    found = chosen(history, measure)
    names = series_names(found, measure)
    lines = [
        _line_series(name, line(history, s, measure), measure, place)
        for place, (name, s) in enumerate(zip(names, found, strict=True))
    ]
    lines += [_objective_series(s) for s in {s.feature: s for s in found}.values()]
    options = chart_style.base()
    options |= {
        "grid": {"left": 8, "right": 16, "top": 40, "bottom": 8, "containLabel": True},
        "legend": chart_style.legend(),
        "tooltip": chart_style.tooltip() | {"trigger": "axis", ":valueFormatter": _SECONDS},
        "xAxis": chart_style.axis(
            type="time",
            min=history.at - history.range_seconds * 1000,
            max=history.at,
            splitLine={"show": False},
        ),
        "yAxis": chart_style.axis(type="log" if measure.is_log else "value"),
        "series": lines,
    }
    options["yAxis"]["axisLabel"] |= {":formatter": _SECONDS}
    return options


def series_names(found: Sequence[Series], measure: Measure) -> list[str]:
    """What the lines are called."""
    many = len({series.encoder for series in found if series.encoder}) > 1
    return [series_name(series, measure, many=many) for series in found]


def _line_series(
    name: str, points: list[tuple[int, float | None]], measure: Measure, place: int
) -> Options:
    colour = f"var(--series-{place % MAX_SERIES + 1})"
    floor = 0.001 if measure.is_log else 0.0
    return {
        "type": "line",
        "name": name,
        "data": [[at, None if v is None else round(max(v, floor), 4)] for at, v in points],
        "showSymbol": False,
        "animation": False,
        "lineStyle": {"width": 2, "color": colour},
        "itemStyle": {"color": colour},
        "emphasis": {"disabled": True},
    }


def _objective_series(series: Series) -> Options:
    """A dashed line across; without a name, so that it stays out of legend and tooltip."""
    return {
        "type": "line",
        "data": [],
        "markLine": {
            "silent": True,
            "symbol": "none",
            "animation": False,
            "lineStyle": {"color": chart_style.MUTED, "type": "dashed", "width": 1},
            "label": {
                # At both ends, so that two lines that lie close keep their names apart.
                "position": "insideStartTop" if series.feature == "sequence" else "insideEndTop",
                "formatter": f"{series.feature}s: objective "
                f"{words.duration(series.objective_seconds)}",
                "color": chart_style.MUTED,
                "fontFamily": chart_style.FONT,
                "fontSize": 11,
            },
            "data": [{"yAxis": series.objective_seconds}],
        },
    }


def table_over_time(history: History, measure: Measure) -> tuple[list[str], Rows]:
    """The same in a few rows: a column per series, each cell the worst of its time."""
    found = chosen(history, measure)
    lines = [line(history, series, measure) for series in found]
    if not lines or not lines[0]:
        return series_names(found, measure), []
    per_row = -(-len(lines[0]) // MAX_TABLE_ROWS)
    rows: Rows = []
    for start in range(0, len(lines[0]), per_row):
        row: dict[str, Any] = {
            "key": start,
            "since": words.ago(lines[0][start][0], history.at),
        }
        for place, points in enumerate(lines):
            values = [value for _at, value in points[start : start + per_row] if value is not None]
            row[f"s{place}"] = words.duration(max(values, default=None))
        rows.append(row)
    return series_names(found, measure), rows[::-1]
