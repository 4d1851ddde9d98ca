"""The picture: boxes and arrows, the slowest stage, and one sentence that says where it is stuck.

Pure. A service that doesn't answer the monitor is UNKNOWN; it is DOWN if a worker waits for it too,
since two witnesses make it unlikely that the monitor is the one that is cut off.
"""

from __future__ import annotations

from collections.abc import Sequence

from streams import metrics as catalogue
from streams.freshness import SEQUENCE_STAGES, STAGES, Stage
from streams.monitor.durations import duration
from streams.monitor.figures import objective_seconds
from streams.monitor.log import GroupReading
from streams.monitor.observed import Observed
from streams.monitor.snapshot import Arrow, Box, Staleness, State
from streams.monitor.totals import quantiles
from streams.representations import VersionState
from streams.settings import Settings

_LIVE, _CATCH_UP = "live", "catch_up"
# Whose counts tell how fresh a feature is.
ROLES = {"sequence": "sequence", "representation": "encoder"}


def arrows(seen: Observed, staleness: Sequence[Staleness]) -> tuple[Arrow, ...]:
    """One arrow per stage."""
    return tuple(_arrow(seen, stage, staleness) for stage in STAGES)


def slowest_stage(seen: Observed) -> str | None:
    """The stage that adds most to an event's way in the window, by its mean delay.

    The mean, since means add up to the whole; and of a stage that holds everything up, the queue
    in front of it is half as long on average as the stage itself takes.
    """
    _, window = seen.window
    means = {}
    for stage in STAGES:
        counts = window.histogram(catalogue.STAGE_SECONDS, stage.name, _LIVE)
        if count := int(counts.sum()):
            total = window.sum_seconds(catalogue.STAGE_SECONDS, stage.name, _LIVE)
            means[stage.name] = total / count
    return max(means, key=means.__getitem__, default=None)


def _arrow(seen: Observed, stage: Stage, staleness: Sequence[Staleness]) -> Arrow:
    seconds, window = seen.window
    live = window.histogram(catalogue.STAGE_SECONDS, stage.name, _LIVE)
    late = window.histogram(catalogue.STAGE_SECONDS, stage.name, _CATCH_UP)
    count, p50, p99 = quantiles(live)
    state, problem = _arrow_state(seen, stage, staleness, count + int(late.sum()), p99)
    # What was measured is shown even where it can't be told how it goes on.
    known = state is not State.UNKNOWN or bool(count)
    return Arrow(
        stage=stage.name,
        label=stage.label,
        source=stage.source,
        target=stage.target,
        state=state,
        rate=count / seconds if known else None,
        catch_up_rate=int(late.sum()) / seconds if known else None,
        p50_seconds=p50 if known else None,
        p99_seconds=p99 if known else None,
        problem=problem,
    )


def _arrow_state(
    seen: Observed, stage: Stage, staleness: Sequence[Staleness], count: int, p99: float | None
) -> tuple[State, str]:
    if stage.name == "stored_to_read":
        return _reads_state(seen, count)
    feature = "sequence" if stage.name in SEQUENCE_STAGES else "representation"
    role = ROLES[feature]
    found = next(one for one in staleness if one.feature == feature)
    if not count and found.state is State.BEHIND and found.num_members == 0:
        waiting = found.own_seconds or 0.0
        return State.BEHIND, f"nothing moves; the oldest record waits for {duration(waiting)}"
    if problem := seen.blind(role):
        return State.UNKNOWN, f"can't tell: {problem}"
    if found.state is State.UNKNOWN:
        return State.UNKNOWN, f"can't tell: {found.problem}"
    if not count:
        if found.state is State.BEHIND:
            return State.BEHIND, "nothing moves"
        return State.IDLE, ""
    limit = objective_seconds(seen.settings.monitor, feature)
    if p99 is not None and p99 > limit:
        return State.BEHIND, f"takes longer than the objective of {duration(limit)}"
    return State.OK, ""


