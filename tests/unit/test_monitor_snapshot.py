"""What the monitor makes of what it sees: each kind of trouble, and that none is called green."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from streams import metrics as catalogue
from streams.metrics import Metrics
from streams.monitor.assemble import assemble
from streams.monitor.conditions import figures_of
from streams.monitor.example import example_history, example_snapshot, example_user
from streams.monitor.log import SeenRecord
from streams.monitor.observed import Groups, Observed
from streams.monitor.page.freshness import budget_row, freshness_row
from streams.monitor.page.headline import state_word
from streams.monitor.scrape import Target, TritonReading, WorkerReading
from streams.monitor.snapshot import Canary, Objective, Snapshot, State, encode
from tests.unit.monitored import (
    ENCODER_STAGES,
    NOW,
    SEQUENCE_STAGES,
    counted,
    group,
    measured,
    observed,
    worker,
)


def box(snapshot: Snapshot, box_id: str) -> Any:
    return next(found for found in snapshot.boxes if found.id == box_id)


def arrow(snapshot: Snapshot, stage: str) -> Any:
    return next(found for found in snapshot.arrows if found.stage == stage)


def read_later(groups: Groups, seconds: float) -> Groups:
    """The same groups, found unmoved so many seconds later."""
    return Groups(
        *(
            msgspec.structs.replace(found, read_at=found.read_at + seconds)
            for found in (groups.sequence, groups.encoder)
        )
    )


def changed(seen: Observed, **changes: Any) -> Observed:
    return msgspec.structs.replace(seen, **changes)


def test_a_healthy_platform_is_fresh() -> None:
    snapshot = assemble(observed())
    assert snapshot.headline.state is State.OK
    assert {found.state for found in snapshot.staleness} == {State.OK}
    assert snapshot.staleness[0].waiting_seconds == pytest.approx(0.2)
    assert snapshot.staleness[1].waiting_seconds == pytest.approx(0.4)
    assert snapshot.slowest_stage == "requested_to_encoded"
    for one in snapshot.boxes:
        assert one.state in (State.OK, State.IDLE) or one.id == "readers"
    assert arrow(snapshot, "broker_to_folded").p99_seconds == pytest.approx(0.05, rel=0.1)
    assert arrow(snapshot, "broker_to_folded").rate == pytest.approx(100 / 60)


def test_fresh_is_the_platforms_word_and_what_came_late_is_said_beside_it() -> None:
    """The objectives are the platform's, from the broker on; the user's experience isn't hidden."""
    metrics = Metrics()
    for since, seconds in (("event_time", 5.1), ("ingested_at", 0.1)):
        metrics.observe(catalogue.FRESHNESS_SECONDS, [seconds], "sequence", since, "live")
    readings = (worker("sequence", metrics), worker("encoder", Metrics()))
    late = assemble(observed(workers=readings, window=(60.0, counted(*readings)))).headline
    assert late.state is State.OK
    assert late.text.startswith("Fresh: sequences 1")
    assert "Since the event 5." in late.text
    assert "events come late, or a producer's clock is behind" in late.text

    at = round(NOW * 1000)
    event = SeenRecord("alice", at + 5_000, at, "a-producer")
    ahead = assemble(observed(tail=(event,))).headline
    assert (ahead.state, "A producer's clock is 5.0 s ahead" in ahead.text) == (State.OK, True)
    assert "producer" not in assemble(observed()).headline.text


@pytest.mark.parametrize("slow", [*SEQUENCE_STAGES, *ENCODER_STAGES])
def test_a_delay_shows_in_its_stage_and_in_no_other(slow: str) -> None:
    sequence = {n: 5.3 if n == slow else s for n, s in SEQUENCE_STAGES.items()}
    encoder = {n: 5.3 if n == slow else s for n, s in ENCODER_STAGES.items()}
    readings = (worker("sequence", measured(**sequence)), worker("encoder", measured(**encoder)))
    snapshot = assemble(observed(workers=readings, window=(60.0, counted(*readings))))
    assert snapshot.slowest_stage == slow
    for stage in (*SEQUENCE_STAGES, *ENCODER_STAGES):
        found = arrow(snapshot, stage)
        assert (found.state is State.BEHIND) == (stage == slow)
        assert (found.p50_seconds > 5) == (stage == slow)


def test_no_events_is_idle_and_not_stale() -> None:
    readings = (worker("sequence", measured()), worker("encoder", measured()))
    groups = Groups(group("sequence"), group("encoder"))
    snapshot = assemble(
        observed(groups=groups, workers=readings, window=(60.0, counted(*readings)))
    )
    assert snapshot.headline.state is State.IDLE
    for found in snapshot.staleness:
        assert (found.state, found.seconds, found.waiting_seconds) == (State.IDLE, 0.0, 0.0)
    assert arrow(snapshot, "broker_to_folded").state is State.IDLE


