"""Assemble: what was observed becomes a snapshot. Pure; the same observation, the same snapshot."""

from __future__ import annotations

from collections.abc import Sequence

from streams.monitor.backlog import partitions, staleness, unknown_staleness
from streams.monitor.clocks import clocks
from streams.monitor.durations import duration
from streams.monitor.figures import NO_READER, cost, dead_letters, freshness, objectives, reads
from streams.monitor.observed import Observed
from streams.monitor.picture import ROLES, allowed_seconds, arrows, boxes, slowest_stage
from streams.monitor.processes import owners, workers
from streams.monitor.snapshot import (
    Box,
    Canary,
    Clock,
    Coverage,
    EncoderVersion,
    Freshness,
    Headline,
    Partitions,
    Snapshot,
    Staleness,
    State,
)


def assemble(seen: Observed) -> Snapshot:
    """The snapshot of an observation."""
    settings = seen.settings.monitor
    stale = staleness_of(seen)
    shown_clocks = clocks(
        seen.monitor_clock,
        seen.worker_clocks,
        seen.tail,
        settings.max_clock_offset_seconds,
        seen.problems.get("clocks", ""),
    )
    shown_boxes = boxes(seen, stale)
    blind = {feature: seen.blind(role) for feature, role in ROLES.items()}
    fresh = freshness(seen.window[1], settings, blind)
    cost_seconds, cost_window = seen.cost_window
    return Snapshot(
        number=seen.number,
        at=round(seen.now * 1000),
        started_at=round(seen.started_at * 1000),
        interval_seconds=settings.interval_seconds,
        window_seconds=seen.window[0],
        cost_window_seconds=cost_seconds,
        headline=headline(stale, shown_boxes, fresh, seen.canary, shown_clocks),
        slowest_stage=slowest_stage(seen),
        boxes=shown_boxes,
        arrows=arrows(seen, stale),
        staleness=stale,
        objectives=objectives(seen.histories, settings, seen.now, blind),
        freshness=fresh,
        coverage=_coverage(seen),
        cost=cost(
            cost_window, cost_seconds, blind["representation"], bool(seen.readable("reader"))
        ),
        partitions=_partitions(seen),
        workers=workers(seen.workers or (), seen.rates, shown_clocks),
        dead_letters=dead_letters(
            cost_window,
            cost_seconds,
            seen.dead_letters,
            seen.problems.get("dead_letters", ""),
            blind["sequence"],
        ),
        versions=_versions(seen),
        clocks=shown_clocks,
        canary=seen.canary,
        sources=seen.sources,
    )


def staleness_of(seen: Observed) -> tuple[Staleness, Staleness]:
    """(sequence, representation)."""
    settings = seen.settings
    if seen.groups is None:
        problem = seen.problems.get("kafka", "Kafka wasn't asked yet")
        return (
            unknown_staleness("sequence", settings.sequence_worker.group, problem),
            unknown_staleness("representation", settings.encoder_worker.group, problem),
        )
    sequence, encoder = seen.groups.sequence, seen.groups.encoder
    return (
        staleness(
            "sequence", sequence, None, seen.broker_offset, allowed_seconds(settings, "sequence")
        ),
        staleness(
            "representation",
            encoder,
            sequence,
            seen.broker_offset,
            allowed_seconds(settings, "representation"),
        ),
    )


def headline(
    stale: Sequence[Staleness],
    shown_boxes: Sequence[Box],
    fresh: Sequence[Freshness],
    canary: Canary,
    shown_clocks: Sequence[Clock],
) -> Headline:
    """The worst that is known first; what can't be told is never called fresh."""
    trouble = _trouble(stale, shown_boxes)
    if trouble is not None:
        return trouble
    unknown = [one for one in stale if one.state is State.UNKNOWN]
    if unknown:
        what = " and ".join(f"{one.feature}s" for one in unknown)
        text = f"Can't tell how fresh {what} are: {unknown[0].problem}"
        return Headline(state=State.UNKNOWN, text=text)
    slow = [one for one in fresh if one.within_objective is False and one.since == "ingested_at"]
    if slow:
        p99 = duration(slow[0].p99_seconds)
        text = f"Slow: {slow[0].feature}s take {p99} at the 99th percentile"
        return Headline(state=State.BEHIND, text=text)
    if canary.enabled and canary.state is State.BEHIND:
        return Headline(state=State.BEHIND, text=f"Canaries aren't read back: {canary.problem}")
    # How often readers and producers come says nothing of how fresh what arrived is.
    blind = [
        box
        for box in shown_boxes
        if box.state is State.UNKNOWN and box.id not in ("readers", "producers")
    ]
    if blind:
        text = f"Can't tell whether everything is fresh: {blind[0].label}, {blind[0].detail}"
        return Headline(state=State.UNKNOWN, text=text, box=blind[0].id)
    if all(one.state is State.IDLE for one in stale) and not any(one.count for one in fresh):
        text = "No events. Everything that arrived is reflected."
        return Headline(state=State.IDLE, text=text)
    return Headline(state=State.OK, text=_fresh_text(fresh) + _since_the_event(fresh, shown_clocks))


