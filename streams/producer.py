"""Producing: `EventProducer` for applications, `RecordSender` for the workers' own records.

Both are idempotent with acks=all and partition by librdkafka's `consistent` (crc32 of the key), the
partitioner that the sequence worker calls a key's home. Neither drops a record: a full queue makes
the caller wait, and what the broker doesn't take surfaces as an error.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from streams.errors import DeliveryFailed, RecordTooLarge
from streams.events import Event, Forget, encode_record
from streams.sends import SendCounts
from streams.settings import Settings

# What the batch and record framing add to key, value and headers.
RECORD_OVERHEAD = 128
_POLL_SECONDS = 0.1
_FULL_SECONDS = 0.005
# Bytes in librdkafka's queue; with its copies this is what a producer may hold of memory.
_QUEUE_KIB = 128 * 1024

# Header with the host and process that sent a record.
PRODUCER_HEADER = "producer"
_SIGNED_ONE_IN = 16
_SIGNATURE_ROOM = 512

Headers = list[tuple[str, bytes]] | None
Wait = Literal["delivered", "readable"] | None
# Tells whether an event can be read from its sequences by now.
IsReadable = Callable[[Event | Forget], Awaitable[bool]]


class OutgoingRecord(NamedTuple):
    """A record to produce; `headers` as Kafka has them."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = None


class Delivered(NamedTuple):
    """Where the broker put a record; `offset` -1 if nobody asked for it."""

    partition: int
    offset: int


def delivery_error(error: KafkaError, topic: str) -> DeliveryFailed | RecordTooLarge:
    """The platform's error for what a delivery report says."""
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return RecordTooLarge(f"a record is larger than topic {topic} takes: {error.str()}")
    return DeliveryFailed(f"a record for topic {topic} was not delivered: {error.str()}")


