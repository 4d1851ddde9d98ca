"""What the monitor makes of what it sees: each kind of trouble, and that none is called green."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from streams.monitor.assemble import assemble
from streams.monitor.example import example_history, example_snapshot, example_user
from streams.monitor.observed import Groups, Observed
from streams.monitor.scrape import Target, TritonReading, WorkerReading
from streams.monitor.snapshot import Snapshot, State, encode
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
    later = assemble(changed(seen, now=NOW + 10, broker_now=NOW + 10))
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
