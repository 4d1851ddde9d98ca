"""The sequence worker as a process on real Kafka and Cassandra: what it stores and survives."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer, TopicPartition

from streams import kafka
from streams.events import Event, Forget, encode_record
from streams.producer import EventProducer
from streams.settings import Settings
from tests.worker_platform import (
    Platform,
    comparable,
    expected_sequence,
    wait_until,
)

OUTCOMES = ("applied", "duplicate", "too_old", "forgotten", "dead_lettered", "filtered")
TYPES = ("impression", "view", "click", "like", "share", "nobody_declared_this")


def make_events(count: int, *, users: int, seed: int, spread_ms: int = 600_000) -> list[Event]:
    """Events of a few users: late ones, equal times, types that no view takes."""
    chance = random.Random(seed)
    now = int(time.time() * 1000)
    return [
        Event(
            event_id=f"{seed}-{number}",
            user_id=f"user-{chance.randrange(users)}",
            item_id=f"item-{chance.randrange(1000)}",
            event_type=chance.choice(TYPES),
            event_time=now - chance.randrange(spread_ms) // 1000 * 1000,
            surface=chance.choice((None, "feed", "reels")),
            value=chance.choice((None, 1.5)),
        )
        for number in range(count)
    ]


def with_copies(events: list[Event], share: float, seed: int) -> list[Event]:
    """The events, some of them twice, out of order."""
    chance = random.Random(seed)
    copies = events + [event for event in events if chance.random() < share]
    chance.shuffle(copies)
    return copies


def produce(settings: Settings, records: Iterable[Event | Forget]) -> None:
    with EventProducer(settings) as producer:
        for record in records:
            producer.send_blocking(record)


def produce_raw(settings: Settings, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
    with EventProducer(settings) as producer:
        for key, value in records:
            producer.send_raw_blocking(key, value)


def check_sequences(platform: Platform, records: list[Event | Forget]) -> None:
    users = sorted({record.user_id for record in records})
    stored = platform.sequences(users)
    for (user, name), found in stored.items():
        expected = expected_sequence(records, user, platform.views.sequences[name])
        assert comparable(found) == comparable(expected), (user, name)


def check_balance(counters: dict[str, int]) -> None:
    """R4."""
    assert counters["consumed"] == sum(counters[name] for name in OUTCOMES), counters


def check_refreshed(platform: Platform, records: list[Event | Forget]) -> None:
    """Every user with events of a view that feeds a representation was asked for."""
    types = {kind for view in platform.views.sequences.values() for kind in view.event_types}
    users = {r.user_id for r in records if isinstance(r, Event) and r.event_type in types}
    assert {request.user_id for request in platform.refresh_requests()} == users


def test_events_become_sequences_and_refresh_requests(platform: Platform) -> None:
    records = with_copies(make_events(3_000, users=20, seed=1), 0.1, seed=2)
    worker = platform.worker().wait_ready()
    produce(platform.settings, records)
    platform.wait_caught_up()
    check_sequences(platform, list(records))
    check_refreshed(platform, list(records))
    state = worker.state()
    check_balance(state["counters"])
    assert state["counters"]["consumed"] == len(records)
    assert state["counters"]["filtered"] == sum(r.event_type == TYPES[-1] for r in records)
    assert state["lag"] == 0
    assert state["epoch"] == 1
    for number, counts in state["counters_by_partition"].items():
        check_balance(counts)
        assert state["partitions"][number]["committed"] == counts["consumed"]
    assert worker.terminate() == 0
    assert worker.url() is None


def test_long_sequences_take_late_events_after_a_restart(platform: Platform) -> None:
    """Late events fall into chunks that the new process has to read."""
    events = make_events(6_000, users=2, seed=3)
    in_order = sorted(events, key=lambda event: event.event_time)
    late = random.Random(4).sample(in_order, 300)
    first = [event for event in in_order if event not in set(late)]
    worker = platform.worker().wait_ready()
    produce(platform.settings, first)
    platform.wait_caught_up()
    assert worker.terminate() == 0
    worker = platform.worker().wait_ready()
    produce(platform.settings, late)
    platform.wait_caught_up()
    check_sequences(platform, list(events))


FIELDS: dict[str, Any] = {
    "event_id": "e",
    "user_id": "u",
    "item_id": "i",
    "event_type": "view",
    "event_time": 1,
}


def changed(**fields: Any) -> bytes:
    """An event as JSON; a field given as None is left out."""
    merged = FIELDS | fields
    return json.dumps({k: v for k, v in merged.items() if v is not None}).encode()


BROKEN: dict[str, list[tuple[bytes | None, bytes | None]]] = {
    "null_value": [(b"u", None)],
    "not_utf8": [(b"u", b'{"event_id": "\xff\xfe"}')],
    "not_json": [(b"u", b"not json"), (b"u", b""), (b"u", b'{"event_id": "e"')],
    "missing_field": [(b"u", changed(event_time=None))],
    "wrong_type": [(b"7", changed(user_id=7))],
    "invalid_value": [
        (b"", changed(user_id="")),
        (b"u", changed(value=float("nan"))),
        (b"u", changed(attributes={f"a{n}": "x" * 60_000 for n in range(15)})),
    ],
    "unsupported_schema": [(b"u", changed(schema=99))],
    "key_mismatch": [(None, changed()), (b"other", changed())],
    "future_event_time": [
        (b"u", changed(event_time=2**52)),
        (b"u", encode_record(Forget("u", "f", 2**52))),
    ],
}


def test_broken_records_end_as_dead_letters_and_good_ones_around_them_count(
    platform: Platform,
) -> None:
    bad = [(reason, *record) for reason, records in BROKEN.items() for record in records]
    good = [Event(f"good-{n}", "u", f"item-{n}", "view", 1_000 + n) for n in range(len(bad))]
    mixed: list[tuple[bytes | None, bytes | None]] = []
    for (_, key, value), event in zip(bad, good, strict=True):
        mixed += [(key, value), (b"u", encode_record(event))]
    produce_raw(platform.settings, mixed)
    worker = platform.worker().wait_ready()
    platform.wait_caught_up()
    check_sequences(platform, list(good))
    letters = kafka.list_dead_letters(platform.settings.kafka, 1_000)
    found = [(letter.reason, letter.key, letter.value) for letter in letters]
    assert sorted(found, key=repr) == sorted(bad, key=repr)
    for letter in letters:
        assert letter.detail
        assert letter.origin_topic == platform.settings.kafka.events_topic
        assert letter.origin_timestamp > 0
        original = next(
            kafka.read_range(
                platform.settings.kafka,
                letter.origin_topic,
                letter.origin_partition,
                letter.origin_offset,
                letter.origin_offset + 1,
            )
        )
        assert (original.key(), original.value()) == (letter.key, letter.value)
    counters = worker.state()["counters"]
    check_balance(counters)
    assert counters["dead_lettered"] == len(bad)
    assert worker.state()["dead_letters"] == {k: len(v) for k, v in BROKEN.items()}


def test_a_dead_letter_can_be_repaired_and_replayed(platform: Platform) -> None:
    event = Event("e", "u", "i", "view", 1_000)
    produce_raw(platform.settings, [(b"wrong", encode_record(event)), (b"x", b"rubbish")])
    platform.worker().wait_ready()
    platform.wait_caught_up()
    with EventProducer(platform.settings) as producer:
        sent = kafka.replay_dead_letters(
            platform.settings.kafka,
            producer.send_raw_blocking,
            keep=lambda letter: letter.reason == "key_mismatch",
            edit=lambda letter: (b"u", letter.value),
        )
    assert sent == 1
    platform.wait_caught_up()
    check_sequences(platform, [event])


def test_records_outside_their_home_partition_are_sent_there(platform: Platform) -> None:
    """A Java producer's murmur2 puts keys elsewhere; one user must stay in one partition."""
    settings = platform.settings.kafka
    events = [Event(f"e{n}", f"user-{n % 40}", "i", "view", 1_000 + n) for n in range(400)]
    producer = Producer(
        {"bootstrap.servers": settings.bootstrap_servers, "partitioner": "murmur2_random"}
    )
    for event in events:
        producer.produce(settings.events_topic, encode_record(event), event.user_id)
    producer.flush()
    worker = platform.worker().wait_ready()
    wait_until(
        lambda: worker.state().get("counters", {}).get("applied") == len(events),
        60,
        "every event is applied at home",
    )
    platform.wait_caught_up()
    counters = worker.state()["counters"]
    check_balance(counters)
    assert counters["forwarded"] > 0
    assert counters["filtered"] == counters["forwarded"]
    assert counters["consumed"] == len(events) + counters["forwarded"]
    check_sequences(platform, list(events))


