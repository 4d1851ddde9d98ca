"""What the page says and draws, without a browser: words, charts, choices, kept history."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from streams.monitor.answers import History, HistoryPoint, Series, UserLookup
from streams.monitor.example import example_history, example_snapshot, example_user
from streams.monitor.page import bars, charts, words
from streams.monitor.page.feed import Example, KeptHistory
from streams.monitor.page.lookup import event_rows, representation_facts, status_sentence
from streams.monitor.page.view import View
from streams.monitor.page.way import ASIDE, BETWEEN, LANES, note_text
from streams.monitor.snapshot import Snapshot, State

AT = 1_790_000_000_000

# -- words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0, "0 s"),
        (0.0042, "4.2 ms"),
        (0.00996, "10 ms"),
        (0.236, "236 ms"),
        (0.9996, "1.00 s"),
        (1.0, "1 s"),
        (1.24, "1.24 s"),
        (9.996, "10 s"),
        (42.3, "42 s"),
        (59.7, "1 min"),
        (125, "2 min 5 s"),
        (3599.6, "1 h"),
        (11_040, "3 h 4 min"),
        (86_400 * 9 + 7200, "9 d 2 h"),
        (-4.98, "−4.98 s"),
    ],
)
def test_time_spans(seconds: float | None, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0 %"),
        (1.0, "100 %"),
        (0.99, "99 %"),
        (0.9994, "99.94 %"),
        (0.999999, "> 99.99 %"),
        (0.00001, "< 0.01 %"),
        (0.0534, "5.3 %"),
    ],
)
def test_shares_are_never_rounded_to_all_or_none(value: float | None, text: str) -> None:
    assert words.share(value) == text


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (words.rate(0.05), "0.05/s"),
        (words.rate(512.4), "512/s"),
        (words.rate(12_345.0), "12.3 k/s"),
        (words.rate(None, "?"), "?"),
        (words.number(18_204), "18,204"),
        (words.number(0.112), "0.112"),
        (words.size(293), "293 B"),
        (words.size(188_743_680), "180 MiB"),
        (words.signed(4.98), "+4.98 s ahead"),
        (words.signed(-0.0011), "−1.1 ms behind"),
        (words.signed(None), "can't tell"),
        (words.ago(AT - 31_000, AT), "31 s ago"),
        (words.ago(AT + 3_000, AT), "in 3 s"),
        (words.ago(AT, AT), "just now"),
        (words.ago(None, AT), "never"),
        (words.moment(0), "1970-01-01 00:00:00 UTC"),
        (words.moment(2**62), f"{2**62} ms"),
        (words.plural(1, "worker"), "1 worker"),
        (words.plural(2000, "worker"), "2,000 workers"),
    ],
)
def test_other_words(said: str, text: str) -> None:
    assert said == text


def test_every_state_has_a_word_a_sign_and_a_verdict() -> None:
    assert set(words.STATE_WORDS) == set(words.VERDICT_WORDS) == set(State)
    assert len({word for word, _sign in words.STATE_WORDS.values()}) == len(State)
    assert len({sign for _word, sign in words.STATE_WORDS.values()}) == len(State)


# -- what is looked at -----------------------------------------------------------------------------


def view(at: int = AT, **changes: Any) -> View:
    return View(replace(example_snapshot(AT), **changes), at)


def test_the_verdict_is_the_snapshots_while_it_is_recent() -> None:
    assert view().headline == example_snapshot(AT).headline


def test_an_old_snapshot_is_not_believed() -> None:
    headline = view(at=AT + 60_000).headline
    assert headline.state == State.UNKNOWN
    assert "60 s" in headline.text


def test_the_active_version_speaks_for_the_feature() -> None:
    found = view().freshness("representation")
    assert found is not None
    assert found.version == "2"
    versions = tuple(replace(v, state="retired") for v in example_snapshot(AT).versions)
    fallback = view(versions=versions).freshness("representation")
    assert fallback is not None
    assert fallback.count == 9312
    assert view(freshness=()).freshness("representation") is None


def test_the_picture_has_a_place_for_every_box_and_arrow() -> None:
    snapshot = example_snapshot(AT)
    parts = [part for lane in LANES for part in lane.parts]
    assert {b.id for b in snapshot.boxes} == {*parts[::1]} - {a.stage for a in snapshot.arrows} | {
        *ASIDE.values()
    }
    assert {a.stage for a in snapshot.arrows} <= {*parts, BETWEEN}


def test_an_arrow_says_what_is_caught_up() -> None:
    arrow = replace(example_snapshot(AT).arrows[0], catch_up_rate=40.0)
    assert note_text(arrow) == "and 40/s caught up"
    assert note_text(replace(arrow, problem="no answer")) == "no answer"


# -- charts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [900, 3600, 21_600, 86_400, 604_800])
def test_a_chart_is_small_whatever_the_range(seconds: int) -> None:
    options = charts.over_time(example_history(AT, seconds), charts.P99)
    lines = [series for series in options["series"] if series["data"]]
    assert all(10 < len(series["data"]) <= charts.MAX_POINTS + 2 for series in lines)
    assert len(msgspec.json.encode(options)) < 60_000


def history(points: list[HistoryPoint], step: int = 5, seconds: int = 60) -> History:
    series = Series(
        feature="sequence", encoder="", version="", objective_seconds=1.0, points=tuple(points)
    )
    return History(at=AT, range_seconds=seconds, step_seconds=step, series=(series,))


def point(at: int, p99: float | None, staleness: float | None = None) -> HistoryPoint:
    return HistoryPoint(
        at=at, count=1, p50_seconds=p99, p99_seconds=p99, staleness_seconds=staleness
    )


def test_what_was_not_measured_is_a_hole() -> None:
    found = history([point(AT - 10_000, 0.5), point(AT, 0.7)])
    values = [v for _at, v in charts.line(found, found.series[0], charts.P99)][-3:]
    assert values == [0.5, None, 0.7]


def test_thinning_keeps_the_worst() -> None:
    points = [point(AT - 1000 * back, 9.0 if back == 1777 else 0.1) for back in range(3600)]
    found = history(points, step=1, seconds=3600)
    line = charts.line(found, found.series[0], charts.P99)
    assert len(line) <= charts.MAX_POINTS + 2
    assert max(v for _at, v in line if v is not None) == 9.0
    assert min(v for _at, v in charts.line(found, found.series[0], charts.P50) if v) == 0.1


def test_versions_are_drawn_apart_and_what_waits_once() -> None:
    def series(version: str) -> Series:
        return Series(feature="representation", encoder="e" if version else "", version=version,
                      objective_seconds=5.0, points=(point(AT, 1.0, 2.0),))  # fmt: skip

    found = replace(history([]), series=tuple(series(v) for v in ("10", "", "9")))
    drawn = charts.chosen(found, charts.P99)
    assert charts.series_names(drawn, charts.P99) == ["Version 9", "Version 10"]
    waiting = charts.chosen(found, charts.WAITING)
    assert charts.series_names(waiting, charts.WAITING) == ["Representations"]


def test_the_table_says_what_the_chart_shows() -> None:
    found = example_history(AT, 3600)
    names, rows = charts.table_over_time(found, charts.WAITING)
    assert names == ["Sequences", "Representations"]
    assert 8 <= len(rows) <= charts.MAX_TABLE_ROWS
    assert rows[0]["s1"] == "40 s"


def test_a_history_without_series_is_an_empty_chart() -> None:
    found = replace(example_history(AT, 900), series=())
    assert charts.over_time(found, charts.P99)["series"] == []
    assert charts.table_over_time(found, charts.P99) == ([], [])
    assert bars.ages([])["series"] == []


# -- look-up ---------------------------------------------------------------------------------------


def test_a_look_up_in_words() -> None:
    found = example_user("u-881", AT)
    facts = dict(representation_facts(found.representations[0]))
    assert facts["Encoder, version"] == "user_encoder, version 2"
    assert facts["Log position"] == "epoch 1, offset 48,122"
    assert facts["Up to date"] == "no: a newer event is stored"
    rows = event_rows(found.sequences[0])
    assert rows[0]["time"] > rows[-1]["time"]


def test_a_look_up_says_what_it_can_not_tell_and_what_was_forgotten() -> None:
    broken = UserLookup(user_id="x" * 300, at=AT, read_seconds=1.0, problem="no answer")
    assert status_sentence(broken).startswith("Can't tell for xxx")
    assert len(status_sentence(broken)) < 120
    gone = UserLookup(user_id="u", at=AT, read_seconds=0.01, forgotten_at=AT)
    assert "forgotten at 2026" in status_sentence(gone)


# -- sources ---------------------------------------------------------------------------------------


class Counted:
    """A source that counts how often it is asked for history."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def snapshot(self) -> Snapshot | None:
        return None

    async def history(self, range_seconds: int) -> History:
        self.asked.append(range_seconds)
        return example_history(AT, range_seconds)

    async def user(self, user_id: str) -> UserLookup:
        return example_user(user_id, AT)


async def test_history_is_asked_for_once_for_all_readers() -> None:
    now, source = [0.0], Counted()
    kept = KeptHistory(source, lambda: now[0])
    assert await kept.get(900) is await kept.get(900)
    await kept.get(604_800)
    now[0] = 5.5
    await kept.get(900)
    await kept.get(604_800)  # its steps are long: still good
    assert source.asked == [900, 604_800, 900]


async def test_the_example_moves_on_with_the_clock() -> None:
    now = [AT / 1000]
    example = Example(lambda: now[0])
    first = example.snapshot()
    now[0] += 2
    second = example.snapshot()
    assert (second.number - first.number, second.at - first.at) == (1, 2000)
