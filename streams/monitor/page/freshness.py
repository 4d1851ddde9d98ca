"""Freshness over time against the objectives, and the figures behind it."""

from __future__ import annotations

from typing import Any

from nicegui import ui
from nicegui.events import ValueChangeEventArguments

from streams.monitor.answers import History
from streams.monitor.page import charts, words
from streams.monitor.page.elements import Panel, Problem, Table, box, state_cell
from streams.monitor.page.feed import KeptHistory
from streams.monitor.page.figure import Chart
from streams.monitor.page.view import View
from streams.monitor.snapshot import Freshness, Objective, State

RANGES = {900: "15 min", 3600: "1 h", 21_600: "6 h", 86_400: "1 day", 604_800: "1 week"}
_QUANTILES = {charts.P50.name: charts.P50, charts.P99.name: charts.P99}
_TOGGLE = "dense no-caps unelevated toggle-color=chosen toggle-text-color=chosen"
_SINCE = {"event_time": "the event", "ingested_at": "its arrival at the broker"}
# Burning faster than this uses up a month's budget in two days (SRE workbook, chapter 5).
_FAST_BURN = 14.4


class FreshnessOverTime:
    """Two charts over a range that the reader chooses; they ask for history by themselves."""

    def __init__(self, history: KeptHistory) -> None:
        self._history = history
        self._range = 3600
        self._quantile = charts.P99
        self._shown: History | None = None
        panel = Panel("Freshness over time", "freshness", "From the event to the value that has it")
        with panel.tools:
            ranges = ui.toggle(RANGES, value=self._range, on_change=self._on_range)
            ranges.props(f'{_TOGGLE} aria-label="Time range"')
            quantiles = ui.toggle(
                list(_QUANTILES), value=charts.P99.name, on_change=self._on_quantile
            )
            quantiles.props(f'{_TOGGLE} aria-label="Quantile"')
        with panel:
            self._problem = Problem()
            with box("two"):
                self._took = Chart("Events took", "chart-tall")
                self._waiting = Chart("Oldest event waits", "chart-tall")
            with box("two"):
                self._table = Table(
                    "Freshness now, by version", _FRESHNESS_COLUMNS, empty="Nothing measured"
                )
                self._budget = Table("Objectives and their budgets", _BUDGET_COLUMNS)
        ui.timer(5.0, self.refresh)

    async def refresh(self) -> None:
        """Ask for the history and draw it, unless it is what is drawn."""
        try:
            history = await self._history.get(self._range)
        except Exception as error:  # noqa: BLE001 - whatever fails is shown, and asked again
            self._problem.show(f"no history: {error or type(error).__name__}")
            return
        self._problem.show("")
        if history is not self._shown:
            self._shown = history
            self._draw(history)

    def show(self, view: View) -> None:
        window = view.snapshot.window_seconds
        self._table.show([freshness_row(f, window) for f in view.snapshot.freshness])
        self._budget.show([budget_row(o) for o in view.snapshot.objectives])

    def _draw(self, history: History) -> None:
        reach = RANGES[history.range_seconds]
        for chart, measure, title in (
            (self._took, self._quantile, f"Events took, {self._quantile.title}"),
            (self._waiting, charts.WAITING, charts.WAITING.title),
        ):
            names, rows = charts.table_over_time(history, measure)
            columns = [
                ("since", "From", ""),
                *((f"s{i}", n, "number") for i, n in enumerate(names)),
            ]
            chart.show(f"{title}, last {reach}", charts.over_time(history, measure), columns, rows)

    async def _on_range(self, change: ValueChangeEventArguments[Any]) -> None:
        self._range = change.value
        await self.refresh()

    def _on_quantile(self, change: ValueChangeEventArguments[Any]) -> None:
        self._quantile = _QUANTILES[change.value]
        if self._shown is not None:
            self._draw(self._shown)


_FRESHNESS_COLUMNS = (
    ("what", "Feature", ""),
    ("since", "Counted from", "minor"),
    ("count", "Events", "number"),
    ("p50", "p50", "number"),
    ("p99", "p99", "number"),
    ("state", "Objective", ""),
)
_BUDGET_COLUMNS = (
    ("what", "Objective", ""),
    ("good", "Met", "number"),
    ("burn", "Budget burns at", "wide"),
    ("state", "State", ""),
)


def freshness_row(found: Freshness, window_seconds: float) -> dict[str, str]:
    """One feature or version over the window."""
    what = f"version {found.version}" if found.version else f"{found.feature}s"
    if found.problem and found.within_objective is not False:
        state = state_cell(State.UNKNOWN)
    elif found.within_objective is None:
        state = state_cell(State.IDLE, f"none in {words.duration(window_seconds)}")
    else:
        met = found.within_objective
        state = state_cell(State.OK, "met") if met else state_cell(State.BEHIND, "missed")
    return {
        "key": f"{found.feature}/{found.encoder}/{found.version}/{found.since}",
        "what": what,
        "since": _SINCE.get(found.since, found.since),
        "count": words.number(found.count, "?"),
        "p50": words.duration(found.p50_seconds),
        "p99": words.duration(found.p99_seconds),
        "state": state,
    }


def budget_row(found: Objective) -> dict[str, str]:
    """How fast an objective's error budget burns, over several windows."""
    known = [rate for _window, rate in found.burn_rates if rate is not None]
    burn = " · ".join(
        f"{words.duration(window)}: {'?' if rate is None else f'{rate:.3g}×'}".replace(
            " ", "\u00a0"
        )
        for window, rate in found.burn_rates
    )
    worst = max(known, default=None)
    if worst is not None and worst >= _FAST_BURN:
        state = state_cell(State.DOWN, "burns fast")
    elif worst is not None and worst > 1:
        state = state_cell(State.BEHIND, "burns")
    elif worst is None or found.problem:
        state = state_cell(State.UNKNOWN)
    else:
        state = state_cell(State.OK, "kept")
    aim = f"{words.share(found.target)} within {words.duration(found.seconds)}"
    return {
        "key": found.feature,
        "what": f"{found.feature.capitalize()}s: {aim}",
        "good": words.share(found.good_share, "?"),
        "burn": burn,
        "state": state,
    }
