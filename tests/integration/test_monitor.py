"""The monitor on a real platform: each fault is shown where it is, and nowhere else.

Real workers, Kafka, Cassandra and Triton; the encoder is a stand-in that computes at once.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
import urllib.request

import pytest

from infra.local.cassandra import CassandraService
from infra.local.kafka import KafkaService
from infra.local.triton import TritonService
from streams.events import Event
from streams.monitor.exposition import parse
from streams.monitor.snapshot import Freshness, Snapshot, State
from streams.monitor.tracing import trace_event
from streams.online import OnlineFeatures
from streams.producer import EventProducer
from streams.views import feature_store
from streams.workers.exposing import expose_reads
from tests.encoder_double import ENCODER
from tests.monitor_process import MonitorProcess
from tests.worker_platform import Platform, wait_until

DELAY = 2.0
BUCKET = 0.84  # a bucket's lower bound is 16 % below its upper one
DARK = {State.UNKNOWN, State.DOWN, State.BEHIND}  # what is never green
STAGE_OF_STEP = {
    ("sequence", "before_fold"): "broker_to_folded",
    ("sequence", "after_fold"): "folded_to_stored",
    ("sequence", "before_refresh"): "stored_to_requested",
    ("encoder", "before_encode"): "requested_to_encoded",
    ("encoder", "after_encode"): "encoded_to_stored",
}
WAY = ("produced_to_broker", *STAGE_OF_STEP.values())
_numbers = itertools.count()


def send(platform: Platform, count: int = 1, shift: float = 0.0) -> list[Event]:
    """Send events of different users; `shift` (seconds) is how far the producer's clock is off."""

    async def run() -> list[Event]:
        sent = []
        async with EventProducer(platform.settings) as producer:
            for _ in range(count):
                number = next(_numbers)
                at = int((time.time() + shift) * 1000)
                event = Event(
                    f"event-{number}", f"user-{number % 40}", f"item-{number}", "view", at
                )
                await producer.send(event, wait="delivered")
                sent.append(event)
        return sent

    return asyncio.run(run())


def send_until_measured(
    platform: Platform, monitor: MonitorProcess, count: int = 1, shift: float = 0.0
) -> Snapshot:
    """Send events; a snapshot that has their delays from end to end."""
    before = monitor.num_measured("representation")
    send(platform, count, shift)
    wait_until(
        lambda: monitor.num_measured("representation") >= before + count,
        60, "the events' representations are measured",
    )  # fmt: skip
    return monitor.snapshot()


def all_reflected(snapshot: Snapshot) -> bool:
    return all(one.state is State.IDLE for one in snapshot.staleness)


def p50s(snapshot: Snapshot) -> dict[str, float]:
    return {one.stage: one.p50_seconds for one in snapshot.arrows if one.p50_seconds is not None}


def end_to_end(snapshot: Snapshot) -> Freshness:
    """Of version 1's representations."""
    return next(
        one for one in snapshot.freshness if one.since == "event_time" and one.version == "1"
    )


@pytest.fixture
def running(encoding: Platform) -> Platform:
    """A platform with one worker of each kind."""
    for role in ("sequence", "encoder"):
        encoding.worker(role)
    for process in encoding.workers:
        process.wait_ready()
    return encoding


# -- delays ----------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
@pytest.mark.parametrize("delay", [DELAY, pytest.param(5.0, marks=pytest.mark.long)])
def test_a_delay_shows_in_its_stage_and_end_to_end_and_in_no_other(
    running: Platform, delay: float
) -> None:
    # An event is in the window from end to end, and gone from it soon.
    window = {"HEADWATER_MONITOR__WINDOW_SECONDS": str(2 * delay + 3)}
    with MonitorProcess(running, **window) as monitor:
        send_until_measured(running, monitor)
        _expect_delay_only_in("", running, monitor, delay)
        # Held back by its producer.
        _expect_delay_only_in("produced_to_broker", running, monitor, delay, shift=-delay)
        slow = ""
        for (role, step), stage in STAGE_OF_STEP.items():
            if slow not in ("", role):
                _replace(running, slow)
            _replace(running, role, HEADWATER_FAULT=f"delay:{step}:{int(delay * 1000)}")
            slow = role
            _expect_delay_only_in(stage, running, monitor, delay)