def _reads_state(seen: Observed, count: int) -> tuple[State, str]:
    """Canaries alone measure it: when a reader comes is no delay of the platform's."""
    canary = seen.canary
    if not canary.enabled:
        return State.UNKNOWN, f"can't tell: {canary.problem or 'canaries are off'}"
    if canary.state in (State.UNKNOWN, State.BEHIND):
        told = "can't tell: " if canary.state is State.UNKNOWN else ""
        return canary.state, f"{told}{canary.problem}"
    return (State.OK if count else State.IDLE), ""


def boxes(seen: Observed, staleness: Sequence[Staleness]) -> tuple[Box, ...]:
    """The boxes, in the order of an event's way."""
    sequence, representation = staleness
    kafka = seen.settings.kafka
    groups = seen.groups
    return (
        _producers(seen),
        _topic(seen, "events", kafka.events_topic, groups.sequence if groups else None),
        _worker(seen, "sequence_worker", "Sequence worker", "sequence", sequence),
        _store(seen, "sequences", "Sequences"),
        _topic(seen, "refresh_requests", kafka.refresh_topic, groups.encoder if groups else None),
        _worker(seen, "encoder_worker", "Encoder worker", "encoder", representation),
        _encoder(seen),
        _store(seen, "representations", "Representations"),
        _readers(seen),
    )


def _producers(seen: Observed) -> Box:
    rate = seen.movements.arrivals(seen.settings.kafka.events_topic) if seen.groups else None
    if seen.groups is None:
        state, detail = State.UNKNOWN, f"can't tell: {seen.problems.get('kafka', '')}"
    elif rate is None:
        state, detail = State.UNKNOWN, "can't tell yet"
    elif rate == 0:
        state, detail = State.IDLE, "no event arrives"
    else:
        state, detail = State.OK, f"{rate:,.1f} records/s arrive"
    return Box(id="producers", label="Producers", kind="producers", state=state, detail=detail)


def _topic(seen: Observed, box_id: str, topic: str, reading: GroupReading | None) -> Box:
    if reading is None:
        problem = seen.problems.get("kafka", "")
        state, detail = _unanswered(seen, "Kafka", problem)
        return Box(id=box_id, label=topic, kind="topic", state=state, detail=detail)
    lag = sum(found.lag for found in reading.partitions)
    return Box(
        id=box_id,
        label=topic,
        kind="topic",
        state=State.OK if lag or seen.movements.arrivals(topic) else State.IDLE,
        detail=f"{len(reading.partitions)} partitions",
        facts=(("lag", f"{lag:,} records"),),
    )


def _worker(seen: Observed, box_id: str, label: str, role: str, found: Staleness) -> Box:
    readable = seen.readable(role)
    ready = [r for r in readable if not r.state.get("reasons")]
    facts = []
    if found.lag_records is not None:
        facts.append(("lag", f"{found.lag_records:,} records"))
    if found.own_seconds is not None:
        facts.append(("waiting", duration(found.own_seconds)))

    def box(state: State, detail: str) -> Box:
        num = found.num_members if found.num_members is not None else len(readable)
        return Box(id=box_id, label=label, kind="worker", state=state, detail=detail,
                   num_instances=num, facts=tuple(facts))  # fmt: skip

    if found.num_members == 0:
        waits = (
            f"; the oldest record waits for {duration(found.own_seconds)}"
            if found.own_seconds
            else ""
        )
        return box(State.DOWN, f"no member in group {found.group}{waits}")
    if found.state is State.UNKNOWN:
        return box(State.UNKNOWN, f"can't tell: {found.problem}")
    if not readable:
        return box(State.UNKNOWN, f"can't tell: {seen.blind(role)}")
    counted = f"{len(ready)} of {len(readable)} take records"
    if len(ready) < len(readable):
        waiting = next(r for r in readable if r.state.get("reasons"))
        return box(State.BEHIND, f"{counted}: {waiting.state['reasons'][0]}"[:300])
    # Its own backlog decides; what is stuck before it doesn't make it red.
    limit = allowed_seconds(seen.settings, found.feature)
    if (found.own_seconds or 0.0) > limit:
        return box(State.BEHIND, f"{counted}, the backlog is {duration(found.own_seconds)} old")
    return box(State.OK if found.lag_records or _moves(seen, role) else State.IDLE, counted)


