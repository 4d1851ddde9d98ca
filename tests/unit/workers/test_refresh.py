"""One refresh per user, what is known to be stored, and the encoder's arrow over twins."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import numpy as np
from faust.types import TP

from streams.encoder_input import EncoderInput
from streams.encoding import Encoded
from streams.errors import EncoderRejected, EncoderUnavailable, HeadwaterError
from streams.events import Event, Forget
from streams.metrics import Metrics
from streams.producer import OutgoingRecord
from streams.representations import (
    EncoderVersion,
    RefreshRequest,
    Representation,
    RepresentationView,
    Trigger,
    VersionState,
)
from streams.sequences import SequenceView, UserState, log_position
from streams.settings import Settings
from streams.testing import InMemoryRepresentationStore, InMemorySequenceStore
from streams.workers.declarations import Declarations, Views
from streams.workers.encoder import EncoderWorker
from streams.workers.fault_points import FaultPoints
from streams.workers.lanes import Lane
from streams.workers.read_back import ReadBack
from streams.workers.refresh import KnownPositions, Refresh, coalesce
from streams.workers.transport import RecordBatch
from tests.unit.workers.records import NOW, consumed

SEEN = SequenceView(name="seen", event_types=("view",), max_length=100)
VECTOR = RepresentationView(
    name="vector", encoder="enc", dimensions=2, sequences=("seen",), max_length=4
)
VIEWS = Views([SEEN], [VECTOR])
SETTINGS = Settings()


def request(user: str, offset: int, *, trigger: Trigger = "event", at: int = NOW) -> RefreshRequest:
    position = log_position(1, offset)
    return RefreshRequest(user, position, at, at, at, at, at, trigger, f"e{offset}")


def requests(*made: RefreshRequest) -> RecordBatch:
    records = [consumed(r.encode(), r.user_id.encode(), offset=n) for n, r in enumerate(made)]
    return RecordBatch("refresh", 0, records, len(records))


def test_a_users_requests_become_one_at_the_newest_position() -> None:
    batch = requests(request("a", 1, at=NOW - 9), request("b", 2), request("a", 5), request("a", 3))
    found, refused = coalesce(batch.records)
    assert not refused
    assert [(r.user_id, r.position) for r in found] == [
        ("a", log_position(1, 5)),
        ("b", log_position(1, 2)),
    ]
    assert found[0].ingested_at == NOW - 9, "the delay of the one that waited longest"


def test_a_deletion_among_them_is_not_lost() -> None:
    (found,), _ = coalesce(requests(request("a", 1, trigger="forget"), request("a", 2)).records)
    assert found.forget
    assert found.position == log_position(1, 2)


def test_what_is_no_request_is_refused_alone() -> None:
    bad = [consumed(None, b"u"), consumed(b"rubbish", b"u"), consumed(b"{}", b"u")]
    found, refused = coalesce([*bad, *requests(request("a", 1)).records])
    assert [r.user_id for r in found] == ["a"]
    assert [one.record for one in refused] == bad
    assert all(one.reason and one.detail for one in refused)


def refresh(user: str, position: int) -> Refresh:
    return Refresh(user, position, NOW, NOW, NOW, False, True)


def test_known_positions_are_per_version_and_bounded() -> None:
    known = KnownPositions(2)
    known.put("enc", "1", [("a", 10)])
    known.put("enc", "1", [("a", 5)])
    assert known.reaches("enc", "1", refresh("a", 10))
    assert not known.reaches("enc", "1", refresh("a", 11))
    assert not known.reaches("enc", "2", refresh("a", 10))
    known.put("enc", "1", [("b", 1), ("c", 1)])
    assert len(known) == 2
    assert not known.reaches("enc", "1", refresh("a", 10))


class Encoder:
    """Answers (number of events, newest time); refuses some users' lengths; can be away."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.refuses_length: int | None = None
        self.nan_length: int | None = None
        self.away = 0

    async def encode(
        self, encoder: str, version: str, batch: EncoderInput, dimensions: int
    ) -> Encoded:
        assert (encoder, dimensions) == ("enc", 2)
        if self.away:
            self.away -= 1
            raise EncoderUnavailable("away")
        lengths = batch.lengths
        if self.refuses_length in lengths:
            raise EncoderRejected("no")
        self.asked.append(batch.num_sequences)
        vectors = np.stack([lengths, np.full(len(lengths), int(version))], axis=1)
        return Encoded(vectors.astype(np.float32), lengths != self.nan_length)

    async def close(self) -> None:
        return None


class Sent:
    def __init__(self) -> None:
        self.records: list[OutgoingRecord] = []

    async def deliver(self, records: Iterable[OutgoingRecord]) -> None:
        self.records += records

    async def close(self, timeout: float) -> int:
        del timeout
        return 0


