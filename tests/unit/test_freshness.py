"""The arithmetic of freshness: shares, burn rates, open records, clocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.freshness import (
    ClockOffset,
    Open,
    OpenRecord,
    age_seconds,
    best_offset,
    burn_rate,
    counts_of,
    is_canary,
    least_delay_offset,
    num_within,
    oldest_open,
    percentile,
    round_trip_offset,
    share_within,
)
from streams.metrics import BOUNDS, SNAPSHOT_SECONDS, Metrics, quantile

delays = st.lists(st.floats(-5, 10_000, allow_nan=False), min_size=1, max_size=200)


@given(delays)
def test_counting_in_bulk_is_counting_each(values: list[float]) -> None:
    metrics = Metrics()
    metrics.observe(SNAPSHOT_SECONDS, values)
    each = np.bincount(np.searchsorted(BOUNDS, values, side="left"), minlength=len(BOUNDS) + 1)
    assert (counts_of(values) == each).all()
    summary = metrics.summaries(SNAPSHOT_SECONDS)[()]
    assert summary["count"] == len(values)
    assert summary["p99"] == quantile(each, 0.99)


@given(delays, st.floats(0.001, 4_000))
def test_a_share_within_is_right_to_a_bucket(values: list[float], limit: float) -> None:
    counts = counts_of(values)
    place = int(np.searchsorted(BOUNDS, limit))
    below = sum(value <= BOUNDS[place - 1] for value in values)
    above = sum(value <= BOUNDS[min(place, len(BOUNDS) - 1)] for value in values)
    assert below - 1e-9 <= num_within(counts, limit) <= above + 1e-9
    share = share_within(counts, limit)
    assert share is not None
    assert 0 <= share <= 1


def test_delays_at_a_bound_are_within_it_and_negative_ones_are_too() -> None:
    counts = counts_of([-3.0, 0.001, float(BOUNDS[10]), 5.0])
    assert num_within(counts, float(BOUNDS[10])) == 3
    assert num_within(counts, 100_000) == 4
    assert share_within(counts_of([]), 1.0) is None


@pytest.mark.parametrize(
    ("good", "total", "target", "rate"),
    [(99, 100, 0.99, 1.0), (100, 100, 0.99, 0.0), (856, 1000, 0.99, 14.4), (0, 0, 0.99, None)],
)
def test_burn_rate(good: float, total: float, target: float, rate: float | None) -> None:
    found = burn_rate(good, total, target)
    assert found == (None if rate is None else pytest.approx(rate))


def test_nothing_open_is_idle() -> None:
    assert oldest_open([]) is None


def test_the_oldest_open_event_over_all_partitions() -> None:
    records = [
        OpenRecord(0, event_time=5_000, ingested_at=9_000, queued_at=9_000),
        OpenRecord(1, event_time=7_000, ingested_at=8_000, queued_at=9_500),
        # What isn't an event counts from its arrival.
        OpenRecord(2, event_time=None, ingested_at=8_500, queued_at=8_500),
    ]
    assert oldest_open(records) == Open(5_000, 8_000, 8_500, 1)


def test_an_age_is_never_clipped() -> None:
    assert age_seconds(10.0, 12_000) == -2.0


def test_a_round_trip_bounds_the_other_clock() -> None:
    found = round_trip_offset(100.0, 105.1, 100.2)
    assert found.seconds == pytest.approx(5.0)
    assert found.error_seconds == pytest.approx(0.1)


@given(st.floats(-100, 100), st.floats(0, 1), st.floats(0, 1))
def test_the_true_offset_lies_within_the_error(offset: float, there: float, back: float) -> None:
    found = round_trip_offset(1000.0, 1000.0 + there + offset, 1000.0 + there + back)
    assert abs(found.seconds - offset) <= found.error_seconds + 1e-9


def test_offsets_add_up_and_turn_round() -> None:
    ours = ClockOffset(2.0, 0.1)
    added = ClockOffset(1.0, 0.2).plus(ours)
    assert added.seconds == 3.0
    assert added.error_seconds == pytest.approx(0.3)
    assert ours.reversed() == ClockOffset(-2.0, 0.1)
    assert best_offset([ours, ClockOffset(1.9, 0.01)]) == ClockOffset(1.9, 0.01)


@pytest.mark.parametrize(
    ("delays_", "offset"), [([-4.99, -3], 4.99), ([5.02, 7], -5.02), ([], None)]
)
def test_the_least_delay_shows_a_shifted_clock(delays_: list[float], offset: float | None) -> None:
    assert least_delay_offset(delays_) == offset


def test_percentile() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile([1, 2, 3, 4], 1.0) == 4


def test_canaries_are_told_by_their_prefix() -> None:
    assert is_canary("__canary_3")
    assert not is_canary("canary_3")
