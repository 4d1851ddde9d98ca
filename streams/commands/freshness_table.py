"""The tables of `headwater freshness`."""

from __future__ import annotations

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from streams.commands.tables import plain_table
from streams.monitor.durations import duration
from streams.monitor.snapshot import Snapshot, State

_STYLES = {
    State.OK: "green",
    State.IDLE: "dim",
    State.BEHIND: "yellow",
    State.DOWN: "bold red",
    State.UNKNOWN: "magenta",
}
_NAMES = {State.UNKNOWN: "can't tell"}


def freshness_picture(snapshot: Snapshot, origin: str) -> Group:
    """The tables, below the one sentence that matters."""
    headline = Text(snapshot.headline.text, style=_STYLES[snapshot.headline.state])
    parts: list[Text | Table] = [headline, Text(origin, style="dim"), Text()]
    parts += [_stages(snapshot), Text(), _features(snapshot)]
    clocks = _clocks(snapshot)
    if clocks.row_count:
        parts += [Text(), clocks]
    silent = [source for source in snapshot.sources if not source.ok]
    parts += [Text(f"{one.name}: {one.error}", style="magenta") for one in silent]
    return Group(*parts)


def _stages(snapshot: Snapshot) -> Table:
    table = plain_table("stage", "state", "per second", "p50", "p99", "")
    for arrow in snapshot.arrows:
        slowest = arrow.stage == snapshot.slowest_stage
        rate = "" if arrow.rate is None else f"{arrow.rate:,.1f}"
        note = arrow.problem or ("slowest" if slowest else "")
        table.add_row(
            Text(arrow.label, style="bold" if slowest else ""),
            _state(arrow.state),
            rate,
            _duration(arrow.p50_seconds),
            _duration(arrow.p99_seconds),
            escape(note),
        )
    return table


def _features(snapshot: Snapshot) -> Table:
    table = plain_table("feature", "state", "stale", "lag", "p50", "p99", "objective", "good")
    objectives = {found.feature: found for found in snapshot.objectives}
    for stale in snapshot.staleness:
        rows = [
            found
            for found in snapshot.freshness
            if found.feature == stale.feature and found.since == "event_time"
        ]
        for fresh in rows:
            whole = not fresh.version
            objective = objectives[stale.feature]
            good = "" if objective.good_share is None else f"{objective.good_share:.2%}"
            lag = "" if stale.lag_records is None else f"{stale.lag_records:,}"
            table.add_row(
                stale.feature if whole else f"  {fresh.encoder} {fresh.version}",
                _state(stale.state) if whole else "",
                _duration(stale.seconds) if whole else "",
                lag if whole else "",
                _measured(fresh.p50_seconds, fresh.problem),
                _measured(fresh.p99_seconds, fresh.problem),
                f"{objective.target:.0%} in {duration(objective.seconds)}" if whole else "",
                good if whole else "",
            )
    return table


def _clocks(snapshot: Snapshot) -> Table:
    table = plain_table("clock", "against the broker's", "")
    for clock in snapshot.clocks:
        if clock.kind == "broker":
            continue
        offset = "can't tell"
        if clock.offset_seconds is not None:
            offset = f"{clock.offset_seconds * 1000:+,.0f} ms"
            if clock.error_seconds is not None:
                offset += f" ± {clock.error_seconds * 1000:,.0f}"
        style = "yellow" if clock.exceeds_limit else ""
        table.add_row(clock.name, Text(offset, style=style), escape(clock.problem))
    return table


def _state(state: State) -> Text:
    return Text(_NAMES.get(state, str(state)), style=_STYLES[state])


def _measured(seconds: float | None, problem: str) -> str | Text:
    """A delay; empty if there was nothing to measure, which isn't the same as nobody could."""
    return _state(State.UNKNOWN) if seconds is None and problem else _duration(seconds)


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)
