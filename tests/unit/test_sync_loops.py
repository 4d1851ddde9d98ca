"""Loops for sync callers, and recent values in a loop that stands still between calls."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from streams.recent import RecentValues
from streams.sync_loops import SyncLoops


@pytest.fixture
def loops() -> Iterator[SyncLoops]:
    made = SyncLoops()
    yield made
    made.close()


async def thread_name() -> str:
    return threading.current_thread().name


def test_a_lone_caller_runs_its_work_in_its_own_thread(loops: SyncLoops) -> None:
    assert loops.run(thread_name(), 1) == threading.current_thread().name


def test_errors_reach_the_caller_and_later_calls_work(loops: SyncLoops) -> None:
    async def fail() -> None:
        raise LookupError("nothing there")

    with pytest.raises(LookupError, match="nothing there"):
        loops.run(fail(), 1)
    assert loops.run(thread_name(), 1)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["own thread", "background"])
def test_a_call_ends_when_its_time_is_over(loops: SyncLoops, elsewhere: bool) -> None:
    ended = []

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    def call() -> None:
        with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
            loops.run(never(), 0.01)

    async def call_in_a_loop() -> None:
        call()
        assert loops.run(thread_name(), 1) == "headwater-loop"

    if elsewhere:
        asyncio.run(call_in_a_loop())
    else:
        call()
    assert ended == [True]


def test_callers_of_several_threads_dont_wait_for_each_other(loops: SyncLoops) -> None:
    """Each call needs the others to be under way, and can't end without them."""
    together = threading.Barrier(4)

    async def meet() -> str:
        await asyncio.to_thread(together.wait, 20)
        return await thread_name()

    with ThreadPoolExecutor(4) as threads:
        names = list(threads.map(lambda _: loops.run(meet(), 20), range(4)))
    assert names.count("headwater-loop") == 3


def test_a_caller_inside_of_a_running_loop_is_served_too(loops: SyncLoops) -> None:
    async def caller() -> str:
        return loops.run(thread_name(), 1)

    assert asyncio.run(caller()) == "headwater-loop"


def test_ctrl_c_ends_the_work_and_leaves_the_loop_usable(loops: SyncLoops) -> None:
    ended = []

    async def interrupted() -> None:
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            loops.run(interrupted(), 10)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == [True]
    assert loops.run(thread_name(), 1) == threading.current_thread().name


def test_closing_actions_run_in_every_loop_that_was_used() -> None:
    loops, closed = SyncLoops(), []

    async def note() -> None:
        closed.append(await thread_name())

    async def caller() -> str:
        return loops.run(thread_name(), 1)

    loops.at_close(note)
    loops.at_close(note)
    loops.run(thread_name(), 1)
    asyncio.run(caller())
    loops.close()
    assert sorted(closed) == sorted([threading.current_thread().name, "headwater-loop"])


def test_a_refresh_whose_loop_stood_still_isnt_taken_for_a_recent_one() -> None:
    now, asked = [0.0], []
    loop = asyncio.new_event_loop()
    loop.time = lambda: now[0]  # type: ignore[method-assign]

    async def fetch(key: str) -> int:
        asked.append(key)
        answer = len(asked)
        await asyncio.sleep(0)
        return answer

    values = RecentValues(fetch, fresh_seconds=2, stale_seconds=5)
    try:
        assert loop.run_until_complete(values.get("a")) == 1
        now[0] = 3.0
        assert loop.run_until_complete(values.get("a")) == 1  # and a refresh is under way
        now[0] = 100.0
        assert loop.run_until_complete(values.get("a")) == 3
    finally:
        loop.close()
