"""The monitor's memory: counts over restarts, a bounded week of history, partitions, clocks."""

from __future__ import annotations

import timeit

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams import metrics as catalogue
from streams.freshness import ClockOffset, OpenRecord, counts_of
from streams.metrics import Metrics
from streams.monitor.backlog import MAX_SHOWN, Movements, partitions
from streams.monitor.clocks import UNNAMED, clocks
from streams.monitor.exposition import Exposed, parse
from streams.monitor.figures import cost, dead_letters, reads
from streams.monitor.history import MAX_SERIES, RINGS, Histories
from streams.monitor.log import GroupPartition, GroupReading, SeenRecord
from streams.monitor.snapshot import State
from streams.monitor.totals import Totals

STARTED = 1_000.0
ALLOWED = {"group": 5.0}


def exposed(metrics: Metrics, process_started: float = 0.0) -> Exposed:
    found = parse(metrics.exposition().decode())
    return found._replace(process={"process_start_time_seconds": process_started})


# -- exposition ------------------------------------------------------------------------------------


@given(
    st.dictionaries(st.text(max_size=8), st.integers(0, 2**40), max_size=4),
    st.lists(st.floats(-1, 5000), max_size=30),
)
@settings(deadline=None)
def test_what_is_exposed_is_read_back(numbers: dict[str, int], delays: list[float]) -> None:
    metrics = Metrics()
    for reason, count in numbers.items():
        metrics.add(catalogue.DEAD_LETTERS, count, reason)
    metrics.observe(catalogue.STAGE_SECONDS, delays, "broker_to_folded", "live")
    found = parse(metrics.exposition().decode())
    name = catalogue.DEAD_LETTERS.name
    assert found.counters == {(name, (reason,)): count for reason, count in numbers.items()}
    if delays:
        key = (catalogue.STAGE_SECONDS.name, ("broker_to_folded", "live"))
        assert (found.histograms[key] == counts_of(delays)).all()
        assert found.sums[key] == pytest.approx(sum(delays))
    assert found.process["process_start_time_seconds"] > 0


@pytest.mark.parametrize(
    "line",
    [
        "headwater_lag_records{role= 5",
        'headwater_stage_seconds_bucket{stage="a",traffic="live",le="0.3"} 1',
        "headwater_cached_users many",
    ],
)
def test_what_is_not_our_format_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match=r"format|isn't known|convert"):
        parse(f"{line}\n")


def test_a_newer_workers_metrics_are_passed_over() -> None:
    found = parse('headwater_news_total{a="b"} 5\nother_thing 6\n# HELP headwater_x y\n\n')
    assert found == Exposed({}, {}, {}, {}, {})


# -- totals ----------------------------------------------------------------------------------------


def consumed(count: int, started: float = 0.0) -> Exposed:
    metrics = Metrics()
    metrics.add(catalogue.RECORDS_CONSUMED, count, "0")
    metrics.observe(catalogue.STAGE_SECONDS, [0.1] * count, "broker_to_folded", "live")
    return exposed(metrics, started)


def test_an_old_process_counts_from_when_it_is_met_and_a_young_one_from_its_start() -> None:
    totals = Totals(STARTED, 900, 5)
    totals.take("old", consumed(1000, started=STARTED - 50))
    assert totals.now.number(catalogue.RECORDS_CONSUMED) == 0
    totals.take("old", consumed(1010, started=STARTED - 50))
    totals.take("young", consumed(7, started=STARTED + 1))
    assert totals.now.number(catalogue.RECORDS_CONSUMED) == 17
    counts = totals.now.histogram(catalogue.STAGE_SECONDS, "broker_to_folded", "live")
    assert counts.sum() == 17
    seconds = totals.now.sum_seconds(catalogue.STAGE_SECONDS, "broker_to_folded", "live")
    assert seconds == pytest.approx(1.7)


def test_a_restart_under_the_same_name_does_not_count_backwards() -> None:
    totals = Totals(STARTED, 900, 5)
    for count in (5, 9, 2, 3):
        totals.take("worker", consumed(count, started=STARTED + 1))
    assert totals.now.number(catalogue.RECORDS_CONSUMED) == 9 + 3


