"""`OnlineFeatures` on the real Cassandra: what a Python reader gets, and is told."""

from __future__ import annotations

import asyncio
import secrets
import time
import warnings
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import torch

from infra.local.stack import LocalStack
from streams.cassandra import Session
from streams.errors import ConfigError, StoreUnavailable, UnknownFormat
from streams.events import Event
from streams.online import OnlineFeatures, ReadOutcome
from streams.representation_store import RepresentationStore
from streams.representations import (
    EncoderVersion,
    Representation,
    RepresentationView,
    VersionState,
)
from streams.sequence_store import SequenceStore
from streams.sequences import (
    SequenceView,
    StoredUser,
    UserFlush,
    UserState,
    ViewSet,
    Write,
    log_position,
)
from streams.settings import CassandraSettings, Settings
from streams.views import DeclaredViews

NOW = 1_800_000_000_000  # ms
SEEN = SequenceView(name="seen", event_types=("view", "click"), max_length=150)
LIKED = SequenceView(name="liked", event_types=("like",), max_length=3, ttl_seconds=3_600)
FOUND, ABSENT, EXPIRED, FAILED = ReadOutcome


class Filled:
    """Sequences and representations under names of this test's own."""

    def __init__(self, settings: CassandraSettings) -> None:
        self.settings = Settings(cassandra=settings)
        self.prefix = secrets.token_hex(4)
        self.vectors = RepresentationView(
            name="vector", encoder=f"e{self.prefix}", dimensions=4, sequences=("seen",),
            max_length=10, ttl_seconds=600,
        )  # fmt: skip
        self.views = DeclaredViews({"seen": SEEN, "liked": LIKED}, {"vector": self.vectors})

    def online(self) -> OnlineFeatures:
        return OnlineFeatures(self.settings, views=self.views, now=lambda: NOW / 1000)

    def user(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def store(self, name: str, event_type: str, times: list[int]) -> None:
        """A user's events of one type, in batches of ten."""
        views = ViewSet([SEEN, LIKED])
        state = UserState(self.user(name), views, StoredUser())
        flushes = []
        for number, at in enumerate(times):
            event = Event(f"{event_type}{number}", self.user(name), f"i{number}", event_type, at)
            state.apply(event, log_position(1, number), views)
            if number % 10 == 9 or number == len(times) - 1:
                flushes.append(state.flush())
        self._with(lambda session: _write(session, flushes))

    def damage(self, name: str) -> None:
        """A chunk that a newer version of the platform wrote."""
        write = Write("seen", NOW, b"\xfe from the future")
        flush = UserFlush(self.user(name), log_position(2, 1), (write,))
        self._with(lambda session: _write(session, [flush]))

    def represent(self, version: str, vectors: dict[str, tuple[float, int]]) -> None:
        """Vectors of users, each filled with a number and made so many seconds before now."""
        items = [
            (
                self.user(name),
                Representation(
                    np.full(4, number, np.float32), NOW - 5, log_position(1, 9), NOW - 1000 * age
                ),
            )
            for name, (number, age) in vectors.items()
        ]

        async def write(session: Session) -> None:
            store = RepresentationStore(session)
            encoder = self.vectors.encoder
            await store.add_version(EncoderVersion(encoder, version, VersionState.READY, NOW, {}))
            await store.activate(encoder, version)
            assert await store.write_many(encoder, version, items) == [None] * len(items)

        self._with(write)

    def _with(self, call: Callable[[Session], object]) -> None:
        async def run() -> None:
            session = Session(self.settings.cassandra)
            try:
                await call(session)  # type: ignore[misc]
            finally:
                await session.close()

        asyncio.run(run())


async def _write(session: Session, flushes: list[UserFlush | None]) -> None:
    for flush in flushes:
        assert flush is not None
        await SequenceStore(session).write(flush)


@pytest.fixture
def filled(cassandra_settings: CassandraSettings) -> Filled:
    return Filled(cassandra_settings)


def test_users_come_in_the_order_asked_for_with_what_became_of_each(filled: Filled) -> None:
    filled.store("long", "view", [NOW - 1000 + n for n in range(400)])
    filled.store("short", "click", [NOW - 9, NOW - 8])
    filled.store("short", "like", [NOW - 7])
    filled.store("old", "like", [NOW - 3_600_001])
    asked = [filled.user(n) for n in ("short", "nobody", "long", "old", "short")]
    batch = filled.online().get(asked)
    assert batch.user_ids == asked
    assert batch.errors == {}
    seen, liked = batch.sequences["seen"], batch.sequences["liked"]
    assert seen.outcome.tolist() == [FOUND, ABSENT, FOUND, ABSENT, FOUND]
    assert liked.outcome.tolist() == [FOUND, ABSENT, ABSENT, EXPIRED, FOUND]
    assert np.diff(seen.columns.offsets).tolist() == [2, 0, 150, 0, 2]
    assert seen.of(2)["event_time"] == [NOW - 1000 + n for n in range(250, 400)]
    assert seen.of(2)["item_id"] == [f"i{n}" for n in range(250, 400)]
    assert seen.of(0) == seen.of(4)
    assert liked.of(3)["item_id"] == []


def test_one_version_answers_and_old_vectors_are_expired(filled: Filled) -> None:
    filled.represent("1", {"a": (1.0, 10), "b": (1.0, 10)})
    online = filled.online()
    asked = [filled.user(name) for name in ("a", "b", "c")]
    first = online.get(asked, ["vector"]).representations["vector"]
    assert first.version == "1"
    assert first.outcome.tolist() == [FOUND, FOUND, ABSENT]
    assert first.vector[:, 0].tolist() == [1.0, 1.0, 0.0]
    # The next version hasn't reached everybody: who lacks it is absent, not served the old one.
    filled.represent("2", {"a": (2.0, 10), "c": (2.0, 601)})
    again = OnlineFeatures(
        msgspec.structs.replace(
            filled.settings,
            cassandra=msgspec.structs.replace(filled.settings.cassandra, connect_timeout_seconds=9),
        ),
        views=filled.views,
        now=lambda: NOW / 1000,
    )
    second = again.get(asked, ["vector"]).representations["vector"]
    assert second.version == "2"
    assert second.outcome.tolist() == [FOUND, ABSENT, EXPIRED]
    assert second.vector[:, 0].tolist() == [2.0, 0.0, 0.0]
    assert second.as_of.tolist()[0] == NOW - 5


def test_an_unreadable_user_fails_alone(filled: Filled) -> None:
    names = [f"u{number}" for number in range(100)]
    for name in names[::10]:
        filled.store(name, "view", [NOW - 2, NOW - 1])
    filled.damage("u50")
    batch = filled.online().get([filled.user(name) for name in names], ["seen"])
    seen = batch.sequences["seen"]
    assert {index: type(error) for index, error in batch.errors.items()} == {50: UnknownFormat}
    expected = [FOUND if n % 10 == 0 else ABSENT for n in range(100)]
    expected[50] = FAILED
    assert seen.outcome.tolist() == expected
    assert seen.of(40)["item_id"] == ["i0", "i1"]
    assert seen.of(50)["item_id"] == []


async def test_the_async_answer_is_the_same(filled: Filled) -> None:
    await asyncio.to_thread(filled.store, "u", "view", [NOW - 3, NOW - 2, NOW - 1])
    async with filled.online() as online:
        found = await online.get_async([filled.user("u"), filled.user("v")])
        same = await asyncio.to_thread(online.get, [filled.user("u"), filled.user("v")])
    for name, made in found.sequences.items():
        assert made.of(0) == same.sequences[name].of(0)
        assert made.outcome.tolist() == same.sequences[name].outcome.tolist()
    assert not (await filled.online().get_async([])).user_ids


def test_arrays_go_into_torch_as_they_are(filled: Filled) -> None:
    filled.store("u", "view", [NOW - n for n in range(20, 0, -1)])
    columns = filled.online().get([filled.user("u")] * 3, ["seen"]).sequences["seen"].columns
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch would rather have writable memory
        times = torch.from_numpy(columns.event_time)
        offsets = torch.from_numpy(columns.offsets)
    assert times.data_ptr() == columns.event_time.ctypes.data
    jagged = torch.nested.nested_tensor_from_jagged(times, offsets)
    assert [len(row) for row in jagged.unbind()] == [20, 20, 20]


def test_an_unknown_view_is_refused_with_the_known_ones(filled: Filled) -> None:
    with pytest.raises(ConfigError, match="no such view: sen; there are: seen, liked, vector"):
        filled.online().get(["u"], ["seen", "sen"])


def test_a_hung_store_ends_in_failed_reads(filled: Filled, lazy_stack: LocalStack) -> None:
    filled.store("u", "view", [NOW])
    quick = msgspec.structs.replace(filled.settings.cassandra, request_timeout_seconds=0.5)
    online = OnlineFeatures(
        msgspec.structs.replace(filled.settings, cassandra=quick),
        views=filled.views,
        now=lambda: NOW / 1000,
    )
    asked = [filled.user("u")] * 100
    assert online.get(asked, ["seen"]).errors == {}
    lazy_stack.cassandra.pause()
    began = time.monotonic()
    batch = online.get(asked)
    assert time.monotonic() - began < 5  # not a speed: it ends at all, long before the driver's own
    for outcome in (batch.sequences["seen"].outcome, batch.representations["vector"].outcome):
        assert set(outcome.tolist()) == {FAILED}
    assert all(isinstance(error, StoreUnavailable) for error in batch.errors.values())
    lazy_stack.cassandra.resume()
    assert set(online.get(asked, ["seen"]).sequences["seen"].outcome.tolist()) <= {FOUND, FAILED}
