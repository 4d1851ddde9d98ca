"""Floods: one user with very many events, a bot, one event type, a long backlog.

Correctness is asserted; how fresh the others stayed is reported to build/faults, not judged.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from streams.events import Event
from tests.faults.feed import Record, good
from tests.faults.harness import Run, report, rss_mb
from tests.worker_platform import wait_until

LONG = [pytest.mark.long, pytest.mark.timeout(3_600)]
# A worker's caches and queues are bounded; what it holds on top of its start is below this.
MAX_GROWTH_MB = 400


def _fill(run: Run, records: Iterator[Record]) -> int:
    """Very many records, as fast as the broker takes them; they aren't remembered by the run."""
    settings = run.platform.settings.kafka
    producer = Producer(
        {"bootstrap.servers": settings.bootstrap_servers, "linger.ms": 20, "log_level": 2}
    )
    count = 0
    for record in records:
        count += 1
        while True:
            try:
                producer.produce(settings.events_topic, record.value, record.key)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0
    return count


def _others_were_fresh(run: Run, name: str) -> None:
    report(name, freshness=run.freshness())


@pytest.mark.parametrize("events", [20_000, pytest.param(1_000_000, marks=LONG)])
def test_one_user_with_very_many_events(run: Run, events: int) -> None:
    """Its newest ones are kept, exactly; the others' events between them are all there."""
    user, born = f"{run.platform.settings.kafka.events_topic}-hot", int(time.time() * 1000)
    worker = run.worker().wait_ready()

    def hot() -> Iterator[Record]:
        for number in range(events):
            at = born - events + number
            yield good(Event(f"hot-{number:07}", user, f"item-{number}", "view", at))

    with run.load(rate=300):
        assert _fill(run, hot()) == events
        run.progress(500, 600)
    kept = run.platform.views.sequences["engagement"].max_length
    newest = [record for number, record in enumerate(hot()) if number >= events - kept]
    run.produced += newest
    run.check(900)
    rows = run.platform.sequences([user])[user, "engagement"]
    assert [row.event_id for row in rows] == [f"hot-{events - kept + n:07}" for n in range(kept)]
    assert rss_mb(worker.pid) < MAX_GROWTH_MB + 300
    _others_were_fresh(run, f"one_user_{events}_events")


@pytest.mark.parametrize("seconds", [4, pytest.param(60, marks=LONG)])
def test_a_bot_with_a_thousand_events_a_second(run: Run, seconds: int) -> None:
    run.worker().wait_ready()
    bot = f"{run.platform.settings.kafka.events_topic}-bot"
    began, number = time.monotonic(), 0
    with run.load(rate=500):
        while time.monotonic() - began < seconds:
            due = int((time.monotonic() - began) * 1_000) + 50
            at = int(time.time() * 1000)
            run.produce(
                good(Event(f"bot-{n:07}", bot, f"item-{n}", "click", at))
                for n in range(number, due)
            )
            number = max(number, due)
    run.check()
    _others_were_fresh(run, f"bot_{seconds}s")


@pytest.mark.parametrize("seconds", [4, pytest.param(60, marks=LONG)])
def test_one_event_type_floods(run: Run, seconds: int) -> None:
    """Impressions a hundred times as many as all others: the rare ones are as fresh as before."""
    run.worker().wait_ready()
    prefix = run.platform.settings.kafka.events_topic
    began, number = time.monotonic(), 0
    with run.load(rate=100):
        while time.monotonic() - began < seconds:
            due = number + 500
            at = int(time.time() * 1000)
            run.produce(
                good(Event(f"f-{n:08}", f"{prefix}-user-{n % 60}", f"i{n}", "impression", at))
                for n in range(number, due)
            )
            number = due
    run.check(300)
    _others_were_fresh(run, f"flood_{seconds}s")


@pytest.mark.parametrize("events", [50_000, pytest.param(5_000_000, marks=LONG)])
def test_a_backlog_is_worked_off_in_bounded_memory(run: Run, events: int) -> None:
    """Caught up, and fresh again: what came late isn't counted as live traffic's freshness."""
    worker = run.worker(catch_up_seconds=1.0).wait_ready()
    run.produce_next(200)
    run.catch_up()
    assert worker.terminate() == 0
    prefix, at = run.platform.settings.kafka.events_topic, int(time.time() * 1000) - 60_000

    def backlog() -> Iterator[Record]:
        for n in range(events):
            yield good(Event(f"b-{n:08}", f"{prefix}-b{n % 50_000}", f"i{n % 999}", "view", at))

    _fill(run, backlog())
    began = time.monotonic()
    worker = run.worker(catch_up_seconds=1.0).wait_ready()
    before = rss_mb(worker.pid)
    run.catch_up(2_700)
    seconds = time.monotonic() - began
    assert worker.state()["counters"]["applied"] == events
    assert rss_mb(worker.pid) - before < MAX_GROWTH_MB
    run.produce_next(500)
    run.check()
    live = wait_until(
        lambda: worker.state()["freshness"].get("sequence/ingested_at/live"), 30, "live again"
    )
    report(
        f"backlog_{events}",
        seconds=round(seconds, 1),
        events_per_second=round(events / seconds),
        live=live,
        rss_mb=[before, rss_mb(worker.pid), run.watcher.rss_mb[-1:]],
    )