class Bench:
    def __init__(self) -> None:
        self.sequences, self.store = InMemorySequenceStore(), InMemoryRepresentationStore()
        self.encoder, self.sent = Encoder(), Sent()
        self.worker = EncoderWorker(
            SETTINGS,
            Declarations(SETTINGS, VIEWS),
            ReadBack(self.sequences),
            self.store,
            self.encoder,
            self.sent,
            Metrics(),
            lambda: NOW / 1000,
            FaultPoints(),
            self._close,
        )
        self.lane = Lane(TP("refresh", 0), None, 0.0)

    async def _close(self) -> None:
        return None

    async def activate(self, version: str) -> None:
        await self.store.add_version(EncoderVersion("enc", version, VersionState.READY, NOW))
        await self.store.activate("enc", version)

    async def fold(self, user: str, count: int, *, first: int = 0) -> int:
        """Store `count` events of a user; answers the position."""
        state = UserState(user, VIEWS.set, await self.sequences.load_all(user))
        for n in range(count):
            event = Event(f"{first + n}", user, "i", "view", NOW + first + n)
            state.apply(event, log_position(1, first + n), VIEWS.set)
        flush = state.flush()
        assert flush is not None
        await self.sequences.write(flush)
        return flush.position

    async def read(self, user: str, version: str = "1") -> Representation | None:
        (found,) = await self.store.read_many("enc", version, [user])
        assert not isinstance(found, HeadwaterError)
        return found


async def test_users_are_encoded_at_the_position_that_was_read() -> None:
    bench = Bench()
    await bench.activate("1")
    position = await bench.fold("a", 9)
    await bench.fold("b", 2)
    batch = requests(request("a", 3), request("b", 1), request("a", 5))
    await bench.worker.handle(bench.lane, batch)
    found = await bench.read("a")
    assert found is not None
    assert found.vector.tolist() == [4, 1], "the newest max_length events"
    assert (found.position, found.as_of) == (position, NOW + 8)
    assert bench.encoder.asked == [2]
    assert bench.worker.state()["counters"]["coalesced"] == 1
    await bench.worker.handle(bench.lane, batch)
    assert bench.encoder.asked == [2], "a redelivery costs nothing"
    assert bench.worker.state()["counters"]["current"] == 2


async def test_a_request_is_not_served_from_an_older_sequence() -> None:
    bench = Bench()
    await bench.activate("1")
    await bench.fold("a", 2)
    work = asyncio.create_task(bench.worker.handle(bench.lane, requests(request("a", 7))))
    await asyncio.sleep(0.05)
    assert await bench.read("a") is None
    await bench.fold("a", 3, first=7)
    await work
    found = await bench.read("a")
    assert found is not None
    assert found.position == log_position(1, 9)


async def test_a_refused_sequence_and_a_bad_vector_are_left_out_alone() -> None:
    bench = Bench()
    await bench.activate("1")
    bench.encoder.refuses_length, bench.encoder.nan_length = 3, 2
    for user, count in (("a", 1), ("b", 3), ("c", 2), ("d", 4)):
        await bench.fold(user, count)
    await bench.worker.handle(bench.lane, requests(*(request(u, 0) for u in "abcd")))
    stored = [user for user in "abcd" if await bench.read(user) is not None]
    assert stored == ["a", "d"]
    assert bench.worker.state()["counters"]["rejected"] == 2


async def test_the_encoder_away_is_waited_for() -> None:
    bench = Bench()
    await bench.activate("1")
    await bench.fold("a", 1)
    bench.encoder.away = 2
    await bench.worker.handle(bench.lane, requests(request("a", 0)))
    assert await bench.read("a") is not None
    assert bench.lane.waiting_for is None


async def test_a_forgotten_user_loses_every_version() -> None:
    bench = Bench()
    await bench.activate("2")
    await bench.activate("1")
    await bench.fold("a", 3)
    old = Representation(np.ones(2, np.float32), NOW, log_position(1, 2), NOW)
    for version in ("1", "2"):
        await bench.store.write_many("enc", version, [("a", old)])
    state = UserState("a", VIEWS.set, await bench.sequences.load_all("a"))
    from_log = log_position(1, 8)
    state.forget(_forget("a"), from_log, NOW, VIEWS.set)
    flush = state.flush()
    assert flush is not None
    await bench.sequences.write(flush)
    await bench.worker.handle(bench.lane, requests(request("a", 8, trigger="forget")))
    assert await bench.read("a", "1") is None
    assert await bench.read("a", "2") is None
    counters = bench.worker.state()["counters"]
    assert (counters["deleted"], counters["empty"]) == (1, 1)


def _forget(user: str) -> Forget:
    return Forget(user, "f", NOW + 100)


async def test_bad_requests_go_to_the_dead_letters() -> None:
    bench = Bench()
    await bench.activate("1")
    await bench.worker.handle(
        bench.lane, RecordBatch("refresh", 0, [consumed(b"rubbish", b"u")], 1)
    )
    (letter,) = bench.sent.records
    assert (letter.topic, letter.value) == (SETTINGS.kafka.dead_letters_topic, b"rubbish")
    assert bench.worker.state()["counters"]["dead_lettered"] == 1
