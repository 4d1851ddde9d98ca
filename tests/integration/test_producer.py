"""EventProducer against a real broker, and a real sequence worker for what is readable."""

from __future__ import annotations

import asyncio
import time
import urllib.request
import zlib

import msgspec
import pytest

from infra.local.stack import LocalStack
from streams import kafka
from streams.errors import DeliveryFailed, InvalidRecord, RecordTooLarge
from streams.events import Event, Forget, decode_record
from streams.monitor.exposition import Exposed, parse
from streams.producer import EventProducer, OutgoingRecord, RecordSender
from streams.settings import Settings
from streams.workers.exposing import expose_sends
from streams.workers.registration import running_workers
from tests.worker_platform import PARTITIONS, Platform

NOW = int(time.time() * 1000)


def event(number: int, user: str = "u") -> Event:
    return Event(f"e{number}", user, "item", "view", NOW + number)


def produced(settings: Settings) -> dict[int, list[Event | Forget]]:
    """All records of the events topic, per partition."""
    topic = settings.kafka.events_topic
    return {
        bounds.partition: [
            decode_record(message.value())
            for message in kafka.read_range(
                settings.kafka, topic, bounds.partition, bounds.start, bounds.end
            )
        ]
        for bounds in kafka.topic_bounds(settings.kafka, topic)
    }


async def test_events_lie_in_their_home_partition_in_order(platform: Platform) -> None:
    sent = [event(n, f"user-{n % 7}") for n in range(500)]
    async with EventProducer(platform.settings) as producer:
        for one in sent:
            await producer.send(one)
        assert producer.produced == len(sent)
    found = produced(platform.settings)
    for number, records in found.items():
        home = [e for e in sent if zlib.crc32(e.user_id.encode()) % PARTITIONS == number]
        assert records == home


def test_without_a_loop(platform: Platform) -> None:
    with EventProducer(platform.settings) as producer:
        for n in range(100):
            producer.send_blocking(event(n))
        producer.flush_blocking()
        assert producer.in_flight == 0
    assert sum(len(records) for records in produced(platform.settings).values()) == 100


async def test_a_full_queue_makes_the_sender_wait(platform: Platform) -> None:
    """Back-pressure instead of loss."""
    small = msgspec.structs.replace(
        platform.settings,
        producer=msgspec.structs.replace(platform.settings.producer, max_in_flight=10),
    )
    highest = 0
    async with EventProducer(small) as producer:
        for n in range(2_000):
            await producer.send(event(n))
            highest = max(highest, producer.in_flight)
    assert highest <= 10
    assert sum(len(records) for records in produced(platform.settings).values()) == 2_000