class _Connection:
    """A librdkafka producer and the thread that serves its delivery reports."""

    def __init__(self, settings: Settings, client_id: str) -> None:
        self._config = {
            "bootstrap.servers": settings.kafka.bootstrap_servers,
            "client.id": client_id,
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "consistent",
            "linger.ms": settings.producer.linger_ms,
            "batch.size": min(262_144, settings.kafka.max_record_bytes),
            # The topic's own limit decides; dead letters are larger than their originals.
            "message.max.bytes": max(2 * settings.kafka.max_record_bytes, 1_000_000),
            "delivery.timeout.ms": int(settings.producer.delivery_timeout_seconds * 1000),
            "queue.buffering.max.messages": settings.producer.max_in_flight,
            "queue.buffering.max.kbytes": _QUEUE_KIB,
            "log_level": 2,
        }
        self._closed = threading.Event()
        self._producer = Producer(self._config)
        self._thread = threading.Thread(target=self._serve, name=client_id, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._closed.is_set():
            self._producer.poll(_POLL_SECONDS)

    def produce(
        self,
        record: OutgoingRecord,
        on_delivery: Callable[[KafkaError | None, Message], None],
    ) -> None:
        """Hand a record over. Raises BufferError while the queue is full, RecordTooLarge,
        DeliveryFailed."""
        try:
            self._producer.produce(
                record.topic,
                value=record.value,
                key=record.key,
                headers=record.headers,
                on_delivery=on_delivery,
            )
        except KafkaException as error:
            if error.args[0].fatal():
                self._renew()
            raise delivery_error(error.args[0], record.topic) from error

    def _renew(self) -> None:
        """An idempotent producer that lost its sequence numbers is of no more use; what it still
        held is reported as failed."""
        useless, self._producer = self._producer, Producer(self._config)
        useless.purge()
        useless.flush(_POLL_SECONDS)

    def flush(self, timeout: float) -> int:
        """Wait for all reports; answers how many are still missing."""
        return int(self._producer.flush(timeout))

    def close(self, timeout: float) -> int:
        """Flush, then end the thread; answers how many reports are missing."""
        missing = self.flush(timeout)
        self._closed.set()
        self._thread.join(1 + _POLL_SECONDS)
        return missing


class _Batch:
    """Counts the delivery reports of one `deliver` call. Touched by the connection's thread."""

    __slots__ = ("error", "future", "loop", "missing", "topic")

    def __init__(self, loop: asyncio.AbstractEventLoop, missing: int) -> None:
        self.loop = loop
        self.future: asyncio.Future[None] = loop.create_future()
        self.missing = missing
        self.error: Exception | None = None

    def report(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self.error is None:
            self.error = delivery_error(error, message.topic())
        self.missing -= 1
        if self.missing == 0 and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.finish)

    def finish(self) -> None:
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(self.error)


class RecordSender:
    """Delivers the workers' own records: refresh requests, dead letters, forwarded records."""

    def __init__(self, settings: Settings, client_id: str) -> None:
        self._connection = _Connection(settings, client_id)

    async def deliver(self, records: Iterable[OutgoingRecord]) -> None:
        """Return when the brokers have all of them. Raises DeliveryFailed or RecordTooLarge if
        any was refused; others of the same call may have been delivered then."""
        outgoing = list(records)
        if not outgoing:
            return
        batch = _Batch(asyncio.get_running_loop(), len(outgoing))
        for record in outgoing:
            await _when_room(self._connection.produce, record, batch.report)
        await batch.future

    async def close(self, timeout: float) -> int:
        """Answers how many records were still on their way when `timeout` seconds were over."""
        return await asyncio.to_thread(self._connection.close, timeout)


class EventProducer:
    """Produces events and deletions to the events topic.

        async with EventProducer(load_settings()) as producer:
            await producer.send(event)                    # queued; waits while the queue is full
            await producer.send(event, wait="delivered")  # the brokers have it
            await producer.send(event, wait="readable")   # it shows in the user's sequences

    or, without a loop, `with EventProducer(settings) as producer: producer.send_blocking(event)`.
    Leaving the block waits for what is queued. A record that wasn't delivered raises DeliveryFailed
    from the call that waited for it, else from the next call. One producer is for one process, any
    number of tasks, or one thread.
    """

    def __init__(self, settings: Settings, *, is_readable: IsReadable | None = None) -> None:
        """`is_readable` is asked for `wait="readable"`; the default asks the store."""
        self._settings = settings
        self._topic = settings.kafka.events_topic
        self._max_bytes = settings.kafka.max_record_bytes
        self._max_in_flight = settings.producer.max_in_flight
        self._is_readable = is_readable
        self._own_readable: Any = None
        self._connection = _Connection(settings, "headwater-producer")
        name = f"{socket.gethostname()}-{os.getpid()}"
        self._signature = [(PRODUCER_HEADER, name.encode("utf-8", "replace"))]
        self._room = threading.Condition()
        self._failures: list[Exception] = []
        self.counts = SendCounts()

    @property
    def produced(self) -> int:
        """Records that were sent."""
        return self.counts.sent

    @property
    def in_flight(self) -> int:
        """Records that were sent and not yet confirmed."""
        return self.counts.in_flight

    # -- async ---------------------------------------------------------------------------------

    async def send(
        self, event: Event | Forget, wait: Wait = None, *, timeout: float = 30.0
    ) -> Delivered | None:
        """Send an event; answers where it lies if `wait` is given.

        `timeout` (seconds) bounds `wait="readable"`. Raises InvalidRecord, RecordTooLarge,
        DeliveryFailed, TimeoutError.
        """
        delivered = await self._send(event.user_id.encode(), encode_record(event), wait is not None)
        if wait == "readable":
            await self._wait_readable(event, timeout)
        return delivered

    async def send_raw(
        self,
        key: bytes | None,
        value: bytes | None,
        *,
        headers: Headers = None,
        wait: Literal["delivered"] | None = None,
    ) -> Delivered | None:
        """Send a record as it is, valid or not: for replays and for tests of bad input."""
        return await self._send(key, value, wait is not None, headers)

    async def _send(
        self, key: bytes | None, value: bytes | None, wait: bool, headers: Headers = None
    ) -> Delivered | None:
        self._raise_failure()
        record = self._record(key, value, headers)
        if self.in_flight >= self._max_in_flight:
            await asyncio.to_thread(self._wait_for_room)
        if not wait:
            await _when_room(self._produce, record, self._report)
            return None
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Delivered] = loop.create_future()

        def report(error: KafkaError | None, message: Message) -> None:
            self._count_done(error, message)
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, future, error, message)

        await _when_room(self._produce, record, report)
        return await future

    async def flush(self) -> None:
        """Return when all that was sent is confirmed. Raises DeliveryFailed."""
        await asyncio.to_thread(self._flush)
        self._raise_failure()

    async def _wait_readable(self, event: Event | Forget, timeout: float) -> None:
        if self._is_readable is None:
            # By name: it brings Feast and Cassandra's driver, seconds that no other producer needs.
            module = importlib.import_module("streams.readable")
            self._own_readable = self._is_readable = module.Readable(self._settings)
        pause = 0.005
        try:
            async with asyncio.timeout(timeout):
                while not await self._is_readable(event):
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.5, 0.25)
        except TimeoutError:
            raise TimeoutError(
                f"event {event.event_id} was delivered, but isn't readable after {timeout:g} s: "
                "is the sequence worker up, does a view take its event type, is it recent enough?"
            ) from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        missing = await asyncio.to_thread(self._close)
        if self._own_readable is not None:
            await self._own_readable.close()
        self._after_close(missing, error)

    # -- blocking ------------------------------------------------------------------------------

    def send_blocking(self, event: Event | Forget) -> None:
        """`send` for code without an event loop."""
        self.send_raw_blocking(event.user_id.encode(), encode_record(event))

    def send_raw_blocking(
        self, key: bytes | None, value: bytes | None, headers: Headers = None
    ) -> None:
        """`send_raw` for code without an event loop."""
        self._raise_failure()
        record = self._record(key, value, headers)
        self._wait_for_room()
        while True:
            try:
                return self._produce(record, self._report)
            except BufferError:
                time.sleep(_FULL_SECONDS)

    def flush_blocking(self) -> None:
        """`flush` for code without an event loop."""
        self._flush()
        self._raise_failure()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._after_close(self._close(), error)

    # -- inside --------------------------------------------------------------------------------

    def _record(self, key: bytes | None, value: bytes | None, headers: Headers) -> OutgoingRecord:
        size = len(key or b"") + len(value or b"") + RECORD_OVERHEAD
        size += sum(len(name) + len(content) + 8 for name, content in headers or ())
        if size > self._max_bytes:
            raise RecordTooLarge(
                f"the record takes {size} bytes; topic {self._topic} takes {self._max_bytes} "
                "(setting kafka.max_record_bytes): shorten its attributes"
            )
        # A few records say who sent them: enough to tell a producer whose clock is wrong.
        room = self._max_bytes - size
        if headers is None and self.produced % _SIGNED_ONE_IN == 0 and room > _SIGNATURE_ROOM:
            headers = self._signature
        return OutgoingRecord(self._topic, key, value, headers)

    def _produce(self, record: OutgoingRecord, report: Callable[..., None]) -> None:
        # Counted first: the report may come before `produce` returns.
        self.counts.sent += 1
        try:
            self._connection.produce(record, report)
        except BaseException as error:
            self.counts.sent -= 1
            if isinstance(error, BufferError):
                self.counts.waited_seconds += _FULL_SECONDS  # the caller tries again after them
            raise

    def _report(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failures.append(delivery_error(error, message.topic()))
        self._count_done(error, message)

    def _count_done(self, error: KafkaError | None, message: Message) -> None:
        self.counts.done(delivered=error is None, seconds=message.latency())
        # Waiters are let go at half, so that a slow broker costs few wake-ups.
        if self.in_flight <= self._max_in_flight // 2:
            with self._room:
                self._room.notify_all()

    def _wait_for_room(self) -> None:
        if self.in_flight < self._max_in_flight:
            return
        began = time.monotonic()
        with self._room:
            while self.in_flight > self._max_in_flight // 2:
                self._room.wait(1.0)
        self.counts.waited_seconds += time.monotonic() - began

    def _raise_failure(self) -> None:
        if self._failures:
            failures, self._failures = self._failures, []
            raise DeliveryFailed(
                f"{len(failures)} records were not delivered; the first: {failures[0]}"
            ) from failures[0]

    def _flush(self) -> None:
        missing = self._connection.flush(self._settings.producer.delivery_timeout_seconds + 5)
        if missing:
            raise DeliveryFailed(f"{missing} records are not confirmed")

    def _close(self) -> int:
        return self._connection.close(self._settings.producer.delivery_timeout_seconds + 5)

    def _after_close(self, missing: int, error: BaseException | None) -> None:
        if error is not None:
            return  # what the block raised says more
        self._raise_failure()
        if missing:
            raise DeliveryFailed(f"{missing} records are not confirmed")


def _resolve(future: asyncio.Future[Delivered], error: KafkaError | None, message: Message) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(Delivered(message.partition(), message.offset()))
    else:
        future.set_exception(delivery_error(error, message.topic()))


async def _when_room(
    produce: Callable[[OutgoingRecord, Callable[..., None]], None],
    record: OutgoingRecord,
    report: Callable[..., None],
) -> None:
    """Produce as soon as librdkafka's queue takes it: bytes fill it too, not only records."""
    while True:
        try:
            return produce(record, report)
        except BufferError:
            await asyncio.sleep(_FULL_SECONDS)