def _replace(running: Platform, role: str, **environ: str) -> None:
    old = next(w for w in running.workers if w.role == role and w.is_running)
    assert old.terminate() == 0
    running.worker(role, **environ).wait_ready()


def _expect_delay_only_in(
    stage: str, running: Platform, monitor: MonitorProcess, delay: float, shift: float = 0.0
) -> None:
    """Each event alone: with many, what waits behind a slow stage waits in front of it, too.

    Those of before are in the window for a while, as is the first one of a new worker, which takes
    longer: after some events the figures are to say it and to stay.
    """
    deadline = time.monotonic() + 30 + 5 * delay
    while True:
        snapshot = send_until_measured(running, monitor, shift=shift)
        wrong = _differences(snapshot, stage, delay)
        if not wrong:
            break
        assert time.monotonic() < deadline, (stage, wrong, p50s(snapshot))
    if stage:
        (arrow,) = [one for one in snapshot.arrows if one.stage == stage]
        assert snapshot.slowest_stage == stage
        assert arrow.p99_seconds is not None
        assert delay * BUCKET <= arrow.p99_seconds


def _differences(snapshot: Snapshot, stage: str, delay: float) -> list[str]:
    """What a platform that is slow in this stage alone wouldn't show; `stage` "" for none."""
    found, whole = p50s(snapshot), end_to_end(snapshot).p50_seconds or 0.0
    low, high = delay * BUCKET, delay + 1.5
    wrong = [
        f"{name} takes {found.get(name)}"
        for name in WAY
        if not (low <= found.get(name, -1) <= high if name == stage else name in found)
        or (name != stage and found[name] >= delay / 2)
    ]
    if not (low <= whole <= delay + 3 if stage else whole < delay):
        wrong.append(f"end to end it takes {whole}")
    if stage and snapshot.slowest_stage != stage:
        wrong.append(f"{snapshot.slowest_stage} is called the slowest")
    return wrong


def test_a_slow_reader_shows_between_stored_and_read(running: Platform) -> None:
    environ = {
        "HEADWATER_FAULT": f"delay:before_read:{int(DELAY * 1000)}",
        "HEADWATER_MONITOR__CANARY_USERS": "2",
        "HEADWATER_MONITOR__CANARY_INTERVAL_SECONDS": "2",
        "HEADWATER_MONITOR__WINDOW_SECONDS": "12",
    }
    with MonitorProcess(running, **environ) as monitor:

        def shown(snapshot: Snapshot) -> bool:
            found = p50s(snapshot)
            return (
                found.get("stored_to_read", 0.0) >= DELAY * BUCKET
                and snapshot.slowest_stage == "stored_to_read"
                and all(found.get(stage, DELAY) < DELAY / 2 for stage in WAY)
            )

        snapshot = monitor.wait(shown, 60, "the readers' delay is shown, and no other")
        assert (snapshot.canary.representation_p50_seconds or 0) >= DELAY
        assert (end_to_end(snapshot).p50_seconds or 9) < DELAY


# -- idle, behind, can't tell ----------------------------------------------------------------------