def _moves(seen: Observed, role: str) -> bool:
    return any(seen.rates.rate(r.target.id) for r in seen.readable(role))


def _store(seen: Observed, box_id: str, label: str) -> Box:
    took = seen.cassandra_seconds
    if took is None:
        problem = seen.problems.get("cassandra", "")
        state, detail = _unanswered(seen, "Cassandra", problem)
        return Box(id=box_id, label=label, kind="store", state=state, detail=detail)
    detail = f"Cassandra answers in {duration(took)}"
    return Box(id=box_id, label=label, kind="store", state=State.OK, detail=detail)


def _encoder(seen: Observed) -> Box:
    label = "Encoder (Triton)"

    def box(state: State, detail: str, facts: tuple[tuple[str, str], ...] = ()) -> Box:
        return Box(
            id="encoder", label=label, kind="encoder", state=state, detail=detail, facts=facts
        )

    if seen.triton is None:
        problem = seen.problems.get("triton", "")
        return box(*_unanswered(seen, "Triton", problem))
    if not seen.triton.ready:
        return box(State.DOWN, "Triton says that it isn't ready")
    if seen.versions is None:
        return box(
            State.UNKNOWN,
            f"can't tell which version is active: {seen.problems.get('versions', '')}",
        )
    active = [v for v in seen.versions if v.state is VersionState.ACTIVE]
    loaded = {(model.name, model.version) for model in seen.triton.models if model.ready}
    facts = tuple(("model", f"{v.encoder} version {v.version}") for v in active)
    missing = [v for v in active if (v.encoder, v.version) not in loaded]
    if missing:
        names = ", ".join(f"{v.encoder} version {v.version}" for v in missing)
        return box(State.DOWN, f"{names} is active and isn't loaded", facts)
    if not active:
        return box(State.IDLE, "no version is active: activate one with `headwater versions`")
    return box(State.OK, "ready", facts)


def _readers(seen: Observed) -> Box:
    seconds, window = seen.window
    outcomes = window.by_label(catalogue.READS, 1)
    total = sum(outcomes.values())
    readable = seen.readable("reader")
    facts = (("reads", f"{total / seconds:,.1f}/s"),) if readable else ()

    def box(state: State, detail: str) -> Box:
        return Box(id="readers", label="Readers", kind="readers", state=state, detail=detail,
                   num_instances=len(readable), facts=facts)  # fmt: skip

    if not readable:
        return box(State.UNKNOWN, "can't tell: no process that reads is known to the monitor")
    if not total:
        return box(State.IDLE, f"no read in the last {seconds:.0f} s")
    failed = outcomes.get("failed", 0.0) / total
    if failed > 1 - seen.settings.monitor.objective_target:
        return box(State.BEHIND, f"{failed:.1%} of the reads fail")
    return box(State.OK, f"{outcomes.get('found', 0.0) / total:.1%} of the values are found")


def _unanswered(seen: Observed, service: str, problem: str) -> tuple[State, str]:
    """DOWN with a second witness, see above."""
    reasons = (str(why) for r in seen.workers or () for why in r.state.get("reasons") or ())
    witness = next((why for why in reasons if service in why), None)
    if witness is None:
        return State.UNKNOWN, f"can't tell: {problem}"
    return State.DOWN, f"{problem}; a worker says: {witness}"[:300]


def allowed_seconds(settings: Settings, feature: str) -> float:
    """How long an event may wait: the objective, and then for its offset to be committed, which
    happens after it is readable and is all that Kafka can tell."""
    limit = objective_seconds(settings.monitor, feature)
    return limit + settings.kafka.commit_interval_seconds
