"""The encoder worker as a process, with the sequence worker, on real Kafka, Cassandra and Triton.

Triton serves a stand-in whose vectors a test can compute; see tests/doubles/encoder_model.py.
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infra.local.stack import LocalStack
from streams import kafka
from streams.encoder_input import EncoderInput
from streams.encoding import EncoderClient
from streams.errors import EncoderMismatch, HeadwaterError
from streams.events import Event, Forget
from streams.producer import EventProducer, OutgoingRecord, RecordSender
from streams.representation_store import RepresentationStore
from streams.representations import EncoderVersion, Representation, RepresentationView, VersionState
from streams.sequences import stable_hash
from tests.encoder_double import ENCODER, MISBEHAVIOUR, activate, in_store
from tests.worker_platform import Platform, expected_sequence, wait_until


def representations(
    platform: Platform, users: list[str], version: str = "1"
) -> dict[str, Representation]:
    """The stored ones by user."""

    async def call(store: RepresentationStore) -> dict[str, Representation]:
        found = {}
        for user, item in zip(users, await store.read_many(ENCODER, version, users), strict=True):
            assert not isinstance(item, HeadwaterError), item
            if item is not None:
                found[user] = item
        return found

    return in_store(platform, call)


def expected_vector(
    platform: Platform, view: RepresentationView, records: list[Event | Forget], user: str, v: int
) -> list[float]:
    """What the stand-in answers for the newest events of all views."""
    merged = sorted(
        (
            event
            for name in view.sequences
            for event in expected_sequence(records, user, platform.views.sequences[name])
        ),
        key=lambda event: event.event_time,
    )[-view.max_length :]
    values = [event.value for event in merged if event.value == event.value]
    return [
        len(merged),
        sum(stable_hash(event.item_id) % 1000 for event in merged),
        sum(stable_hash(event.surface) % 1000 for event in merged),
        sum(values),
        merged[-1].event_time // 1000,
        v,
        1,
    ]


def produce(platform: Platform, records: list[Any]) -> None:
    with EventProducer(platform.settings) as producer:
        for record in records:
            producer.send_blocking(record)


def events_of(users: list[str], count: int, *, start: int, item: str = "item") -> list[Event]:
    return [
        Event(
            f"{user}-{start}-{n}",
            user,
            f"{item}-{n}" if item == "item" else item,
            ("view", "like", "click")[n % 3],
            start + 1_000 * n,
            surface=("feed", None)[n % 2],
            value=(0.5, None)[n % 2],
        )
        for n in range(count)
        for user in users
    ]


def refresh_lag(platform: Platform) -> int:
    settings = platform.settings
    offsets = kafka.group_offsets(
        settings.kafka, settings.encoder_worker.group, settings.kafka.refresh_topic
    )
    return sum(found.lag for found in offsets)


def wait_encoded(platform: Platform, seconds: float = 90.0) -> None:
    platform.wait_caught_up(seconds)
    wait_until(lambda: refresh_lag(platform) == 0, seconds, "every request is acknowledged")


def check_vectors(
    platform: Platform, records: list[Event | Forget], users: list[str], version: int = 1
) -> None:
    view = platform.views.representations["user_representation"]
    found = representations(platform, users, str(version))
    assert set(found) == set(users)
    for user, item in found.items():
        expected = expected_vector(platform, view, records, user, version)
        np.testing.assert_allclose(item.vector[: len(expected)], expected, rtol=1e-6)
        assert item.as_of // 1000 == expected[4]


USERS = [f"user-{n}" for n in range(30)]
NOW = int(time.time() * 1000) - 3_600_000


def test_sequences_become_representations(encoding: Platform) -> None:
    records = events_of(USERS, 60, start=NOW)
    sequence, encoder = encoding.worker().wait_ready(), encoding.worker("encoder").wait_ready()
    produce(encoding, records)
    wait_encoded(encoding)
    check_vectors(encoding, list(records), USERS)
    state = encoder.state()
    counters = state["counters"]
    assert counters["consumed"] == counters["coalesced"] + counters["users"]
    assert counters["users"] == sum(counters[name] for name in ("encoded", "current", "empty"))
    assert state["versions"] == {ENCODER: "1"}
    assert state["lag"] == 0
    assert encoder.terminate() == 0
    assert sequence.terminate() == 0


def test_killed_and_restarted_everyone_is_encoded(encoding: Platform) -> None:
    records = events_of(USERS, 40, start=NOW)
    encoding.worker().wait_ready()
    for number, step in enumerate(("before_encode:2", "after_encode:2", "before_commit:1")):
        doomed = encoding.worker("encoder", HEADWATER_FAULT=f"kill:{step}")
        produce(encoding, records[number::4])
        assert doomed.exit_code(60) == -signal.SIGKILL, doomed.output()
    produce(encoding, records[3::4])
    encoding.worker("encoder").wait_ready()
    wait_encoded(encoding)
    check_vectors(encoding, list(records), USERS)


def test_bad_vectors_and_refused_sequences_are_left_out_alone(encoding: Platform) -> None:
    good = events_of(USERS, 6, start=NOW)
    bad = [
        event
        for name, item in MISBEHAVIOUR.items()
        for event in events_of([f"{name}-user"], 3, start=NOW, item=item)
    ]
    encoding.worker().wait_ready()
    encoder = encoding.worker("encoder").wait_ready()
    produce(encoding, [*good, *bad])
    wait_encoded(encoding)
    check_vectors(encoding, list(good), USERS)
    assert not representations(encoding, [f"{name}-user" for name in MISBEHAVIOUR])
    assert encoder.state()["counters"]["rejected"] >= len(MISBEHAVIOUR)


def test_a_new_version_is_used_within_seconds(encoding: Platform) -> None:
    first, later = events_of(USERS, 6, start=NOW), events_of(USERS[:9], 6, start=NOW + 100_000)
    encoding.worker().wait_ready()
    encoder = encoding.worker("encoder").wait_ready()
    produce(encoding, first)
    wait_encoded(encoding)
    activate(encoding, "2")
    began = time.monotonic()

    def used() -> bool:
        tick = Event(f"tick-{time.monotonic_ns()}", "ticker", "i", "view", NOW)
        produce(encoding, [tick])
        return bool(encoder.state()["versions"] == {ENCODER: "2"})

    wait_until(used, 20, "version 2 is used")
    assert time.monotonic() - began < 15
    produce(encoding, later)
    wait_encoded(encoding)
    check_vectors(encoding, [*first, *later], USERS[:9], 2)
    assert not representations(encoding, USERS[9:], "2")


def test_the_encoder_away_sequences_stay_fresh(encoding: Platform, lazy_stack: LocalStack) -> None:
    encoding.worker().wait_ready()
    encoder = encoding.worker("encoder", HEADWATER_TRITON__REQUEST_TIMEOUT_SECONDS="2").wait_ready()
    lazy_stack.triton.pause()
    records = events_of(USERS, 6, start=NOW)
    produce(encoding, records)
    encoding.wait_caught_up()
    wait_until(lambda: encoder.get("ready")[0] == 503, 30, "it says that it isn't ready")
    assert "Triton" in encoder.get("ready")[1]
    assert encoder.get("live")[0] == 200
    assert not representations(encoding, USERS)
    lazy_stack.triton.resume()
    wait_encoded(encoding)
    check_vectors(encoding, list(records), USERS)
    wait_until(lambda: encoder.get("ready")[0] == 200, 30, "it is ready again")


def test_without_an_active_version_requests_wait(platform: Platform, encoder_models: Path) -> None:
    assert encoder_models.is_dir()
    records = events_of(USERS[:3], 6, start=NOW)
    platform.worker().wait_ready()
    encoder = platform.worker("encoder").wait_ready()
    produce(platform, records)
    wait_until(lambda: encoder.get("ready")[0] == 503, 30, "it waits for a version")
    assert "no active version" in encoder.get("ready")[1]
    activate(platform, "2")
    wait_encoded(platform)
    check_vectors(platform, list(records), USERS[:3], 2)


def test_forgetting_reaches_every_version(encoding: Platform) -> None:
    records: list[Event | Forget] = [*events_of(["gone", "back"], 6, start=NOW)]
    encoding.worker().wait_ready()
    encoding.worker("encoder").wait_ready()
    produce(encoding, records)
    wait_encoded(encoding)
    old = representations(encoding, ["gone", "back"])

    async def copy(store: RepresentationStore) -> None:
        await store.add_version(EncoderVersion(ENCODER, "2", VersionState.READY, 1))
        await store.write_many(ENCODER, "2", list(old.items()))

    in_store(encoding, copy)
    more: list[Event | Forget] = [
        Forget("gone", "f1", NOW + 50_000),
        Forget("back", "f2", NOW + 3_500),
        *events_of(["gone"], 6, start=NOW),
    ]
    produce(encoding, more)
    wait_encoded(encoding)
    assert set(representations(encoding, ["gone", "back"], "1")) == {"back"}
    assert not representations(encoding, ["gone", "back"], "2")
    check_vectors(encoding, records + more, ["back"])


def test_what_is_no_request_ends_as_a_dead_letter(encoding: Platform) -> None:
    settings = encoding.settings

    async def send() -> None:
        sender = RecordSender(settings, "test")
        topic = settings.kafka.refresh_topic
        await sender.deliver(
            [OutgoingRecord(topic, b"u", b"rubbish"), OutgoingRecord(topic, b"u", None)]
        )
        await sender.close(5)

    asyncio.run(send())
    records = events_of(USERS[:3], 6, start=NOW)
    encoding.worker().wait_ready()
    encoding.worker("encoder").wait_ready()
    produce(encoding, records)
    wait_encoded(encoding)
    check_vectors(encoding, list(records), USERS[:3])
    letters = kafka.list_dead_letters(settings.kafka, 10)
    assert {letter.origin_topic for letter in letters} == {settings.kafka.refresh_topic}
    assert len(letters) == 2


def test_another_width_than_declared_is_refused(
    encoder_models: Path, lazy_stack: LocalStack
) -> None:
    assert encoder_models.is_dir()

    async def ask() -> None:
        client = EncoderClient(lazy_stack.settings.triton)
        one, zero = np.ones(1, np.int64), np.zeros(1, np.int64)
        batch = EncoderInput(np.array([0, 1]), one, one, zero, one, np.ones(1, np.float32))
        try:
            assert (await client.encode(ENCODER, "1", batch, 64)).usable.all()
            await client.encode(ENCODER, "1", batch, 32)
        finally:
            await client.close()

    with pytest.raises(EncoderMismatch, match="32"):
        asyncio.run(ask())