@pytest.mark.timeout(400)
def test_idle_behind_and_cannot_tell_are_three_things(
    running: Platform,
    kafka_service: KafkaService,
    cassandra_service: CassandraService,
    triton_service: TritonService,
) -> None:
    environ = {"HEADWATER_MONITOR__REPRESENTATION_OBJECTIVE_SECONDS": "2"}
    with MonitorProcess(running, **environ) as monitor:
        # The producer has stopped: idle, and not stale.
        send_until_measured(running, monitor, 5)
        idle = monitor.wait(lambda s: s.headline.state is State.IDLE, 40, "idle")
        assert [one.seconds for one in idle.staleness] == [0.0, 0.0]
        assert [one.state for one in idle.arrows[:6]] == [State.IDLE] * 6
        assert all(one.problem == "" for one in idle.freshness)

        _kill_the_encoder(running, monitor)

        # It is back: what waited is caught up.
        running.worker("encoder").wait_ready()
        monitor.wait(all_reflected, 60, "the backlog is gone")

        # All that the monitor asks is away: nobody can tell, and nothing is green.
        services = (kafka_service, cassandra_service, triton_service)
        for service in services:
            service.pause()
        try:
            blind = monitor.wait(_nothing_is_green, 60, "nothing is green")
            assert all(one.state is State.UNKNOWN for one in blind.staleness)
            assert [one.seconds for one in blind.staleness] == [None, None]
            assert {one.state for one in blind.arrows[:6]} == {State.UNKNOWN}
            sources = {one.name: one for one in blind.sources}
            for name in ("kafka", "cassandra", "triton"):
                assert (sources[name].ok, sources[name].num_errors > 0) == (False, True), name
            code, _, errors = monitor.cli("freshness", "--fail-if", "sequence.staleness > 1h")
            assert (code, "can't tell" in errors) == (1, True)
        finally:
            for service in services:
                service.resume()
        monitor.wait(all_reflected, 60, "the monitor sees again")

        # The workers have ended: what they would count can't be told, whoever else answers.
        for worker in running.workers:
            if worker.is_running:
                assert worker.terminate() == 0
        alone = monitor.wait(
            lambda s: not s.workers and all(one.count is None for one in s.freshness),
            30, "no worker is left, nor what it counted",
        )  # fmt: skip
        assert all(one.problem for one in alone.freshness)
        assert {one.state for one in alone.arrows[:6]} == {State.UNKNOWN}
        down = monitor.wait(lambda s: s.headline.state is State.DOWN, 30, "no worker is a member")
        assert down.headline.box == "sequence_worker"


def _nothing_is_green(snapshot: Snapshot) -> bool:
    states = {snapshot.headline.state, *(one.state for one in snapshot.boxes)}
    states |= {one.state for one in snapshot.arrows} | {one.state for one in snapshot.staleness}
    return states <= DARK


def _kill_the_encoder(running: Platform, monitor: MonitorProcess) -> None:
    """Representations get older by a second per second, and sequences stay fresh."""
    next(w for w in running.workers if w.role == "encoder").kill()
    oldest = send(running, 3)[0].event_time / 1000
    ages = []
    for more in (3.0, 8.0):
        snapshot = monitor.wait(
            lambda s, more=more: (s.staleness[1].waiting_seconds or 0) > more,  # type: ignore[misc]
            40, "representations get older",
        )  # fmt: skip
        sequence, representation = snapshot.staleness
        assert representation.state is State.BEHIND
        assert representation.oldest_event_time == round(oldest * 1000)
        ages.append((snapshot.at / 1000, representation.waiting_seconds or 0.0))
        assert snapshot.headline.state is State.BEHIND
        assert sequence.state is State.IDLE
        # By the wall: since the event, less the time since Kafka was asked.
        assert 0 <= snapshot.at / 1000 - oldest - (representation.waiting_seconds or 0) < 3
        send(running, 1)
        monitor.wait(lambda s: s.staleness[0].state is State.IDLE, 20, "sequences go on")
    (first_at, first), (last_at, last) = ages
    assert last - first == pytest.approx(last_at - first_at, abs=1.5)

    behind = monitor.wait(
        lambda s: any(one.id == "encoder_worker" and one.state is State.DOWN for one in s.boxes)
        and s.partitions.num_stalled > 0,
        40, "the encoder worker is down and its partitions stand still",
    )  # fmt: skip
    assert behind.headline.box == "encoder_worker"
    assert [one.role for one in behind.workers if one.state is State.DOWN] == ["encoder"]
    code, _, errors = monitor.cli("freshness", "--fail-if", "representation.staleness > 5s")
    assert (code, "representation.staleness is" in errors) == (1, True)
    code, _, errors = monitor.cli("freshness", "--fail-if", "sequence.staleness > 5s")
    assert (code, errors) == (0, "")


