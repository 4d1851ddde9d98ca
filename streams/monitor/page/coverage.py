"""Coverage, age, served length, reads and cost: what readers get, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nicegui import ui

from streams.monitor.page import bars, words
from streams.monitor.page.elements import (
    Facts,
    Panel,
    Problem,
    Table,
    Text,
    box,
    set_class,
    set_prop,
)
from streams.monitor.page.figure import Chart
from streams.monitor.page.view import View
from streams.monitor.snapshot import (
    Cost,
    Coverage,
    CoverageOfVersion,
    ReadOutcome,
    SequenceLength,
)

# Versions and views that are shown at most; the newest versions first.
MAX_SHOWN = 8


class CoveragePanel:
    """Who of the active users has a representation, how old it is, how long sequences are."""

    def __init__(self) -> None:
        self._panel = Panel("Coverage and age", "coverage")
        with self._panel:
            self._problem = Problem()
            self._shares = Shares()
            with box("two"):
                self._ages = Chart("Age of the representations, in users")
                self._lengths = Table(
                    "Sequence length, configured and served", _LENGTH_COLUMNS, empty="No sequence"
                )

    def show(self, view: View) -> None:
        coverage = view.snapshot.coverage
        self._problem.show(coverage.problem)
        self._panel.hint.text = hint(coverage, view.now_ms)
        versions = newest(coverage.versions)
        self._shares.show(versions)
        self._show_ages(versions)
        lengths = [length_row(found) for found in coverage.lengths[:MAX_SHOWN]]
        self._lengths.show(lengths, coverage.problem)

    def _show_ages(self, versions: list[CoverageOfVersion]) -> None:
        if not versions:
            self._ages.hide()
            return
        columns, rows = age_table(versions)
        self._ages.show(
            "Age of the representations: users by version",
            bars.ages(versions),
            columns,
            rows,
            bars.bars_height(len(versions)),
        )


class Shares:
    """A bar per version: the covered share of the active users."""

    def __init__(self) -> None:
        self._box = box("shares")
        self._shown: list[tuple[str, str, str]] = []
        self._rows: list[tuple[ui.linear_progress, Text, Text]] = []

    def show(self, versions: list[CoverageOfVersion]) -> None:
        keys = [(v.view, v.encoder, v.version) for v in versions]
        if keys != self._shown:
            self._build(versions)
            self._shown = keys
        for (bar, tag, text), found in zip(self._rows, versions, strict=True):
            set_class(bar, "is-muted", not found.is_active)
            tag.text = "active" if found.is_active else ""
            sentence = coverage_sentence(found)
            text.text = sentence
            set_prop(bar, "aria-label", f"{found.encoder} version {found.version}: {sentence}")
            if bar.value != (found.share or 0.0):
                bar.value = found.share or 0.0

    def _build(self, versions: list[CoverageOfVersion]) -> None:
        self._rows = []
        self._box.clear()
        with self._box:
            for found in versions:
                with box("share"):
                    with box("share-head"):
                        Text(f"{found.encoder} version {found.version}", "span", "share-name")
                        tag = Text("", "span", "badge badge-calm")
                        text = Text("", "span", "hint")
                    bar = ui.linear_progress(
                        found.share or 0.0, show_value=False, size="8px", color=None
                    )
                    bar.props("instant-feedback rounded")
                self._rows.append((bar, tag, text))


class ReadsAndCost:
    """Reads by outcome, and what a representation costs."""

    def __init__(self) -> None:
        with Panel("Reads and cost", "cost") as panel:
            self._panel = panel
            self._problem = Problem()
            with box("two"):
                self._reads = Chart("Reads by outcome")
                with box("cost"):
                    self._facts = Facts()
                    self._costs = Table("Cost by version", _COST_COLUMNS, empty="Nothing encoded")

    def show(self, view: View) -> None:
        snapshot = view.snapshot
        reads = snapshot.coverage.reads[: 4 * MAX_SHOWN]
        problems = [snapshot.coverage.reads_problem, *(c.problem for c in snapshot.cost)]
        problem = "; ".join(dict.fromkeys(p for p in problems if p))
        self._problem.show(problem)
        window = words.duration(snapshot.cost_window_seconds)
        self._panel.hint.text = f"Reads of the last {words.duration(snapshot.window_seconds)}, "
        self._panel.hint.text += f"cost of the last {window}"
        self._show_reads(reads)
        self._facts.show([*read_facts(reads), *request_facts(snapshot.cost)])
        self._costs.show([cost_row(found) for found in snapshot.cost[:MAX_SHOWN]], problem)

    def _show_reads(self, reads: Sequence[ReadOutcome]) -> None:
        if not reads:
            self._reads.hide()
            return
        self._reads.show(
            "Reads per second by outcome",
            bars.outcomes(reads),
            _READ_COLUMNS,
            [read_row(found) for found in reads],
            bars.bars_height(len({found.view for found in reads})),
        )


_LENGTH_COLUMNS = (
    ("view", "Sequence view", ""),
    ("configured", "Configured", "number"),
    ("mean", "Mean served", "number"),
    ("p50", "p50", "number"),
    ("p99", "p99", "number"),
    ("full", "Full", "number"),
)
_COST_COLUMNS = (
    ("version", "Version", ""),
    ("rate", "Encoded", "number"),
    ("seconds", "Encoder time each", "number"),
    ("bytes", "Stored each", "number"),
    ("reads", "Reads each", "number"),
    ("unread", "Never read", "number"),
    ("first", "Read after", "number"),
)
_READ_COLUMNS = (
    ("view", "View", ""),
    ("outcome", "Outcome", ""),
    ("rate", "Rate", "number"),
    ("share", "Share", "number"),
)


def newest(versions: Iterable[CoverageOfVersion]) -> list[CoverageOfVersion]:
    """The active versions, then the newest others."""
    return sorted(
        versions,
        key=lambda v: (v.is_active, int(v.version) if v.version.isdigit() else 0),
        reverse=True,
    )[:MAX_SHOWN]


def hint(coverage: Coverage, now_ms: int) -> str:
    """What the figures are based on."""
    if coverage.sampled_at is None:
        return "Not sampled yet"
    return (
        f"A sample of {words.plural(coverage.num_sampled_users, 'stored user')}, "
        f"{words.ago(coverage.sampled_at, now_ms)}; active is who had an event within "
        f"{words.duration(coverage.active_window_seconds)}"
    )


def coverage_sentence(found: CoverageOfVersion) -> str:
    """Covered and current users in words."""
    return (
        f"{words.share(found.share, words.CAN_NOT_TELL)} covered: "
        f"{found.num_covered:,} of {words.plural(found.num_active_users, 'active user')}, "
        f"{found.num_current:,} up to date"
    )


def age_table(
    versions: list[CoverageOfVersion],
) -> tuple[list[tuple[str, str, str]], list[dict[str, Any]]]:
    """The age chart as a table: a row per age, a column per version."""
    columns = [("age", "Age", "")]
    columns += [(f"v{i}", f"Version {v.version}", "number") for i, v in enumerate(versions)]
    labels = [b.label for b in versions[0].ages] if versions else []
    rows = [
        {"key": label, "age": label}
        | {f"v{i}": words.number(bars.count_at(v, place)) for i, v in enumerate(versions)}
        for place, label in enumerate(labels)
    ]
    return columns, rows


def length_row(found: SequenceLength) -> dict[str, Any]:
    """Configured against served length."""
    return {
        "key": found.view,
        "view": found.view,
        "configured": words.number(found.max_length),
        "mean": words.number(None if found.mean_length is None else round(found.mean_length)),
        "p50": words.number(found.p50_length),
        "p99": words.number(found.p99_length),
        "full": words.share(found.share_full),
    }


def read_row(found: ReadOutcome) -> dict[str, Any]:
    """One outcome of one view."""
    return {
        "key": f"{found.view}/{found.outcome}",
        "view": found.view,
        "outcome": found.outcome,
        "rate": words.rate(found.rate, "?"),
        "share": words.share(found.share),
    }


def read_facts(reads: Iterable[ReadOutcome]) -> list[tuple[str, str]]:
    """The share of the reads that found something, by view."""
    return [
        (f"Found in {found.view}", words.share(found.share, "no reads"))
        for found in reads
        if found.outcome == "found"
    ]


def request_facts(costs: Sequence[Cost]) -> list[tuple[str, str]]:
    """Refresh requests without an encoding of their own, of all versions together."""
    return [
        fact
        for found in costs[:1]
        for fact in (
            ("Requests coalesced", words.number(found.num_shared, "?")),
            ("Requests shed", words.number(found.num_shed, "?")),
        )
    ]


def cost_row(found: Cost) -> dict[str, Any]:
    """What one version costs."""
    return {
        "key": f"{found.encoder}/{found.version}",
        "version": f"{found.encoder} {found.version}",
        "rate": words.rate(found.representations_per_second, "?"),
        "seconds": words.duration(found.encoder_seconds_per_representation, "?"),
        "bytes": words.size(found.bytes_per_representation, "?"),
        "reads": words.number(found.reads_per_representation, "?"),
        "unread": words.share(found.share_never_read, "?"),
        "first": words.duration(found.first_read_p50_seconds, "?"),
    }