def test_a_dead_encoder_makes_representations_stale_second_by_second() -> None:
    groups = Groups(group("sequence"), group("encoder", lag=40, waiting=30.0, members=0))
    seen = observed(groups=groups)
    first = assemble(seen)
    later = assemble(changed(seen, now=NOW + 10, groups=read_later(groups, 10.0)))
    assert first.headline.state is State.BEHIND
    assert first.headline.box == "encoder_worker"
    assert "no member in group" in first.headline.text
    assert "Sequences are fresh" in first.headline.text
    assert box(first, "encoder_worker").state is State.DOWN
    assert box(first, "sequence_worker").state is State.IDLE
    assert first.staleness[0].state is State.IDLE
    grown = (later.staleness[1].waiting_seconds or 0) - (first.staleness[1].waiting_seconds or 0)
    assert grown == pytest.approx(10.0)


def test_what_sequences_lack_representations_lack_too() -> None:
    groups = Groups(group("sequence", lag=9, waiting=80.0, members=0), group("encoder"))
    snapshot = assemble(observed(groups=groups))
    sequence, representation = snapshot.staleness
    assert sequence.waiting_seconds == representation.waiting_seconds == pytest.approx(80.0)
    assert representation.own_seconds == 0.0
    assert snapshot.headline.box == "sequence_worker"


def test_without_kafka_nothing_that_depends_on_it_is_green() -> None:
    snapshot = assemble(observed(groups=None, problems={"kafka": "no answer within 2 s"}))
    assert snapshot.headline.state is State.UNKNOWN
    assert "Can't tell" in snapshot.headline.text
    for found in snapshot.staleness:
        assert found.state is State.UNKNOWN
        assert found.seconds is None
        assert found.problem == "no answer within 2 s"
    for name in ("producers", "events", "refresh_requests", "sequence_worker", "encoder_worker"):
        assert box(snapshot, name).state is State.UNKNOWN
    for one in snapshot.arrows[:6]:
        assert one.state is State.UNKNOWN
    assert snapshot.partitions.problem


def test_all_sources_gone_is_cannot_tell_everywhere() -> None:
    problem = "no answer within 2 s"
    names = ("workers", "kafka", "cassandra", "triton", "versions", "sample", "clocks")
    snapshot = assemble(
        observed(
            workers=None, groups=None, cassandra_seconds=None, triton=None, versions=None,
            tail=None, dead_letters=None, window=(60.0, counted()),
            problems=dict.fromkeys(names, problem), monitor_clock=None,
        )
    )  # fmt: skip
    assert snapshot.headline.state is State.UNKNOWN
    assert {found.state for found in snapshot.boxes} == {State.UNKNOWN}
    assert {found.state for found in snapshot.arrows[:6]} == {State.UNKNOWN}
    assert {found.state for found in snapshot.staleness} == {State.UNKNOWN}
    assert all(found.offset_seconds is None for found in snapshot.clocks[1:])


def test_a_store_is_down_only_with_a_second_witness() -> None:
    alone = observed(cassandra_seconds=None, problems={"cassandra": "no answer within 4 s"})
    assert box(assemble(alone), "sequences").state is State.UNKNOWN
    assert assemble(alone).headline.state is State.UNKNOWN
    waiting = worker("sequence", measured(), ("partition 0 waits: Cassandra at x didn't answer",))
    snapshot = assemble(changed(alone, workers=(waiting, worker("encoder", measured()))))
    assert box(snapshot, "sequences").state is State.DOWN
    assert snapshot.headline.state is State.DOWN


def test_a_version_that_is_active_and_not_loaded_is_down() -> None:
    snapshot = assemble(observed(triton=TritonReading(True, ())))
    assert box(snapshot, "encoder").state is State.DOWN
    assert "isn't loaded" in box(snapshot, "encoder").detail


def test_workers_that_cannot_be_read_leave_their_delays_unknown() -> None:
    target = Target("encoder-1", "encoder", "http://127.0.0.1:1")
    silent = WorkerReading(target, 2.0, error="no answer from http://127.0.0.1:1 within 2 s")
    sequence = worker("sequence", measured(**SEQUENCE_STAGES))
    snapshot = assemble(observed(workers=(sequence, silent), window=(60.0, counted(sequence))))
    assert arrow(snapshot, "requested_to_encoded").state is State.UNKNOWN
    assert box(snapshot, "encoder_worker").state is State.UNKNOWN
    assert next(w for w in snapshot.workers if w.id == "encoder-1").state is State.UNKNOWN
    assert snapshot.headline.state is State.UNKNOWN


def test_without_an_answer_of_workers_no_figure_of_theirs_is_a_quiet_minute() -> None:
    for changes, why in (
        ({"workers": ()}, "no sequence worker answers"),
        ({"workers": None, "problems": {"workers": "no answer within 8 s"}}, "no answer within"),
    ):
        snapshot = assemble(observed(window=(60.0, counted()), **changes))
        assert snapshot.freshness
        for found in snapshot.freshness:
            assert found.problem
            assert (found.count, found.p99_seconds, found.within_objective) == (None, None, None)
        assert why in snapshot.freshness[0].problem
        assert (snapshot.dead_letters.rate, snapshot.dead_letters.share) == (None, None)
        assert why in snapshot.dead_letters.rate_problem
        for name, figure in figures_of(snapshot).items():
            if name.startswith(("sequence.p", "representation.p", "dead_letters", "stage.b")):
                assert figure.problem, name