# -- clocks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [5.0, -5.0])
def test_a_shifted_producers_clock_is_shown(running: Platform, shift: float) -> None:
    with MonitorProcess(running) as monitor:
        send_until_measured(running, monitor, 3, shift)
        # Never clipped: events from the future have a negative delay, in the first bucket.
        found = p50s(monitor.snapshot())["produced_to_broker"]
        assert found == 0.0 if shift > 0 else found > 5 * BUCKET

        def shown(snapshot: Snapshot) -> bool:
            return any(c.kind == "producer" and c.exceeds_limit for c in snapshot.clocks)

        snapshot = monitor.wait(shown, 30, "the clock is shown")
        producers = [c for c in snapshot.clocks if c.kind == "producer"]
        # Not every record says who sent it.
        assert any(c.name.endswith(f"-{os.getpid()}") for c in producers)
        # The time that an event takes to the broker counts, which only makes a clock look late.
        for producer in producers:
            assert producer.offset_seconds == pytest.approx(shift, abs=1.0)
            assert producer.exceeds_limit
        workers = [c for c in snapshot.clocks if c.kind == "worker"]
        assert len(workers) == 2
        assert all(abs(c.offset_seconds or 0) < 1 and not c.exceeds_limit for c in workers)
        metrics = monitor.get("/metrics")[1].decode()
        (line,) = [
            line for line in metrics.splitlines()
            if line.startswith('headwater_clock_offset_seconds{kind="producer"}')
        ]  # fmt: skip
        assert float(line.rpartition(" ")[2]) == pytest.approx(shift, abs=1.0)


# -- canaries, coverage, look-up, trace ------------------------------------------------------------


def test_canaries_coverage_look_up_and_trace(running: Platform) -> None:
    environ = {
        "HEADWATER_MONITOR__CANARY_USERS": "4",
        "HEADWATER_MONITOR__CANARY_INTERVAL_SECONDS": "0.5",
    }
    with MonitorProcess(running, **environ) as monitor:
        events = send(running, 40)
        snapshot = monitor.wait(
            lambda s: s.canary.num_read_back >= 4 and s.coverage.num_sampled_users == 40
            and all(v.num_current == 40 for v in s.coverage.versions),
            60, "canaries are back, the users are sampled",
        )  # fmt: skip
        canary = snapshot.canary
        assert (canary.state, canary.availability, canary.num_lost) == (State.OK, 1.0, 0)
        assert 0 < (canary.sequence_p50_seconds or 0) <= (canary.representation_p50_seconds or 0)
        assert p50s(snapshot)["stored_to_read"] > 0

        # Four canaries are stored as well; the sample has the forty users only.
        (version,) = snapshot.coverage.versions
        assert (version.version, version.is_active) == ("1", True)
        assert (version.num_active_users, version.num_covered, version.share) == (40, 40, 1.0)
        assert sum(one.count for one in version.ages) == 40
        lengths = {one.view: one for one in snapshot.coverage.lengths}
        assert (lengths["engagement"].max_length, lengths["engagement"].p99_length) == (256, 1)

        user = monitor.json(f"/api/users/{events[-1].user_id}")
        engagement = next(one for one in user["sequences"] if one["view"] == "engagement")
        assert engagement["item_id"] == [events[-1].item_id]
        assert user["representations"][0]["status"] == "found"
        assert user["representations"][0]["version"] == "1"
        assert user["representations"][0]["is_current"]
        nobody = monitor.json("/api/users/nobody")
        assert nobody["representations"][0]["status"] == "absent"

        (own,) = [one for one in snapshot.clocks if one.kind == "monitor"]
        assert own.offset_seconds is not None
        assert abs(own.offset_seconds) < 1

        _expect_trace(monitor, events[-1])
        assert asyncio.run(trace_event(running.settings, "no-such-event", None, 1_000)) is None

        status, body = monitor.get("/metrics")
        assert status == 200
        text = body.decode()
        assert 'headwater_canaries_total{feature="representation",outcome="read_back"}' in text
        assert 'headwater_staleness_known{feature="sequence"} 1' in text
        history = monitor.json("/api/history?seconds=3600")
        assert {one["feature"] for one in history["series"]} == {"sequence", "representation"}
        assert any(one["version"] == "1" and one["points"] for one in history["series"])


