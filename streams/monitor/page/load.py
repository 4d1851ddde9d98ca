"""Partitions, workers and dead letters: where records wait, who takes them, what was refused."""

from __future__ import annotations

from typing import Any

from streams.monitor.page import words
from streams.monitor.page.elements import (
    Chip,
    Panel,
    Problem,
    Table,
    Text,
    box,
    set_visible,
    state_cell,
)
from streams.monitor.page.view import View
from streams.monitor.snapshot import DeadLetter, Partition, Partitions, State, Worker

MAX_PARTITIONS = 100
MAX_WORKERS = 200
MAX_DEAD_LETTERS = 50
_PARTITION_WORDS = {State.DOWN: "stalled", State.BEHIND: "behind, moving"}
_WORST_FIRST = (State.DOWN, State.UNKNOWN, State.BEHIND, State.OK, State.IDLE)


class PartitionsPanel:
    """All partitions in four numbers, and the worst of them in a table."""

    def __init__(self) -> None:
        self._panel = Panel("Partitions", "partitions")
        with self._panel:
            self._problem = Problem()
            with box("counts") as self._counts_box:
                self._counts = {
                    state: Chip("chip-count")
                    for state in (State.OK, State.IDLE, State.BEHIND, State.DOWN)
                }
            self._table = Table(
                "Partitions that need a look, worst first",
                _PARTITION_COLUMNS,
                empty="No partition needs a look",
            )

    def show(self, view: View) -> None:
        found = view.snapshot.partitions
        self._problem.show(found.problem)
        self._panel.hint.text = (
            ""
            if found.problem and not found.num_partitions
            else f"{words.plural(found.num_partitions, 'partition')} of both topics"
            if not found.worst or len(found.worst) >= found.num_partitions
            else f"{len(found.worst):,} of {found.num_partitions:,} partitions in the table, "
            "worst first"
        )
        for state, text in partition_counts(found).items():
            self._counts[state].show(state, text)
        set_visible(self._counts_box, bool(found.num_partitions) or not found.problem)
        rows = [partition_row(p) for p in found.worst[:MAX_PARTITIONS]]
        self._table.show(rows, found.problem)


class WorkersPanel:
    """Every process that takes records, those with a problem first."""

    def __init__(self) -> None:
        self._panel = Panel("Workers", "workers")
        with self._panel:
            self._table = Table("Workers", _WORKER_COLUMNS, empty="No worker is registered")

    def show(self, view: View) -> None:
        workers = view.snapshot.workers
        well = sum(worker.state == State.OK for worker in workers)
        self._panel.hint.text = f"{well:,} of {words.plural(len(workers), 'worker')} ok"
        ranked = sorted(workers, key=lambda w: (_WORST_FIRST.index(w.state), w.role, w.id))
        self._table.show([worker_row(w, view.now_ms) for w in ranked[:MAX_WORKERS]])


class DeadLettersPanel:
    """What could not be an event, by reason, and the newest of them."""

    def __init__(self) -> None:
        self._panel = Panel("Dead letters", "dead-letters")
        with self._panel:
            self._problem = Problem()
            with box("one-three"):
                self._reasons = Table("By reason", _REASON_COLUMNS, empty="No dead letter")
                self._recent = Table("Newest dead letters", _LETTER_COLUMNS, empty="None")
            self._advice = Text("", "p", "hint")

    def show(self, view: View) -> None:
        found = view.snapshot.dead_letters
        problems = dict.fromkeys(filter(None, (found.rate_problem, found.problem)))
        self._problem.show("; ".join(problems))
        self._panel.hint.text = (
            f"{words.rate(found.rate, 'unknown rate')}, "
            f"{words.share(found.share, 'an unknown share')} of what was consumed"
        )
        total = sum(count for _reason, count in found.by_reason)
        self._reasons.show(
            [
                {
                    "key": reason,
                    "reason": reason.replace("_", " "),
                    "count": words.number(count),
                    "share": words.share(count / total if total else 0.0),
                }
                for reason, count in sorted(found.by_reason, key=lambda r: -r[1])
            ],
            found.rate_problem,
        )
        letters = found.recent[:MAX_DEAD_LETTERS]
        nothing = found.problem or ("" if found.by_reason else "no dead letter at all")
        self._recent.show([letter_row(d, view.now_ms) for d in letters], nothing)
        self._advice.text = (
            "See and replay them with: headwater dead-letters" if found.by_reason else ""
        )


_PARTITION_COLUMNS = (
    ("state", "State", ""),
    ("where", "Partition", ""),
    ("waiting", "Waits", "number"),
    ("lag", "Open", "number"),
    ("committed", "Committed", "number minor"),
    ("end", "End", "number minor"),
    ("worker", "Worker", "minor"),
)
_WORKER_COLUMNS = (
    ("state", "State", ""),
    ("id", "Worker", "wide"),
    ("partitions", "Partitions", "number"),
    ("rate", "Rate", "number"),
    ("lag", "Open", "number"),
    ("memory", "Memory", "number minor"),
    ("up", "Up", "number minor"),
)
_REASON_COLUMNS = (
    ("reason", "Reason", ""),
    ("count", "Count", "number"),
    ("share", "Share", "number"),
)
_LETTER_COLUMNS = (
    ("when", "When", ""),
    ("reason", "Reason", ""),
    ("detail", "Detail", "wide"),
    ("where", "Partition, offset", ""),
    ("preview", "Value", "wide code minor"),
)


def partition_counts(found: Partitions) -> dict[State, str]:
    """The four numbers in words."""
    return {
        State.OK: f"{found.num_ok:,} ok",
        State.IDLE: f"{found.num_idle:,} idle",
        State.BEHIND: f"{found.num_behind:,} behind",
        State.DOWN: f"{found.num_stalled:,} stalled",
    }


def partition_row(found: Partition) -> dict[str, Any]:
    """One partition as its group sees it."""
    return {
        "key": f"{found.group}/{found.topic}/{found.partition}",
        "state": state_cell(found.state, _PARTITION_WORDS.get(found.state, "")),
        "where": f"{found.topic} {found.partition}",
        "waiting": words.duration(found.waiting_seconds),
        "lag": words.number(found.lag_records),
        "committed": words.number(found.committed_offset),
        "end": words.number(found.end_offset),
        "worker": found.worker or words.DASH,
    }


def worker_row(found: Worker, now_ms: int) -> dict[str, Any]:
    """One process."""
    up = None if found.started_at is None else (now_ms - found.started_at) / 1000
    name = f"{found.id} ({found.address})" if found.address else found.id
    return {
        "key": found.id,
        "state": state_cell(found.state),
        "id": "\n".join(filter(None, (name, words.short(found.detail)))),
        "partitions": words.number(found.num_partitions),
        "rate": words.rate(found.rate),
        "lag": words.number(found.lag_records),
        "memory": words.size(found.memory_bytes),
        "up": words.duration(None if up is None else float(round(up))),
    }


def letter_row(found: DeadLetter, now_ms: int) -> dict[str, Any]:
    """One dead letter."""
    return {
        "key": f"{found.topic}/{found.partition}/{found.offset}/{found.failed_at}",
        "when": words.ago(found.failed_at, now_ms),
        "reason": found.reason.replace("_", " "),
        "detail": words.short(found.detail),
        "where": f"{words.number(found.partition, '?')}, {words.number(found.offset, '?')}",
        "preview": words.short(found.preview, 60),
    }
