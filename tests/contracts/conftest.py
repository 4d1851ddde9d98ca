"""Each store twice: the in-memory twin, and the real one on Cassandra in a keyspace of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from streams.cassandra import Session
from streams.feature_row_store import Arrivals, FeatureRowStore
from streams.log_store import LogStore
from streams.representation_store import RepresentationStore
from streams.sequence_store import SequenceStore
from streams.testing import (
    InMemoryFeatureRowStore,
    InMemoryLogStore,
    InMemoryRepresentationStore,
    InMemorySequenceStore,
)

TWIN, CASSANDRA = "twin", "cassandra"


@pytest.fixture(params=[TWIN, CASSANDRA])
async def session(request: pytest.FixtureRequest) -> AsyncIterator[Session | None]:
    """None asks for the twins."""
    if request.param == TWIN:
        yield None
        return
    session = Session(request.getfixturevalue("cassandra_settings"))
    yield session
    await session.close()


@pytest.fixture
def sequence_store(session: Session | None) -> SequenceStore | InMemorySequenceStore:
    return InMemorySequenceStore() if session is None else SequenceStore(session)


@pytest.fixture
def log_store(session: Session | None) -> LogStore | InMemoryLogStore:
    return InMemoryLogStore() if session is None else LogStore(session)


@pytest.fixture
def representation_store(
    session: Session | None,
) -> RepresentationStore | InMemoryRepresentationStore:
    return InMemoryRepresentationStore() if session is None else RepresentationStore(session)


class ManualClock:
    """A clock that a test sets, in nanoseconds."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def feature_row_store(
    session: Session | None, clock: ManualClock
) -> FeatureRowStore | InMemoryFeatureRowStore:
    arrivals = Arrivals(clock)
    if session is None:
        return InMemoryFeatureRowStore(arrivals)
    return FeatureRowStore(session, arrivals)
