"""Versions, canaries, clocks and the monitor's own sources."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from streams.monitor.page import words
from streams.monitor.page.elements import Chip, Facts, Panel, Problem, Table, box, state_cell
from streams.monitor.page.view import View
from streams.monitor.snapshot import Canary, Clock, EncoderVersion, Source, State

MAX_VERSIONS = 50
MAX_CLOCKS = 200
MAX_SOURCES = 200
_LOADED = {True: "yes", False: "no", None: words.CAN_NOT_TELL}
_METHODS = {"round_trip": "asked", "least_delay": "from delays"}


class VersionsPanel:
    """The encoder versions that are known, and what serves them."""

    def __init__(self) -> None:
        with Panel("Encoder versions", "versions"):
            self._problem = Problem()
            self._table = Table("Encoder versions", _VERSION_COLUMNS, empty="No version yet")

    def show(self, view: View) -> None:
        versions = view.snapshot.versions[:MAX_VERSIONS]
        problem = "" if versions else versions_problem(view.snapshot.sources)
        self._problem.show(problem)
        self._table.show([version_row(v, view.now_ms) for v in versions], problem)


class CanaryPanel:
    """Synthetic users' events that went the whole way."""

    def __init__(self) -> None:
        self._panel = Panel("Canaries", "canaries", "Made-up users' events, read back by Feast")
        with self._panel.tools:
            self._chip = Chip()
        with self._panel:
            self._problem = Problem()
            self._facts = Facts("facts-wide")

    def show(self, view: View) -> None:
        canary = view.snapshot.canary
        if canary.enabled:
            self._chip.show(canary.state)
        else:
            self._chip.show(State.IDLE, "off")
        self._problem.show(canary.problem if canary.state == State.UNKNOWN else "")
        self._facts.show(canary_facts(canary, view.now_ms))


class ClocksPanel:
    """Clocks against the broker's: shown as they are."""

    def __init__(self) -> None:
        with Panel("Clocks", "clocks", "Against the broker's; delays hold only as far as these"):
            self._table = Table("Clock skew", _CLOCK_COLUMNS, empty="No clock was measured")

    def show(self, view: View) -> None:
        clocks = sorted(
            view.snapshot.clocks, key=lambda c: (not c.exceeds_limit, -abs(c.offset_seconds or 0))
        )
        self._table.show([clock_row(c) for c in clocks[:MAX_CLOCKS]])


class SourcesPanel:
    """What the monitor asks, and whether it answered."""

    def __init__(self) -> None:
        self._panel = Panel("What the monitor asks", "sources")
        with self._panel, box():
            self._table = Table("Sources of the monitor", _SOURCE_COLUMNS)

    def show(self, view: View) -> None:
        sources = view.snapshot.sources
        well = sum(source.ok for source in sources)
        self._panel.hint.text = f"{well:,} of {words.plural(len(sources), 'source')} answer"
        ranked = sorted(sources, key=lambda s: s.ok)
        self._table.show([source_row(s, view.now_ms) for s in ranked[:MAX_SOURCES]])


_VERSION_COLUMNS = (
    ("state", "State", ""),
    ("version", "Version", ""),
    ("made", "Made", ""),
    ("loaded", "Loaded in Triton", ""),
    ("stats", "Quality", "wide"),
)
_CLOCK_COLUMNS = (
    ("state", "State", ""),
    ("name", "Clock", ""),
    ("offset", "Offset", "number"),
    ("error", "±", "number"),
    ("method", "How", "minor"),
)
_SOURCE_COLUMNS = (
    ("state", "State", ""),
    ("name", "Source", ""),
    ("last", "Last answer", ""),
    ("took", "Took", "number"),
    ("errors", "Errors", "number"),
    ("error", "Why", "wide"),
)
_VERSION_STATES = {"active": State.OK, "ready": State.IDLE, "retired": State.IDLE}


def versions_problem(sources: Iterable[Source]) -> str:
    """Why no version is known, if the store that has them doesn't answer."""
    failing = (s.error for s in sources if s.name in ("versions", "cassandra") and not s.ok)
    return next(failing, "")


def version_row(found: EncoderVersion, now_ms: int) -> dict[str, Any]:
    """One version; the active one is the one that readers get."""
    stats = " · ".join(
        f"{name.replace('_', ' ')} {words.number(v) if isinstance(v, (int, float)) else v}"
        for name, v in list(found.stats.items())[:4]
    )
    return {
        "key": f"{found.encoder}/{found.version}",
        "state": state_cell(_VERSION_STATES.get(found.state, State.UNKNOWN), found.state),
        "version": f"{found.encoder} {found.version}",
        "made": words.ago(found.created_at, now_ms),
        "loaded": _LOADED[found.loaded],
        "stats": stats or words.DASH,
    }


def canary_facts(found: Canary, now_ms: int) -> list[tuple[str, str]]:
    """What the canaries found."""
    if not found.enabled:
        return [("Canaries", "off: no events are made up")]
    spans = (
        ("Sequence", found.sequence_p50_seconds, found.sequence_p99_seconds),
        ("Representation", found.representation_p50_seconds, found.representation_p99_seconds),
    )
    return [
        ("Availability", words.share(found.availability, words.CAN_NOT_TELL)),
        *(
            (f"{name}, p50 · p99", f"{words.duration(p50)} · {words.duration(p99)}")
            for name, p50, p99 in spans
        ),
        ("Sent", f"{found.num_sent:,} by {words.plural(found.num_users, 'user')}"),
        ("Read back", f"{found.num_read_back:,}, {found.num_lost:,} lost"),
        ("Last read back", words.ago(found.last_read_back_at, now_ms)),
        *([("Last problem", found.problem)] if found.problem else []),
    ]


def clock_row(found: Clock) -> dict[str, Any]:
    """One clock; beyond the limit is a state, not a number alone."""
    if found.offset_seconds is None:
        state = state_cell(State.UNKNOWN)
    else:
        far = found.exceeds_limit
        state = state_cell(State.BEHIND, "skewed") if far else state_cell(State.OK)
    return {
        "key": f"{found.kind}/{found.name}",
        "state": state,
        "name": found.name,
        "offset": words.signed(found.offset_seconds),
        "error": words.duration(found.error_seconds),
        "method": found.problem or _METHODS.get(found.method, found.method),
    }


def source_row(found: Source, now_ms: int) -> dict[str, Any]:
    """One source of the monitor."""
    return {
        "key": found.name,
        "state": state_cell(State.OK, "answers") if found.ok else state_cell(State.UNKNOWN),
        "name": found.name,
        "last": words.ago(found.last_ok_at, now_ms),
        "took": words.duration(found.duration_seconds),
        "errors": words.number(found.num_errors),
        "error": words.short(found.error),
    }
