"""The sequence worker's arrow over in-memory stores: R1, R3, R4, whatever is split and repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from faust.types import TP
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.errors import (
    DeliveryFailed,
    HeadwaterError,
    LogMismatch,
    StoreRejected,
    StoreUnavailable,
)
from streams.events import Event, Forget
from streams.kafka import TopicIdentity
from streams.metrics import Metrics
from streams.producer import OutgoingRecord
from streams.representations import RefreshRequest, RepresentationView
from streams.sequences import SequenceView, sequence_events
from streams.settings import Settings
from streams.testing import InMemoryLogStore, InMemorySequenceStore
from streams.workers.declarations import Declarations, Views
from streams.workers.epoch import EpochGuard
from streams.workers.fault_points import FaultPoints
from streams.workers.lanes import Lane
from streams.workers.sequence import SequenceWorker
from tests.unit.workers.records import NOW, PARTITIONS, batch_of, consumed, users_at_home
from tests.worker_platform import comparable, expected_sequence

SETTINGS = Settings()
SEEN = SequenceView(name="seen", event_types=("view", "click"), max_length=150)
LIKED = SequenceView(name="liked", event_types=("like", "click"), max_length=5, max_age_ms=50_000)
VECTOR = RepresentationView(
    name="vector", encoder="e", dimensions=4, sequences=("seen",), max_length=8
)
OUTCOMES = ("applied", "duplicate", "too_old", "forgotten", "dead_lettered", "filtered")


class Sent:
    """A sender that remembers, and can be away."""

    def __init__(self) -> None:
        self.records: list[OutgoingRecord] = []
        self.failures = 0

    async def deliver(self, records: Iterable[OutgoingRecord]) -> None:
        if self.failures:
            self.failures -= 1
            raise DeliveryFailed("broker away")
        self.records += records

    async def close(self, timeout: float) -> int:
        del timeout
        return 0

    def requests(self) -> list[RefreshRequest]:
        topic = SETTINGS.kafka.refresh_topic
        return [RefreshRequest.decode(r.value) for r in self.records if r.topic == topic]


class _Waiting(Lane):
    """A lane that says when it begins to wait for something."""

    def __init__(self, tp: TP, state: Any, now: float) -> None:
        super().__init__(tp, state, now)
        self.waits = asyncio.Event()

    def _wait(self, error: HeadwaterError) -> None:
        super()._wait(error)
        self.waits.set()


class Bench:
    """One worker's handler; `restart` makes another one over the same stores."""

    def __init__(self, topic: TopicIdentity | None = None) -> None:
        self.store, self.epochs, self.sent = InMemorySequenceStore(), InMemoryLogStore(), Sent()
        self.topic = topic or TopicIdentity("id-1", PARTITIONS)
        self.restart()

    def restart(self) -> None:
        guard = EpochGuard("events", self.epochs, lambda: self.topic, lambda: NOW / 1000, 0.0)
        self.worker = SequenceWorker(
            SETTINGS,
            Declarations(SETTINGS, Views([SEEN, LIKED], [VECTOR])),
            self.store,
            guard,
            self.sent,
            Metrics(),
            lambda: NOW / 1000,
            FaultPoints(),
            self._close,
        )
        self.lane = _Waiting(TP("events", 0), self.worker.new_state(), 0.0)
        self.waits = self.lane.waits

    async def _close(self) -> None:
        return None

    async def start(self) -> Bench:
        await self.worker.start()
        return self

    async def fold(self, records: list[Event | Forget], first: int = 0) -> None:
        if records:
            await self.worker.handle(self.lane, batch_of(records, partition=0, first=first))

    async def check(self, records: Iterable[Event | Forget]) -> None:
        kept = list(records)
        for user in {record.user_id for record in kept}:
            stored = await self.store.load_all(user)
            for view in (SEEN, LIKED):
                rows = [row for row in stored.rows if row.view == view.name]
                found = comparable(sequence_events(rows, view))
                assert found == comparable(expected_sequence(kept, user, view))

    def counters(self) -> dict[str, int]:
        found: dict[str, int] = self.worker.state()["counters"]
        assert found["consumed"] == sum(found[name] for name in OUTCOMES)
        return found


USERS = users_at_home(0, 3)


@st.composite
def logs(draw: st.DrawFn) -> list[Event | Forget]:
    """Events of few users at few times, with copies, and a deletion now and then."""
    size = draw(st.integers(1, 60))
    made: list[Event | Forget] = []
    for number in range(size):
        user = draw(st.sampled_from(USERS))
        if draw(st.integers(0, 30)) == 0:
            made.append(Forget(user, f"f{number}", NOW - draw(st.integers(0, 60)) * 1_000))
        else:
            kind = draw(st.sampled_from(("view", "click", "like", "other")))
            time = NOW - draw(st.integers(0, 60)) * 1_000
            made.append(Event(f"e{number}", user, f"i{number % 7}", kind, time))
    copies = draw(st.lists(st.sampled_from(made), max_size=10))
    return list(draw(st.permutations(made + copies)))


@settings(max_examples=60)
@given(log=logs(), data=st.data())
def test_any_order_copies_splits_crashes_and_replays_give_the_same_sequences(
    log: list[Event | Forget], data: st.DataObject
) -> None:
    asyncio.run(_fold_in_parts(log, data))