def test_a_forgotten_user_stays_forgotten(platform: Platform) -> None:
    before = [Event(f"b{n}", "u", f"i{n}", "view", 1_000 + n) for n in range(300)]
    forget = Forget("u", "f", 1_500)
    after = [Event(f"a{n}", "u", f"i{n}", "view", 1_400 + n) for n in range(200)]
    worker = platform.worker().wait_ready()
    produce(platform.settings, before)
    platform.wait_caught_up()
    produce(platform.settings, [forget, *after, *before])
    platform.wait_caught_up()
    check_sequences(platform, [*before, forget, *after])
    assert {"forget"} <= {request.trigger for request in platform.refresh_requests()}
    counters = worker.state()["counters"]
    check_balance(counters)
    assert counters["forgotten"] == sum(e.event_time <= 1_500 for e in [*after, *before])


def test_too_many_bad_records_stop_the_worker(platform: Platform) -> None:
    good = make_events(200, users=5, seed=19)
    produce(platform.settings, good)
    worker = platform.worker(HEADWATER_SEQUENCE_WORKER__DEAD_LETTER_WINDOW="500").wait_ready()
    platform.wait_caught_up()
    produce_raw(platform.settings, [(b"u", b"rubbish")] * 5_000)
    assert worker.exit_code(60) == 1
    assert "DeadLetterLimit" in worker.output()
    assert platform.committed() >= len(good)
    assert kafka.count_dead_letters(platform.settings.kafka) < 4_000
    check_sequences(platform, list(good))


