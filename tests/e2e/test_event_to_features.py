"""One event, the whole way: produced, folded, encoded, and read back through Feast.

Workers are started as a user starts them, by the command line.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streams.events import Event
from streams.producer import EventProducer
from streams.views import feature_store
from streams.workers.registration import running_workers
from tests.worker_platform import ROOT, Platform, wait_until

FEATURES = [
    "engagement:event_time",
    "engagement:item_id",
    "likes:item_id",
    "user_representation:vector",
    "user_representation:as_of",
    "user_representation:version",
]


@pytest.fixture
def workers(encoding: Platform) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """`headwater worker sequence` and `headwater worker encoder`."""
    environ = os.environ | encoding.environ
    started = {
        role: subprocess.Popen(
            [sys.executable, "-m", "streams.cli", "worker", role],
            env=environ,
            cwd=ROOT,
            stdout=(encoding.home / f"{role}.log").open("wb"),
            stderr=subprocess.STDOUT,
        )
        for role in ("sequence", "encoder")
    }
    try:
        wait_until(
            lambda: {w.role for w in running_workers(encoding.settings)} >= set(started),
            120,
            "both workers are registered",
        )
        yield started
    finally:
        for process in started.values():
            process.kill()
            process.wait(10)


def read(platform: Platform, user: str) -> dict[str, Any]:
    """What Feast answers for one user."""
    store = feature_store(platform.settings)
    answer = store.get_online_features(
        features=FEATURES, entity_rows=[{"user_id": user}], full_feature_names=True
    )
    return {name: values[0] for name, values in answer.to_dict().items()}


async def send(platform: Platform, event: Event) -> None:
    async with EventProducer(platform.settings) as producer:
        await producer.send(event, wait="readable", timeout=60)


def test_one_event_is_read_back_through_feast(
    encoding: Platform, workers: dict[str, subprocess.Popen[bytes]]
) -> None:
    now = int(time.time() * 1000)
    asyncio.run(send(encoding, Event("e1", "ada", "film-1", "view", now, surface="feed")))
    assert read(encoding, "ada")["engagement__item_id"] == ["film-1"]
    found = wait_until(
        lambda: (answer := read(encoding, "ada"))["user_representation__vector"] and answer,
        60,
        "ada is encoded",
    )
    assert found["engagement__event_time"] == [now]
    assert (found["user_representation__as_of"], found["user_representation__version"]) == (
        now,
        "1",
    )
    assert found["user_representation__vector"][0] == 1, "the stand-in counts events"

    asyncio.run(send(encoding, Event("e2", "ada", "film-2", "like", now + 1)))
    wait_until(
        lambda: read(encoding, "ada")["user_representation__as_of"] == now + 1,
        60,
        "the like is encoded",
    )
    assert read(encoding, "ada")["user_representation__vector"][0] == 2
    assert read(encoding, "nobody")["user_representation__vector"] is None

    for process in workers.values():
        process.send_signal(signal.SIGTERM)
    assert {role: process.wait(60) for role, process in workers.items()} == {
        "sequence": 0,
        "encoder": 0,
    }, _logs(encoding.home)
    assert running_workers(encoding.settings) == []


def _logs(home: Path) -> str:
    return "\n".join(path.read_text() for path in home.glob("*.log"))
