"""Fault points, registration, health pages, starting positions."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest
from faust.types import TP

from streams.errors import ConfigError, LogMismatch
from streams.metrics import Metrics
from streams.settings import Settings
from streams.workers.fault_points import STEPS, FaultPoints
from streams.workers.health import HealthServer
from streams.workers.registration import (
    register,
    registered_workers,
    running_workers,
    unregister,
)
from streams.workers.transport import Consuming, _position

# -- fault points ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["kill", "kill:nowhere:1", "kill:after_fold", "explode:after_fold:1", "delay:after_fold:x"],
)
def test_a_fault_that_cant_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write kill:STEP:PASS"):
        FaultPoints(text)


async def test_delays_are_at_their_step_only() -> None:
    faults = FaultPoints("delay:before_refresh:30,kill:after_fold:99")
    loop = asyncio.get_running_loop()
    began = loop.time()
    await faults.reach("after_writes")
    assert loop.time() - began < 0.03
    await faults.reach("before_refresh")
    assert loop.time() - began >= 0.03


def test_a_kill_is_a_sigkill_at_its_pass() -> None:
    code = (
        "import asyncio\n"
        "from streams.workers.fault_points import FaultPoints\n"
        "faults = FaultPoints('kill:after_fold:2')\n"
        "asyncio.run(faults.reach('after_fold'))\n"
        "print('first', flush=True)\n"
        "asyncio.run(faults.reach('after_fold'))\n"
        "print('second', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == -9
    assert done.stdout == b"first\n"
    assert "after_fold" in STEPS


# -- registration ----------------------------------------------------------------------------------


def test_running_workers_are_found_and_killed_ones_known_until_they_are_replaced(
    tmp_path: Path,
) -> None:
    settings = Settings(home=str(tmp_path))
    assert running_workers(settings) == []
    path = register(settings, "sequence", "group", "http://127.0.0.1:1")
    (found,) = running_workers(settings)
    assert (found.role, found.pid, found.url) == ("sequence", os.getpid(), "http://127.0.0.1:1")
    # A process that has the id of one that ended, as after a restart of the machine.
    other = msgspec.structs.replace(found, role="encoder", pid=1, started="0")
    stale = path.with_name("encoder-1.json")
    stale.write_bytes(msgspec.json.encode(other))
    ended = msgspec.structs.replace(other, pid=2**22 + 5)
    gone = path.with_name(f"encoder-{ended.pid}.json")
    gone.write_bytes(msgspec.json.encode(ended))
    path.with_name("encoder-3.json").write_text("half a fi")
    # Nobody waits for a producer that was killed.
    sender = msgspec.structs.replace(ended, role="producer")
    path.with_name(f"producer-{sender.pid}.json").write_bytes(msgspec.json.encode(sender))
    assert running_workers(settings) == [found]
    assert registered_workers(settings) == [(other, False), (ended, False), (found, True)]
    register(settings, "reader", "group", "http://127.0.0.1:2")
    assert stale.exists()
    register(settings, "encoder", "group", "http://127.0.0.1:3")
    assert not stale.exists()
    assert not gone.exists()
    assert {one.role for one in running_workers(settings)} == {"sequence", "reader", "encoder"}
    unregister(path)
    assert {one.role for one in running_workers(settings)} == {"reader", "encoder"}


# -- health ----------------------------------------------------------------------------------------


class Health:
    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.partitions: list[str] = []

    def stalled(self) -> list[str]:
        return self.partitions

    def unready(self) -> list[str]:
        return self.reasons

    def state(self) -> dict[str, Any]:
        return {"answer": 42}


def fetch(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def test_pages_say_how_it_goes_and_why_not() -> None:
    health, refreshed = Health(), []
    server = HealthServer(health, Metrics(), lambda: refreshed.append(1))
    url = await server.start("127.0.0.1", 0)
    try:
        assert await asyncio.to_thread(fetch, f"{url}/ready") == (200, "ready\n")
        health.reasons = ["the store is away", "another"]
        assert await asyncio.to_thread(fetch, f"{url}/ready") == (
            503,
            "the store is away\nanother\n",
        )
        assert (await asyncio.to_thread(fetch, f"{url}/live"))[0] == 200
        health.partitions = ["partition 3: no progress"]
        assert (await asyncio.to_thread(fetch, f"{url}/live"))[0] == 503
        assert await asyncio.to_thread(fetch, f"{url}/state") == (200, '{"answer":42}')
        status, body = await asyncio.to_thread(fetch, f"{url}/metrics")
        assert status == 200
        assert "python_info" in body
        assert refreshed
        assert (await asyncio.to_thread(fetch, f"{url}/secrets"))[0] == 404
    finally:
        await server.stop()


# -- positions -------------------------------------------------------------------------------------

REFUSE = Consuming(role="sequence", topic="t", group="g", max_batch_records=1)
SKIP = Consuming(role="encoder", topic="t", group="g", max_batch_records=1, on_lost="skip")
TP3 = TP("t", 3)


def test_a_group_goes_on_where_it_left_off_and_a_new_one_begins_at_the_start() -> None:
    assert _position(REFUSE, TP3, 7, 2, 9) == 7
    assert _position(REFUSE, TP3, 9, 2, 9) == 9
    assert _position(REFUSE, TP3, None, 2, 9) == 2


def test_records_that_are_gone_are_never_passed_over_in_silence() -> None:
    with pytest.raises(LogMismatch, match="5 records were deleted unread"):
        _position(REFUSE, TP3, 2, 7, 9)
    with pytest.raises(LogMismatch, match="recreated or cut"):
        _position(REFUSE, TP3, 10, 0, 9)
    assert _position(SKIP, TP3, 2, 7, 9) == 7
