"""Figures out of what workers counted: freshness, objectives, cost, reads, dead letters. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from streams import metrics as catalogue
from streams.freshness import FEATURES, burn_rate
from streams.kafka import DeadLetter as StoredDeadLetter
from streams.monitor.history import Histories
from streams.monitor.snapshot import (
    Cost,
    DeadLetter,
    DeadLetters,
    Freshness,
    Objective,
    ReadOutcome,
)
from streams.monitor.totals import Sums, quantiles
from streams.settings import MonitorSettings

# Long and short windows of the burn-rate alerts (SRE workbook, chapter 5), in seconds.
BURN_WINDOWS = (300, 3_600, 21_600, 259_200)
READ_OUTCOMES = ("found", "absent", "expired", "failed")
_PREVIEW = 120


def objective_seconds(settings: MonitorSettings, feature: str) -> float:
    """Within how many seconds a feature's events are to be fresh."""
    if feature == "sequence":
        return settings.sequence_objective_seconds
    return settings.representation_objective_seconds


def freshness(
    window: Sums, settings: MonitorSettings, blind: Mapping[str, str]
) -> tuple[Freshness, ...]:
    """Live traffic's freshness by feature and, for representations, by encoder version.

    `blind` says by feature why it can't be told now; what was measured before is shown beside it.
    """
    rows = []
    for feature in FEATURES:
        for since in ("event_time", "ingested_at"):
            counts = window.histogram(catalogue.FRESHNESS_SECONDS, feature, since, "live")
            measured = quantiles(counts)
            rows.append(_freshness(feature, since, "", "", measured, settings, blind[feature]))
    for encoder, version, since in window.label_sets(catalogue.REPRESENTATION_FRESHNESS_SECONDS):
        counts = window.histogram(
            catalogue.REPRESENTATION_FRESHNESS_SECONDS, encoder, version, since
        )
        rows.append(
            _freshness("representation", since, encoder, version, quantiles(counts), settings,
                       blind["representation"])
        )  # fmt: skip
    return tuple(rows)


def _freshness(
    feature: str,
    since: str,
    encoder: str,
    version: str,
    measured: tuple[int, float | None, float | None],
    settings: MonitorSettings,
    problem: str,
) -> Freshness:
    count, p50, p99 = measured
    limit = objective_seconds(settings, feature)
    return Freshness(
        feature=feature,
        since=since,
        encoder=encoder,
        version=version,
        # None was seen; whether there was none can't be told.
        count=None if problem and not count else count,
        p50_seconds=p50,
        p99_seconds=p99,
        within_objective=None if p99 is None else p99 <= limit,
        problem=problem,
    )


def objectives(
    histories: Histories, settings: MonitorSettings, now: float, blind: Mapping[str, str]
) -> tuple[Objective, ...]:
    """How well the objectives are met, and how fast their budgets burn."""
    rows = []
    for feature in FEATURES:
        windows = [(w, *histories.window((feature, "", ""), now, w)) for w in BURN_WINDOWS]
        _, good, total = windows[-1]
        target = settings.objective_target
        rows.append(
            Objective(
                feature=feature,
                seconds=objective_seconds(settings, feature),
                target=target,
                good_share=good / total if total else None,
                burn_rates=tuple((w, burn_rate(g, t, target)) for w, g, t in windows),
                problem=blind[feature],
            )
        )
    return tuple(rows)


NO_READER = "no process that reads is known to the monitor"


def cost(window: Sums, seconds: float, blind: str, reader_known: bool) -> tuple[Cost, ...]:
    """What representations cost and whether they were read, by encoder version.

    `blind` says why it can't be told what encoder workers count now.
    """
    pairs = sorted(
        (labels[0], labels[1])
        for name, labels in window.numbers
        if name == catalogue.REPRESENTATIONS_WRITTEN.name
    )
    users = window.by_label(catalogue.ENCODER_USERS, 0)
    requests = {
        "num_shared": int(users.get("coalesced", 0) + users.get("current", 0)),
        "num_shed": int(window.number(catalogue.OFFSETS_LOST, "encoder")),
    }
    reads_known = reader_known or any(window.by_label(catalogue.READS, 1).values())
    found = [_cost(window, seconds, *pair, reads_known=reads_known) for pair in pairs]
    return tuple(
        replace(one, **_UNTOLD, problem=blind) if blind else replace(one, **requests)
        for one in found
    )