def _trouble(stale: Sequence[Staleness], shown_boxes: Sequence[Box]) -> Headline | None:
    stuck = next((box for box in shown_boxes if box.state is State.DOWN), None)
    # The first on the way is the cause: what comes after it waits for it.
    behind = next((one for one in stale if one.state is State.BEHIND), None)
    if behind is None and stuck is None:
        return None
    stage = None
    if behind is not None:
        stage = "broker_to_folded" if behind.feature == "sequence" else "requested_to_encoded"
        text = f"{behind.feature.capitalize()}s are {duration(behind.waiting_seconds)} behind"
        slow = next((box for box in shown_boxes if box.state is State.BEHIND), None)
        where = stuck or slow
        if where is not None:
            text += f": stuck at {where.label} ({where.detail})"
        fine = [one.feature for one in stale if one.state in (State.OK, State.IDLE)]
        text += "." + (f" {fine[0].capitalize()}s are fresh." if fine else "")
        return Headline(state=State.BEHIND, text=text, stage=stage, box=where.id if where else None)
    assert stuck is not None
    return Headline(state=State.DOWN, text=f"{stuck.label} is down: {stuck.detail}", box=stuck.id)


def _fresh_text(fresh: Sequence[Freshness]) -> str:
    parts = [
        f"{one.feature}s {duration(one.p99_seconds)}"
        for one in fresh
        if one.since == "ingested_at" and not one.version and one.p99_seconds is not None
    ]
    if not parts:
        return "Fresh. No event was measured yet."
    return f"Fresh: {', '.join(parts)} at the 99th percentile"


def _since_the_event(fresh: Sequence[Freshness], shown_clocks: Sequence[Clock]) -> str:
    """What the platform's own delay, which the objectives are about, doesn't tell."""
    late = [
        one.p99_seconds or 0.0
        for one in fresh
        if one.since == "event_time" and not one.version and one.within_objective is False
    ]
    if late:
        took = duration(max(late))
        return f". Since the event {took}: events come late, or a producer's clock is behind"
    wrong = [one for one in shown_clocks if one.kind == "producer" and one.exceeds_limit]
    ahead = max((one.offset_seconds or 0.0 for one in wrong), default=0.0)
    return f". A producer's clock is {duration(ahead)} ahead" if ahead > 0 else ""


def _coverage(seen: Observed) -> Coverage:
    seconds, window = seen.window
    shown_reads = reads(window, seconds, bool(seen.readable("reader")))
    reads_problem = "" if shown_reads else NO_READER
    sample = seen.sample
    active_window = seen.settings.monitor.active_window_seconds
    if sample is None:
        return Coverage(
            active_window_seconds=active_window,
            reads=shown_reads,
            problem=seen.problems.get("sample", "no sample was taken yet"),
            reads_problem=reads_problem,
        )
    return Coverage(
        sampled_at=sample.sampled_at,
        num_sampled_users=sample.num_users,
        active_window_seconds=active_window,
        versions=sample.versions,
        lengths=sample.lengths,
        reads=shown_reads,
        reads_problem=reads_problem,
    )


def _partitions(seen: Observed) -> Partitions:
    if seen.groups is None:
        return Partitions(problem=seen.problems.get("kafka", "Kafka wasn't asked yet"))
    return partitions(
        (seen.groups.sequence, seen.groups.encoder),
        seen.movements,
        owners(seen.workers or ()),
        seen.broker_offset,
        seen.settings.monitor.stall_seconds,
        {
            seen.groups.sequence.group: allowed_seconds(seen.settings, "sequence"),
            seen.groups.encoder.group: allowed_seconds(seen.settings, "representation"),
        },
    )


def _versions(seen: Observed) -> tuple[EncoderVersion, ...]:
    loaded = None
    if seen.triton is not None:
        loaded = {(model.name, model.version) for model in seen.triton.models if model.ready}
    return tuple(
        EncoderVersion(
            encoder=version.encoder,
            version=version.version,
            state=str(version.state),
            created_at=version.created_at,
            loaded=None if loaded is None else (version.encoder, version.version) in loaded,
            stats={k: v for k, v in version.stats.items() if isinstance(v, (int, float, str))},
        )
        for version in seen.versions or ()
    )
