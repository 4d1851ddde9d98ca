"""Conditions over a snapshot's figures: `representation.p99 > 5s or coverage < 90%`. Pure.

    condition  := comparison (("and" | "or") comparison)*       "and" binds tighter
    comparison := figure (">" | ">=" | "<" | "<=") number [unit]
    unit       := ms | s | m | h | d | %

A figure may have no value. If that is since nothing happened, no comparison with it holds; if it
can't be told, whoever asks must assume the worst, so that `Verdict.holds` is true then too.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

import msgspec

from streams.errors import ConfigError
from streams.monitor.snapshot import Snapshot, State

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "%": 0.01}
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_COMPARISON = re.compile(
    r"^\s*(?P<figure>[a-z][a-z0-9_.]*)\s*(?P<operator>[<>]=?)\s*"
    r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>ms|s|m|h|d|%)?\s*$"
)
_MAX_LENGTH = 500
_BURN_NAMES = {300: "burn_5m", 3_600: "burn_1h", 21_600: "burn_6h", 259_200: "burn_3d"}


class Figure(msgspec.Struct, frozen=True):
    """A value, or None; then `problem` says why it can't be told, "" if there was nothing."""

    value: float | None
    problem: str = ""


class Comparison(msgspec.Struct, frozen=True):
    """One part of a condition."""

    figure: str
    operator: str
    number: float
    text: str


class Verdict(msgspec.Struct, frozen=True):
    """Whether a condition holds, and the values of its figures to show."""

    holds: bool
    reasons: tuple[str, ...]


Condition = tuple[tuple[Comparison, ...], ...]  # or over and


def parse_condition(text: str) -> Condition:
    """Raises ConfigError, saying what to write instead."""
    if len(text) > _MAX_LENGTH:
        raise ConfigError(f"a condition has at most {_MAX_LENGTH} characters")
    return tuple(
        tuple(_comparison(part) for part in re.split(r"\s+and\s+", either))
        for either in re.split(r"\s+or\s+", text.strip())
    )


def _comparison(text: str) -> Comparison:
    found = _COMPARISON.match(text)
    if found is None:
        raise ConfigError(
            f"{text.strip()!r} isn't a comparison; write FIGURE > NUMBER[UNIT], for example "
            "representation.p99 > 5s (operators > >= < <=, units ms s m h d %)"
        )
    number = float(found["number"]) * _UNITS[found["unit"] or ""]
    return Comparison(found["figure"], found["operator"], number, text.strip())


def judge(condition: Condition, figures: Mapping[str, Figure]) -> Verdict:
    """Raises ConfigError for a figure that there isn't."""
    for parts in condition:
        for part in parts:
            if part.figure not in figures:
                raise ConfigError(
                    f"there is no figure {part.figure!r}; there are: {', '.join(sorted(figures))}"
                )
    outcomes = [[(part, _holds(part, figures[part.figure])) for part in ps] for ps in condition]
    holding = [outcome for outcome in outcomes if all(holds for _, holds in outcome)]
    reasons = tuple(
        _reason(part, figures[part.figure]) for outcome in holding for part, _ in outcome
    )
    return Verdict(bool(holding), reasons)


def _holds(part: Comparison, figure: Figure) -> bool:
    if figure.value is None:
        return bool(figure.problem)
    return _OPERATORS[part.operator](figure.value, part.number)


def _reason(part: Comparison, figure: Figure) -> str:
    if figure.value is None:
        return f"{part.figure}: can't tell: {figure.problem}"
    return f"{part.figure} is {figure.value:.6g}: {part.text}"


def figures_of(snapshot: Snapshot) -> dict[str, Figure]:
    """All figures that conditions may use, by name; durations in seconds, shares 0 to 1."""
    found: dict[str, Figure] = {}
    unknown = {one.feature: one.problem for one in snapshot.staleness if one.state is State.UNKNOWN}
    for stale in snapshot.staleness:
        name, problem = stale.feature, unknown.get(stale.feature, "")
        found[f"{name}.staleness"] = Figure(stale.seconds, problem)
        found[f"{name}.waiting"] = Figure(stale.waiting_seconds, problem)
        found[f"{name}.lag"] = Figure(stale.lag_records, problem)
    _add_freshness(found, snapshot, unknown)
    for objective in snapshot.objectives:
        problem = objective.problem
        found[f"{objective.feature}.good"] = _figure(objective.good_share, problem)
        for window, rate in objective.burn_rates:
            found[f"{objective.feature}.{_BURN_NAMES[window]}"] = _figure(rate, problem)
    for arrow in snapshot.arrows:
        problem = arrow.problem if arrow.state is State.UNKNOWN else ""
        found[f"stage.{arrow.stage}.p50"] = Figure(arrow.p50_seconds, problem)
        found[f"stage.{arrow.stage}.p99"] = Figure(arrow.p99_seconds, problem)
    _add_others(found, snapshot)
    return found


def _add_freshness(
    found: dict[str, Figure], snapshot: Snapshot, unknown: Mapping[str, str]
) -> None:
    for fresh in snapshot.freshness:
        problem = fresh.problem or unknown.get(fresh.feature, "")
        prefix = f"{fresh.feature}.v{fresh.version}." if fresh.version else f"{fresh.feature}."
        if fresh.since == "ingested_at":
            prefix += "platform_"
        found[f"{prefix}p50"] = _figure(fresh.p50_seconds, problem)
        found[f"{prefix}p99"] = _figure(fresh.p99_seconds, problem)


def _figure(value: float | None, problem: str) -> Figure:
    """What was measured, or why it couldn't be."""
    return Figure(value, "" if value is not None else problem)


def _add_others(found: dict[str, Figure], snapshot: Snapshot) -> None:
    covered = [one.share for one in snapshot.coverage.versions if one.is_active]
    problem = snapshot.coverage.problem
    found["coverage"] = Figure(
        min((share for share in covered if share is not None), default=None), problem
    )
    letters, canary = snapshot.dead_letters, snapshot.canary
    found["dead_letters.rate"] = Figure(letters.rate, letters.rate_problem)
    found["dead_letters.share"] = Figure(letters.share, letters.rate_problem)
    off = "" if canary.enabled and canary.availability is not None else (canary.problem or "none")
    found["canary.availability"] = Figure(canary.availability, off)
    found["canary.sequence_p99"] = Figure(canary.sequence_p99_seconds, off)
    found["canary.representation_p99"] = Figure(canary.representation_p99_seconds, off)
    found["partitions.stalled"] = Figure(
        None if snapshot.partitions.problem else snapshot.partitions.num_stalled,
        snapshot.partitions.problem,
    )
    down = sum(worker.state is State.DOWN for worker in snapshot.workers)
    unread = next((one.error for one in snapshot.sources if one.name == "workers"), "")
    found["workers.down"] = Figure(None if unread else down, unread)