# What would read as "nothing happened" where nobody can tell.
_UNTOLD: dict[str, Any] = {"representations_per_second": None}


def _cost(window: Sums, seconds: float, encoder: str, version: str, *, reads_known: bool) -> Cost:
    written = window.number(catalogue.REPRESENTATIONS_WRITTEN, encoder, version)
    sampled = window.number(catalogue.SAMPLED_WRITES, encoder, version)
    first_reads = window.number(catalogue.SAMPLED_FIRST_READS, encoder, version)
    waited = window.histogram(catalogue.FIRST_READ_SECONDS, encoder, version)
    _, first_read_p50, first_read_p99 = quantiles(waited)

    def per_written(total: float) -> float | None:
        return total / written if written else None

    return Cost(
        encoder=encoder,
        version=version,
        representations_per_second=written / seconds,
        encoder_seconds_per_representation=per_written(
            window.number(catalogue.ENCODER_SECONDS, encoder, version)
        ),
        bytes_per_representation=per_written(
            window.number(catalogue.REPRESENTATION_BYTES, encoder, version)
        ),
        reads_per_representation=per_written(
            window.number(catalogue.REPRESENTATION_READS, encoder, version)
        )
        if reads_known
        else None,
        # A representation of before the window may be read in it, so that the share can't be
        # taken as exact; it is never shown below zero.
        share_never_read=max(0.0, 1 - first_reads / sampled) if reads_known and sampled else None,
        first_read_p50_seconds=first_read_p50,
        first_read_p99_seconds=first_read_p99,
        problem="" if reads_known else NO_READER,
    )


def reads(window: Sums, seconds: float, reader_known: bool) -> tuple[ReadOutcome, ...]:
    """Reads by view and outcome; none where there was no read and nobody to tell of one."""
    found: dict[str, dict[str, float]] = {}
    for (name, labels), value in window.numbers.items():
        if name == catalogue.READS.name:
            found.setdefault(labels[0], {})[labels[1]] = value
    if not reader_known and not any(sum(by_outcome.values()) for by_outcome in found.values()):
        return ()
    return tuple(
        ReadOutcome(
            view=view,
            outcome=outcome,
            rate=by_outcome.get(outcome, 0.0) / seconds,
            share=by_outcome.get(outcome, 0.0) / total
            if (total := sum(by_outcome.values()))
            else None,
        )
        for view, by_outcome in sorted(found.items())
        for outcome in READ_OUTCOMES
    )


def dead_letters(
    window: Sums,
    seconds: float,
    recent: Sequence[StoredDeadLetter] | None,
    problem: str,
    blind: str,
) -> DeadLetters:
    """Dead letters of the window, and the newest ones.

    `problem` says why the newest ones can't be read, `blind` why it can't be told how many there
    are.
    """
    by_reason = {k: int(v) for k, v in window.by_label(catalogue.DEAD_LETTERS, 0).items() if v}
    total = sum(by_reason.values())
    consumed = window.number(catalogue.RECORDS_CONSUMED)
    return DeadLetters(
        by_reason=tuple(sorted(by_reason.items(), key=lambda item: -item[1])),
        rate=None if blind else total / seconds,
        share=total / consumed if consumed and not blind else None,
        recent=tuple(_dead_letter(letter) for letter in recent or ()),
        problem=problem if recent is None else "",
        rate_problem=blind,
    )


def _dead_letter(letter: StoredDeadLetter) -> DeadLetter:
    return DeadLetter(
        reason=letter.reason,
        detail=letter.detail[:300],
        topic=letter.origin_topic,
        partition=letter.origin_partition,
        offset=letter.origin_offset,
        failed_at=letter.failed_at,
        key=_printable(letter.key),
        preview=_printable(letter.value),
    )


def _printable(data: bytes | None) -> str:
    if data is None:
        return "(null)"
    text = data[: 4 * _PREVIEW].decode("utf-8", "replace")
    shown = "".join(char if char.isprintable() else "·" for char in text)
    return shown[:_PREVIEW] + ("…" if len(shown) > _PREVIEW or len(data) > 4 * _PREVIEW else "")