def test_a_recreated_topic_is_refused_until_an_epoch_is_opened(platform: Platform) -> None:
    settings = platform.settings
    before = make_events(300, users=5, seed=20)
    produce(settings, before)
    worker = platform.worker().wait_ready()
    platform.wait_caught_up()
    assert worker.terminate() == 0
    kafka.delete_topics(settings.kafka)
    wait_until(lambda: _recreated(settings), 30, "the topics are created again")
    refused = platform.worker()
    assert refused.exit_code(60) == 1
    assert "headwater log open-epoch" in refused.output()


def _recreated(settings: Settings) -> bool:
    return settings.kafka.events_topic in kafka.create_topics(settings.kafka)


def test_records_deleted_unread_are_reported_not_skipped(platform: Platform) -> None:
    settings = platform.settings
    produce(settings, make_events(400, users=40, seed=21))
    worker = platform.worker().wait_ready()
    platform.wait_caught_up()
    assert worker.terminate() == 0
    produce(settings, make_events(400, users=40, seed=22))
    offsets = kafka.group_offsets(
        settings.kafka, settings.sequence_worker.group, settings.kafka.events_topic
    )
    admin = kafka.admin_client(settings.kafka)
    ends = [TopicPartition(settings.kafka.events_topic, o.partition, o.end) for o in offsets]
    for future in admin.delete_records(ends).values():
        future.result()
    refused = platform.worker()
    assert refused.exit_code(60) == 1
    assert "deleted unread" in refused.output()
    lost = kafka.skip_lost_offsets(
        settings.kafka, settings.sequence_worker.group, settings.kafka.events_topic
    )
    assert sum(lost.values()) == 400
    platform.worker().wait_ready()


async def _send_all(settings: Settings, records: list[Event]) -> None:
    async with EventProducer(settings) as producer:
        for record in records:
            await producer.send(record)


def test_metrics_are_exposed_and_stages_measured(platform: Platform) -> None:
    worker = platform.worker().wait_ready()
    now = int(time.time() * 1000)
    events = [Event(f"e{n}", f"user-{n}", "i", "view", now) for n in range(50)]
    asyncio.run(_send_all(platform.settings, events))
    platform.wait_caught_up()
    status, body = worker.get("metrics")
    assert status == 200
    assert re.search(r'^headwater_records_total\{[^}]*outcome="applied"', body, re.MULTILINE)
    stages = worker.state()["stages"]
    for stage in ("broker_to_folded", "folded_to_stored", "stored_to_requested"):
        assert stages[f"{stage}/live"]["count"] == len(events)
