"""`Session`: bounded, and no call that was given up takes its place with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from streams.cassandra import Session, Statement
from streams.settings import CassandraSettings

READ = Statement("SELECT user_id FROM user_sequence WHERE user_id = ? LIMIT 1")
WRITE = Statement(
    "INSERT INTO user_sequence (user_id, feature_view, chunk, value) VALUES (?, 'v', ?, 0x00)"
)


@pytest.fixture
async def narrow(cassandra_settings: CassandraSettings) -> AsyncIterator[Session]:
    """One request at a time."""
    session = Session(msgspec.structs.replace(cassandra_settings, max_requests_in_flight=1))
    await session.execute(READ, ("nobody",))
    yield session
    await session.close()


async def test_a_call_that_is_given_up_when_its_turn_comes_passes_it_on(narrow: Session) -> None:
    """The place was handed over to it, and it never took it."""
    calls = [asyncio.create_task(_call(narrow, number)) for number in range(8)]
    for current, following in zip(calls[::2], calls[1::2], strict=True):
        while not current.done():  # noqa: ASYNC110 the very step of the loop in which it ends
            await asyncio.sleep(0)
        following.cancel()
    await asyncio.wait(calls)
    assert [call.cancelled() for call in calls] == [False, True] * 4
    await _call(narrow, 1)


async def test_calls_that_are_given_up_while_they_wait_leave_room(narrow: Session) -> None:
    """They are passed over when their turn comes."""
    calls = [asyncio.create_task(_call(narrow, number)) for number in range(20)]
    await asyncio.sleep(0)
    for call in calls[1::2]:
        call.cancel()
    await asyncio.wait(calls)
    assert [call.cancelled() for call in calls] == [False, True] * 10
    await _call(narrow, 1)


async def _call(session: Session, number: int) -> None:
    if number % 4:
        assert await session.execute(READ, (f"session-{number}",)) == []
    else:
        await session.execute_batch([(WRITE, (f"written-{number}", 1))] * 2)


async def test_a_call_that_finds_no_room_in_time_is_told_so(narrow: Session) -> None:
    """Waiting for room is part of a call's time."""
    first = asyncio.create_task(narrow.execute_many(READ, [("nobody",)] * 500))
    await asyncio.sleep(0)
    outcomes = await asyncio.gather(
        *(narrow.execute(READ, ("nobody",), timeout=1e-4) for _ in range(20)),
        return_exceptions=True,
    )
    assert all("didn't answer within" in str(outcome) for outcome in outcomes)
    assert await first == [[]] * 500