def test_readers_time_the_first_read_of_what_they_find(running: Platform) -> None:
    """A program of its own that reads in both ways, here this one."""
    settings, views = running.settings, running.views
    url = expose_reads(settings, time.time)
    feast, users = feature_store(settings), [f"user-{number}" for number in range(40)]

    def read_straight() -> int:
        with_loop = OnlineFeatures(settings, views=views).get(users, ["user_representation"])
        return int((with_loop.representations["user_representation"].outcome == 0).sum())

    def read_through_feast() -> int:
        answer = feast.get_online_features(
            features=["user_representation:as_of"],
            entity_rows=[{"user_id": user} for user in users],
        ).to_dict()
        return sum(found is not None for found in answer["as_of"])

    def first_reads() -> int:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            found = parse(answer.read().decode())
        counts = found.histograms.get(("headwater_first_read_seconds", (ENCODER, "1")))
        return 0 if counts is None else int(counts.sum())

    assert read_straight() == 0
    before = first_reads()  # other tests of this process read, too
    with MonitorProcess(running) as monitor:
        send_until_measured(running, monitor, 3)
        found = read_straight()
        assert found == 3
        assert first_reads() == before + 3
        # Of the same process these are the second reads.
        assert (read_straight(), read_through_feast()) == (3, 3)
        assert first_reads() == before + 3
        send_until_measured(running, monitor, 2)
        assert read_through_feast() == 5
        assert first_reads() == before + 5
        snapshot = monitor.wait(
            lambda s: any(one.first_read_p50_seconds for one in s.cost), 30, "it is shown"
        )
        (cost,) = snapshot.cost
        assert (cost.first_read_p99_seconds or 0) >= (cost.first_read_p50_seconds or 9) > 0
        assert "reader" in {one.role for one in snapshot.workers}
        # When readers come is no delay of the platform's.
        assert snapshot.slowest_stage != "stored_to_read"


def _expect_trace(monitor: MonitorProcess, event: Event) -> None:
    code, output, errors = monitor.cli("trace", event.event_id, "--json")
    assert code == 0, errors
    steps = {step["name"]: step for step in map(json.loads, output.splitlines())}
    order = ("produced", "broker", "folded", "sequence stored", "refresh queued", "encoded")
    times = [steps[name]["at"] for name in order]
    assert None not in times
    assert times == sorted(times)
    assert times[0] == event.event_time


# -- without a monitor -----------------------------------------------------------------------------


def test_without_a_monitor_a_command_measures_by_itself(running: Platform) -> None:
    with MonitorProcess(running) as monitor:
        send_until_measured(running, monitor, 10)
        monitor.wait(all_reflected, 30, "all is reflected")
    # It has ended; the same command asks the sources itself, and judges what they say.
    condition = "representation.p99 > 1h or sequence.p50 > 1ms and canary.availability < 1%"
    code, output, errors = monitor.cli("freshness", "--json", "--fail-if", condition)
    assert (code, "canary.availability: can't tell" in errors) == (1, True)
    snapshot = json.loads(output)
    stages = {one["stage"]: one for one in snapshot["arrows"]}
    assert all(stages[stage]["p99_seconds"] > 0 for stage in STAGE_OF_STEP.values())
    assert [one["state"] for one in snapshot["staleness"]] == ["idle", "idle"]
    assert snapshot["canary"]["enabled"] is False