async def test_what_is_sent_is_counted_and_exposed(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As any program may do it; `headwater produce` does."""
    few = msgspec.structs.replace(platform.settings.producer, max_in_flight=10)
    settings = msgspec.structs.replace(platform.settings, producer=few)
    async with EventProducer(settings) as producer:
        url = expose_sends(producer.counts, settings, time.time)
        (registered,) = running_workers(settings)
        assert (registered.role, registered.url) == ("producer", url)
        for n in range(500):
            await producer.send(event(n))
        await producer.flush()
        found = await asyncio.to_thread(exposed_at, url)
        assert found.counters["headwater_records_sent", ()] == 500
        assert found.counters["headwater_records_answered", ("delivered",)] == 500
        assert found.counters["headwater_records_answered", ("failed",)] == 0
        assert found.gauges["headwater_records_in_flight", ()] == 0
        assert found.counters["headwater_sender_waiting_seconds", ()] > 0
        assert found.histograms["headwater_delivery_seconds", ()].sum() == 500
        # Larger than the topic takes, smaller than the settings say.
        monkeypatch.setattr(producer, "_max_bytes", 10_000_000)
        with pytest.raises(RecordTooLarge):
            await producer.send_raw(b"u", b"x" * 1_500_000, wait="delivered")
        found = await asyncio.to_thread(exposed_at, url)
        assert found.counters["headwater_records_answered", ("failed",)] == 1
        assert found.histograms["headwater_delivery_seconds", ()].sum() == 500


def exposed_at(url: str) -> Exposed:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        return parse(answer.read().decode())


async def test_delivered_says_where(platform: Platform) -> None:
    async with EventProducer(platform.settings) as producer:
        first = await producer.send(event(1), wait="delivered")
        second = await producer.send(event(2), wait="delivered")
    assert first is not None
    assert second is not None
    assert first.partition == second.partition == zlib.crc32(b"u") % PARTITIONS
    assert (first.offset, second.offset) == (0, 1)


async def test_readable_returns_when_the_sequence_shows_it(platform: Platform) -> None:
    worker = await asyncio.to_thread(platform.worker)
    await asyncio.to_thread(worker.wait_ready)
    async with EventProducer(platform.settings) as producer:
        one = event(1)
        await producer.send(one, wait="readable")
        stored = await asyncio.to_thread(platform.sequences, ["u"])
        assert [kept.event_id for kept in stored["u", "engagement"]] == ["e1"]
        await producer.send(Forget("u", "f", NOW + 10), wait="readable")
        stored = await asyncio.to_thread(platform.sequences, ["u"])
        assert not stored["u", "engagement"]
        with pytest.raises(TimeoutError, match="readable after"):
            await producer.send(event(2), wait="readable", timeout=0.5)
        with pytest.raises(ValueError, match="no declared view"):
            await producer.send(Event("x", "u", "i", "unheard", NOW), wait="readable")


async def test_what_is_too_large_is_refused_before_it_is_sent(platform: Platform) -> None:
    limit = platform.settings.kafka.max_record_bytes
    async with EventProducer(platform.settings) as producer:
        with pytest.raises(RecordTooLarge, match="max_record_bytes"):
            await producer.send_raw(b"u", b"x" * limit)
        await producer.send_raw(b"u", b"x" * (limit - 200), wait="delivered")
        with pytest.raises(InvalidRecord):
            await producer.send(Event("", "u", "item", "view", NOW))
    assert producer.produced == 1


async def test_what_the_topic_refuses_surfaces(platform: Platform) -> None:
    """A producer whose settings allow more than the topic takes."""
    settings = platform.settings
    generous = msgspec.structs.replace(
        settings,
        kafka=msgspec.structs.replace(settings.kafka, max_record_bytes=4_000_000),
    )
    async with EventProducer(generous) as producer:
        with pytest.raises(RecordTooLarge):
            await producer.send_raw(b"u", b"x" * 1_500_000, wait="delivered")


async def test_no_broker_is_an_error_of_the_next_call(
    platform: Platform, lazy_stack: LocalStack
) -> None:
    settings = platform.settings
    impatient = msgspec.structs.replace(
        settings,
        producer=msgspec.structs.replace(settings.producer, delivery_timeout_seconds=2.0),
    )
    producer = EventProducer(impatient)
    await producer.send(event(1), wait="delivered")
    lazy_stack.kafka.pause()
    await producer.send(event(2))
    with pytest.raises(DeliveryFailed):
        await producer.send(event(3), wait="delivered")
    with pytest.raises(DeliveryFailed, match="1 records were not delivered"):
        await producer.flush()
    lazy_stack.kafka.resume()
    async with producer:
        await producer.send(event(4), wait="delivered")


async def test_a_batch_of_records_is_delivered_or_refused(platform: Platform) -> None:
    settings = platform.settings
    sender = RecordSender(settings, "test")
    topic = settings.kafka.dead_letters_topic
    await sender.deliver([OutgoingRecord(topic, b"k", b"v", [("a", b"1")])] * 3)
    await sender.deliver([])
    largest = settings.kafka.max_record_bytes
    await sender.deliver([OutgoingRecord(topic, b"k", b"x" * largest)])
    with pytest.raises(RecordTooLarge):
        await sender.deliver([OutgoingRecord(topic, b"k", b"x" * (largest + 200_000))])
    with pytest.raises(DeliveryFailed):
        await sender.deliver([OutgoingRecord("no-such-topic", b"k", b"v")])
    assert await sender.close(5) == 0
    assert kafka.count_dead_letters(settings.kafka) == 4