def test_what_workers_counted_before_they_fell_silent_is_shown_and_not_believed() -> None:
    found = assemble(observed(workers=())).freshness[0]
    assert (found.count, found.problem) == (100, "no sequence worker answers")
    assert freshness_row(found, 60.0)["state"].startswith(State.UNKNOWN)
    # Nor is what is left of the objective's budget.
    kept = Objective(
        feature="sequence", seconds=1.0, target=0.99, good_share=1.0, burn_rates=((300, 0.2),)
    )
    assert budget_row(kept)["state"].startswith(State.OK)
    kept = msgspec.structs.replace(kept, problem=found.problem)
    assert budget_row(kept)["state"].startswith(State.UNKNOWN)
    assert assemble(observed(workers=())).objectives[0].problem == found.problem
    missed = msgspec.structs.replace(found, p99_seconds=9.0, within_objective=False)
    assert freshness_row(missed, 60.0)["state"].startswith(State.BEHIND)


def test_one_silent_worker_of_two_leaves_a_quiet_minute_unknown() -> None:
    silent = WorkerReading(
        Target("sequence-2", "sequence", "http://127.0.0.1:1"), 2.0, error="no answer within 2 s"
    )
    readings = (worker("sequence", measured()), worker("encoder", measured()))
    snapshot = assemble(observed(workers=(*readings, silent), window=(60.0, counted(*readings))))
    assert "sequence-2" in snapshot.freshness[0].problem
    assert arrow(snapshot, "broker_to_folded").state is State.UNKNOWN
    # The encoder's all answered: there was nothing.
    assert arrow(snapshot, "requested_to_encoded").state is State.IDLE
    dead = msgspec.structs.replace(
        silent, target=msgspec.structs.replace(silent.target, runs=False)
    )
    snapshot = assemble(observed(workers=(*readings, dead), window=(60.0, counted(*readings))))
    assert snapshot.freshness[0].problem == ""


@pytest.mark.parametrize(
    ("waiting", "state", "word"),
    [(0.9, State.OK, "fresh"), (1.3, State.OK, ""), (2.2, State.BEHIND, "")],
)
def test_what_waits_longer_than_the_objective_is_not_fresh(
    waiting: float, state: State, word: str
) -> None:
    """The objective is 1 s, and offsets are committed every 0.5 s."""
    groups = Groups(group("sequence", lag=5, waiting=waiting), group("encoder"))
    snapshot = assemble(observed(groups=groups, now=NOW + 1.9))
    found = snapshot.staleness[0]
    # As Kafka told it: the time since then is no event's waiting.
    assert found.waiting_seconds == pytest.approx(waiting)
    assert found.state is state
    assert state_word(found, snapshot.objectives[0]) == word
    assert (snapshot.headline.state is State.BEHIND) == (state is State.BEHIND)
    assert snapshot.partitions.num_behind == (state is State.BEHIND)


@pytest.mark.parametrize(
    ("canary", "state"),
    [
        (Canary(problem="canaries are off"), State.UNKNOWN),
        (Canary(enabled=True, problem="not sent: no answer"), State.UNKNOWN),
        (Canary(enabled=True, state=State.BEHIND, problem="not read back"), State.BEHIND),
        (Canary(enabled=True, state=State.OK), State.IDLE),
    ],
)
def test_what_readers_see_is_told_by_canaries(canary: Canary, state: State) -> None:
    found = arrow(assemble(observed(canary=canary)), "stored_to_read")
    assert found.state is state
    assert canary.problem in found.problem


def test_a_worker_whose_process_ended_is_down() -> None:
    target = Target("encoder-1", "encoder", "http://127.0.0.1:1", runs=False)
    dead = WorkerReading(target, 0.0, error="the process has ended without signing off")
    snapshot = assemble(observed(workers=(dead,)))
    assert snapshot.workers[0].state is State.DOWN


def test_an_unread_record_is_cannot_tell() -> None:
    blind = msgspec.structs.replace(group("sequence", lag=5), open_records=(), unread=(0,))
    snapshot = assemble(observed(groups=Groups(blind, group("encoder"))))
    assert snapshot.staleness[0].state is State.UNKNOWN
    assert snapshot.staleness[1].state is State.UNKNOWN


@pytest.mark.parametrize("part", [example_snapshot(), example_history(), example_user()])
def test_parts_survive_json(part: Any) -> None:
    assert msgspec.json.decode(encode(part), type=type(part)) == part
    again = assemble(observed())
    assert msgspec.json.decode(encode(again), type=Snapshot) == again


def test_the_same_observation_gives_the_same_snapshot() -> None:
    assert assemble(observed()) == assemble(observed())