async def _fold_in_parts(log: list[Event | Forget], data: st.DataObject) -> None:
    bench = await Bench().start()
    position = 0
    while position < len(log):
        end = min(len(log), position + data.draw(st.integers(1, 20)))
        await bench.fold(log[position:end], position)
        position = end
        if data.draw(st.integers(0, 3)) == 0:  # a crash before the commit: some of it comes again
            bench.restart()
            await bench.worker.start()
            position -= min(position, data.draw(st.integers(0, 15)))
    await bench.check(log)
    bench.counters()


async def test_long_sequences_read_the_chunks_that_late_events_need() -> None:
    bench = await Bench().start()
    events = [Event(f"e{n}", USERS[0], "i", "view", NOW - 400_000 + n * 1_000) for n in range(400)]
    late = events[260:400:7]
    early = [event for event in events if event not in late]
    await bench.fold(list(early))
    bench.restart()
    await bench.worker.start()
    await bench.fold(list(late), len(early))
    await bench.check(events)


async def test_a_store_that_is_away_is_waited_for() -> None:
    for error in (StoreUnavailable("away"), StoreRejected("disk full")):
        bench = await Bench().start()
        bench.store.fail_with = error
        events: list[Event | Forget] = [Event("e", USERS[0], "i", "view", NOW)]
        work = asyncio.create_task(bench.fold(events))
        async with asyncio.timeout(5):
            await bench.waits.wait()
        assert bench.lane.waiting_for == str(error)
        assert not work.done()
        assert not bench.sent.records
        bench.store.fail_with = None
        await work
        await bench.check(events)


async def test_a_request_is_delivered_before_the_batch_is_done() -> None:
    bench = await Bench().start()
    bench.sent.failures = 2
    await bench.fold([Event("e", USERS[0], "i", "view", NOW)])
    (request,) = bench.sent.requests()
    assert (request.user_id, request.trigger, request.event_id) == (USERS[0], "event", "e")
    assert request.position == (await bench.store.load_all(USERS[0])).rows[0].position


async def test_a_replay_asks_for_the_refresh_again() -> None:
    """A crash between the write and the request must not leave a stale vector."""
    bench = await Bench().start()
    events: list[Event | Forget] = [
        Event(f"e{n}", USERS[0], "i", "view", NOW - n) for n in range(5)
    ]
    await bench.fold(events)
    first = bench.sent.requests()[-1]
    bench.restart()
    await bench.worker.start()
    await bench.fold(events)
    assert bench.counters()["duplicate"] == len(events)
    assert bench.sent.requests()[-1].position == first.position


async def test_only_views_that_feed_an_encoder_ask_for_a_refresh() -> None:
    bench = await Bench().start()
    await bench.fold([Event("e", USERS[0], "i", "like", NOW)])
    assert not bench.sent.requests()
    await bench.fold([Forget(USERS[0], "f", NOW)], 1)
    assert [request.trigger for request in bench.sent.requests()] == ["forget"]


async def test_every_record_is_counted_once() -> None:
    bench = await Bench().start()
    user, stranger = USERS[0], users_at_home(2, 1)[0]
    old = NOW - 1_000_000
    records: list[Event | Forget] = [
        Event("1", user, "i", "view", NOW),
        Event("1", user, "i", "view", NOW),
        Event("2", user, "i", "unknown", NOW),
        *(Event(f"l{n}", user, "i", "like", NOW + n) for n in range(5)),
        Event("3", user, "i", "like", old),
        Forget(user, "f", NOW - 1),
        Event("4", user, "i", "view", NOW - 2),
    ]
    batch = batch_of(records, partition=0)
    batch.records.append(consumed(b"rubbish", b"k", offset=len(records)))
    foreign = batch_of([Event("5", stranger, "i", "view", NOW)], partition=0, first=20)
    batch.records += foreign.records
    await bench.worker.handle(bench.lane, batch)
    assert bench.counters() == {
        "consumed": 13,
        "applied": 7,
        "duplicate": 1,
        "too_old": 1,
        "forgotten": 1,
        "dead_lettered": 1,
        "filtered": 2,
        "forwarded": 1,
    }
    topics = [record.topic for record in bench.sent.records]
    assert topics.count(SETTINGS.kafka.dead_letters_topic) == 1
    assert topics.count("events") == 1


@pytest.mark.parametrize("max_packed_bytes", [0, 500, 100_000])
async def test_the_cache_is_bounded_and_evicted_users_are_read_again(
    max_packed_bytes: int,
) -> None:
    bench = await Bench().start()
    bench.lane.state._max_users = 1
    bench.lane.state._max_packed_bytes = max_packed_bytes
    events: list[Event | Forget] = [
        Event(f"e{n}", USERS[n % 3], "i", "view", NOW + n) for n in range(90)
    ]
    for start in range(0, 90, 6):
        await bench.fold(events[start : start + 6], start)
        state = bench.worker.state()
        assert state["cached_users"] - state["packed_users"] <= 1
    await bench.check(events)


async def test_after_a_revocation_nothing_is_taken_from_the_cache() -> None:
    bench = await Bench().start()
    await bench.fold([Event("1", USERS[0], "i", "view", NOW)])
    bench.worker.revoked()
    assert bench.worker.state()["cached_users"] == 0
    lane: Any = bench.worker.new_state()
    assert len(lane) == 0


async def test_another_incarnation_of_the_topic_ends_the_worker() -> None:
    bench = await Bench().start()
    await bench.worker.assigned()
    for other in (TopicIdentity("id-2", PARTITIONS), TopicIdentity("id-1", PARTITIONS + 1)):
        bench.topic = other
        with pytest.raises(LogMismatch, match="headwater log open-epoch"):
            await bench.worker.check()
        bench.restart()
        with pytest.raises(LogMismatch, match="headwater log status"):
            await bench.worker.start()