def test_what_a_dead_process_counted_stays() -> None:
    totals = Totals(STARTED, 900, 5)
    totals.take("worker", consumed(5, started=STARTED + 1))
    totals.keep_only([])
    assert totals.now.number(catalogue.RECORDS_CONSUMED) == 5


def test_a_window_holds_what_was_counted_in_it() -> None:
    totals = Totals(STARTED, 60, 5)
    for step in range(40):
        totals.take("worker", consumed(10 * (step + 1), started=STARTED + 1))
        totals.mark(STARTED + 5 * (step + 1))
    seconds, window = totals.window(STARTED + 200, 30)
    assert seconds == pytest.approx(30)
    assert window.number(catalogue.RECORDS_CONSUMED) == 60
    seconds, _ = totals.window(STARTED + 200, 100_000)
    assert seconds <= 65  # bounded: older totals are let go


# -- history ---------------------------------------------------------------------------------------

KEY = ("representation", "user_encoder", "2")


def test_a_week_is_bounded_and_its_quantiles_are_of_the_counts() -> None:
    histories = Histories()
    fast, slow = counts_of([0.1] * 99), counts_of([4.0])
    for step in range(8 * 86_400 // 60):
        at = STARTED + 60 * step
        histories.add(KEY, at, slow if step % 100 == 0 else fast, 0.5)
    for range_seconds, (step_seconds, most) in zip((3600, 86_400, 604_800), RINGS, strict=True):
        answer = histories.answer(at, range_seconds, lambda _: 5.0)
        points = answer.series[0].points
        assert answer.step_seconds == step_seconds
        assert 0 < len(points) <= most
        assert points[-1].at - points[0].at <= range_seconds * 1000
    week = histories.answer(at, 604_800, lambda _: 5.0).series[0].points
    assert len(week) == 1008
    # Ten minutes with one slow event in a thousand: the p99 is that of all of them together.
    assert max(point.p99_seconds or 0 for point in week) < 0.2
    assert all(point.count in (990, 892) for point in week[1:-1])


def test_a_hole_is_no_point_and_cannot_tell_is_no_staleness() -> None:
    histories = Histories()
    histories.add(KEY, STARTED, counts_of([0.1]), 0.5)
    histories.add(KEY, STARTED + 300, counts_of([]), None)
    first, last = histories.answer(STARTED + 300, 3600, lambda _: 5.0).series[0].points
    assert last.at - first.at == 300_000
    assert (last.count, last.p50_seconds, last.staleness_seconds) == (0, None, None)


def test_the_series_that_was_silent_the_longest_gives_way() -> None:
    histories = Histories()
    for number in range(MAX_SERIES + 3):
        at = STARTED + number
        histories.add(("sequence", "", ""), at, counts_of([0.1]), 0.0)
        histories.add(("representation", "e", str(number)), at, counts_of([0.1]), 0.0)
    answer = histories.answer(at, 3600, lambda _: 1.0)
    versions = {series.version for series in answer.series}
    assert len(answer.series) == MAX_SERIES
    assert "" in versions
    assert "0" not in versions
    assert str(MAX_SERIES + 2) in versions


def test_good_and_total_of_a_window() -> None:
    histories = Histories()
    for minute in range(120):
        histories.add(KEY, STARTED + 60 * minute, counts_of([0.1]), 0.0, good=9, total=10)
    good, total = histories.window(KEY, STARTED + 60 * 119, 600)
    assert (good, total) == (90, 100)
    assert histories.window(("sequence", "", ""), STARTED, 600) == (0.0, 0.0)


# -- partitions ------------------------------------------------------------------------------------


def reading(
    committed: dict[int, int], end: int = 100, waiting: float = 1.0, read_at: float = STARTED
) -> GroupReading:
    """A group whose open records have waited so long."""
    at = round((read_at - waiting) * 1000)
    found = tuple(GroupPartition(p, 0, end, offset) for p, offset in committed.items())
    records = tuple(OpenRecord(one.partition, 0, at, at) for one in found if one.lag)
    return GroupReading("group", "topic", read_at, found, records, (), 1)


def test_a_partition_that_stands_still_is_told_from_one_that_works() -> None:
    movements = Movements(60)
    for step in range(10):
        movements.take(reading({0: 50, 1: 50 + step, 2: 100}), STARTED + 5 * step)
    now = reading({0: 50, 1: 59, 2: 100}, waiting=46, read_at=STARTED + 45)
    found = partitions([now], movements, {("group", 0): ("worker-1", 55)}, 0.0, 30, ALLOWED)
    assert (found.num_partitions, found.num_stalled, found.num_behind, found.num_idle) == (
        3,
        1,
        1,
        1,
    )
    worst = found.worst[0]
    assert (worst.partition, worst.state, worst.lag_records) == (0, State.DOWN, 50)
    assert (worst.worker, worst.processed_offset) == ("worker-1", 55)


def test_a_new_record_after_a_long_silence_is_not_stalled() -> None:
    movements = Movements(60)
    movements.take(reading({0: 100}), STARTED - 1000)
    movements.take(reading({0: 100}, end=101), STARTED)
    found = partitions([reading({0: 100}, end=101)], movements, {}, 0.0, 30, ALLOWED)
    assert (found.num_ok, found.num_stalled) == (1, 0)


def test_a_thousand_partitions_are_counted_and_the_worst_are_shown() -> None:
    movements = Movements(60)
    found = partitions([reading(dict.fromkeys(range(1000), 50))], movements, {}, 0.0, 30, ALLOWED)
    assert found.num_partitions == 1000
    assert len(found.worst) == MAX_SHOWN


def test_arrivals() -> None:
    movements = Movements(60)
    assert movements.arrivals("topic") is None
    movements.take(reading({0: 0}, end=100), STARTED)
    movements.take(reading({0: 0}, end=150), STARTED + 10)
    assert movements.arrivals("topic") == 5.0


# -- clocks ----------------------------------------------------------------------------------------


def seen(delay: float, producer: str = "", user: str = "alice") -> SeenRecord:
    return SeenRecord(user, round((STARTED - delay) * 1000), round(STARTED * 1000), producer)


@pytest.mark.parametrize("shift", [5.0, -5.0])
def test_a_producer_whose_clock_is_shifted_is_told_from_the_others(shift: float) -> None:
    tail = [seen(0.02 - shift, "app-1"), seen(0.3 - shift, "app-1"), seen(0.03, "app-2")]
    tail.append(seen(0.001, user="__canary_0"))  # the monitor's own says nothing of them
    found = {c.name: c for c in clocks(ClockOffset(0, 0.01), {}, tail, 1.0)}
    assert found["app-1"].offset_seconds == pytest.approx(shift - 0.02)
    assert found["app-1"].exceeds_limit
    assert not found["app-2"].exceeds_limit
    assert UNNAMED not in found


def test_a_backfill_says_nothing_of_a_clock() -> None:
    found = clocks(None, {}, [seen(3 * 86_400)], 1.0)[-1]
    assert found.offset_seconds is None
    assert "backfill" in found.problem


def test_a_workers_clock_is_measured_over_the_monitors() -> None:
    ours, theirs = ClockOffset(2.0, 0.1), ClockOffset(-5.0, 0.2)
    found = {c.name: c for c in clocks(ours, {"sequence-1": theirs}, [], 1.0)}
    assert found["sequence-1"].offset_seconds == pytest.approx(-3.0)
    assert found["sequence-1"].error_seconds == pytest.approx(0.3)
    assert found["sequence-1"].exceeds_limit
    alone = {c.name: c for c in clocks(None, {"sequence-1": theirs}, [], 1.0)}
    assert "against the monitor's clock" in alone["sequence-1"].problem


# -- figures ---------------------------------------------------------------------------------------


def test_cost_and_reads() -> None:
    totals = Totals(STARTED, 900, 5)
    metrics = Metrics()
    for metric, amount in (
        (catalogue.REPRESENTATIONS_WRITTEN, 200),
        (catalogue.ENCODER_SECONDS, 1.5),
        (catalogue.REPRESENTATION_BYTES, 60_000),
        (catalogue.SAMPLED_WRITES, 20),
        (catalogue.REPRESENTATION_READS, 100),
        (catalogue.SAMPLED_FIRST_READS, 5),
    ):
        metrics.add(metric, amount, "e", "2")
    metrics.observe(catalogue.FIRST_READ_SECONDS, [2.0] * 5, "e", "2")
    for outcome, number in (("encoded", 200), ("coalesced", 40), ("current", 2)):
        metrics.add(catalogue.ENCODER_USERS, number, outcome)
    metrics.add(catalogue.OFFSETS_LOST, 3, "encoder")
    metrics.add(catalogue.OFFSETS_LOST, 9, "sequence")
    metrics.add(catalogue.READS, 90, "user_representation", "found")
    metrics.add(catalogue.READS, 10, "user_representation", "absent")
    totals.take("all", exposed(metrics, STARTED + 1))
    (found,) = cost(totals.now, 100.0, "", True)
    assert found.representations_per_second == 2.0
    assert found.encoder_seconds_per_representation == pytest.approx(0.0075)
    assert found.bytes_per_representation == 300
    assert found.reads_per_representation == 0.5
    assert found.share_never_read == pytest.approx(0.75)
    assert found.first_read_p50_seconds == pytest.approx(2.0, rel=0.19)
    assert (found.num_shared, found.num_shed) == (42, 3)
    outcomes = {one.outcome: (one.rate, one.share) for one in reads(totals.now, 100.0, True)}
    assert outcomes["found"] == (0.9, 0.9)
    assert outcomes["failed"] == (0.0, 0.0)


def test_without_a_reader_nobody_knows_what_was_read() -> None:
    totals = Totals(STARTED, 900, 5)
    metrics = Metrics()
    metrics.add(catalogue.REPRESENTATIONS_WRITTEN, 200, "e", "2")
    totals.take("worker", exposed(metrics, STARTED + 1))
    (found,) = cost(totals.now, 100.0, "", False)
    assert found.reads_per_representation is None
    assert found.share_never_read is None
    assert found.first_read_p50_seconds is None
    assert found.problem


def test_silent_processes_leave_rates_unknown() -> None:
    metrics = Metrics()
    metrics.add(catalogue.REPRESENTATIONS_WRITTEN, 200, "e", "2")
    metrics.add(catalogue.READS, 90, "user_representation", "found")
    totals = Totals(STARTED, 900, 5)
    totals.take("all", exposed(metrics, STARTED + 1))
    quiet = totals.now.since(totals.now)
    (found,) = cost(quiet, 100.0, "no encoder worker answers", False)
    assert (found.representations_per_second, found.num_shed) == (None, None)
    assert found.num_shared is None
    assert (found.share_never_read, found.problem) == (None, "no encoder worker answers")
    assert reads(quiet, 100.0, False) == ()
    # While a reader answers, no read is a measurement.
    (idle,) = cost(quiet, 100.0, "", True)
    assert (idle.representations_per_second, idle.num_shed, idle.problem) == (0.0, 0, "")
    assert {one.rate for one in reads(quiet, 100.0, True)} == {0.0}


def test_dead_letters_share() -> None:
    totals = Totals(STARTED, 900, 5)
    metrics = Metrics()
    metrics.add(catalogue.RECORDS_CONSUMED, 1000, "0")
    metrics.add(catalogue.DEAD_LETTERS, 20, "not_json")
    metrics.add(catalogue.DEAD_LETTERS, 30, "wrong_type")
    totals.take("worker", exposed(metrics, STARTED + 1))
    found = dead_letters(totals.now, 10.0, None, "Kafka doesn't answer", "")
    assert found.by_reason == (("wrong_type", 30), ("not_json", 20))
    assert (found.share, found.rate, found.problem) == (0.05, 5.0, "Kafka doesn't answer")
    blind = dead_letters(totals.now, 10.0, (), "", "no sequence worker answers")
    assert (blind.share, blind.rate) == (None, None)
    assert blind.rate_problem == "no sequence worker answers"


def test_observing_a_whole_batch_costs_little() -> None:
    """At 100,000 events a second, counting the delays stays below 2 % of a core."""
    metrics, delays = Metrics(), np.random.default_rng(0).exponential(0.1, 4_000)
    timer = timeit.Timer(
        lambda: metrics.observe(catalogue.STAGE_SECONDS, delays, "broker_to_folded", "live")
    )
    best = min(timer.repeat(5, 20)) / 20
    # Five such calls per batch, 25 batches a second.
    assert best * 5 * 25 < 0.02
