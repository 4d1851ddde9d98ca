"""Kafka as the monitor sees it: where groups stand, and the records that they haven't reflected.

Bounded: offsets are asked for all partitions at once, records are read for at most `MAX_PEEKS`
partitions per call, one each, and a record that was read once is kept while the group stands still.
Joins no group and commits nothing. Blocking; one caller at a time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from streams.errors import DeliveryFailed, HeadwaterError, InvalidRecord
from streams.events import decode_record
from streams.freshness import OpenRecord
from streams.producer import PRODUCER_HEADER
from streams.representations import RefreshRequest
from streams.settings import KafkaSettings

MAX_PEEKS = 64
_POLL_SECONDS = 0.1


class GroupPartition(msgspec.Struct, frozen=True):
    """Where a group stands in a partition. `committed` None: it never committed."""

    partition: int
    start: int
    end: int
    committed: int | None

    @property
    def position(self) -> int:
        """The next record that the group hasn't acknowledged."""
        return max(self.start, self.committed or 0)

    @property
    def lag(self) -> int:
        """Records that aren't acknowledged."""
        return max(0, self.end - self.position)


class GroupReading(msgspec.Struct, frozen=True):
    """A group on its topic. `unread`: partitions whose open record couldn't be read in time.

    `read_at` (seconds, our clock) is when its offsets were known: what was open then may have been
    acknowledged since.
    """

    group: str
    topic: str
    read_at: float
    partitions: tuple[GroupPartition, ...]
    open_records: tuple[OpenRecord, ...]
    unread: tuple[int, ...]
    num_members: int


class LogRecord(msgspec.Struct, frozen=True):
    """A record as it lies on the log; `appended_at` in ms."""

    partition: int
    offset: int
    appended_at: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes | None] = {}


class SeenRecord(msgspec.Struct, frozen=True):
    """A valid event on the log; times in ms. `producer` "" if the record doesn't name it."""

    user_id: str
    event_time: int
    ingested_at: int
    producer: str


class LogWatch:
    """Clients that are held, and the open records that are known."""

    def __init__(
        self,
        settings: KafkaSettings,
        timeout_seconds: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._timeout = timeout_seconds
        self._now = now
        common = {
            "bootstrap.servers": settings.bootstrap_servers,
            "socket.timeout.ms": int(max(1.0, timeout_seconds) * 1000),
            "reconnect.backoff.max.ms": 1000,
            # librdkafka's default, "rebootstrap", loses its broker for good after one that hung
            # for half a minute (seen with 2.16).
            "metadata.recovery.strategy": "none",
            "log_level": 2,  # what goes wrong is raised
        }
        self._admin = AdminClient(common)
        self._consumer = Consumer(
            common
            | {
                "group.id": "headwater-monitor",  # required, never joined
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 50,
                "fetch.message.max.bytes": 65_536,
                "queued.max.messages.kbytes": 2048,
            }
        )
        self._choice = random.Random()
        self._peeked: dict[tuple[str, int], tuple[int, OpenRecord]] = {}

    def close(self) -> None:
        """End the clients' threads."""
        self._consumer.close()

    def read_group(self, group: str, topic: str) -> GroupReading:
        """Where the group stands. Raises DeliveryFailed if Kafka doesn't answer in time."""
        try:
            partitions = self._offsets(group, topic)
            read_at = self._now()
            members = self._num_members(group)
            open_records, unread = self._open_records(topic, partitions)
        except KafkaException as error:
            raise self._failed(error) from error
        except TimeoutError as error:
            raise DeliveryFailed(f"Kafka didn't answer within {self._timeout:g} s") from error
        return GroupReading(group, topic, read_at, partitions, open_records, unread, members)

    def read_records(
        self, topic: str, wanted: Mapping[int, tuple[int, int]]
    ) -> dict[int, list[LogRecord]]:
        """Records [first, end) per partition, as many as come in time. Raises DeliveryFailed."""
        try:
            return self._read(topic, wanted)
        except KafkaException as error:
            raise self._failed(error) from error

    def read_tail(self, topic: str, count: int, partitions: int) -> list[SeenRecord]:
        """The newest `count` events of some partitions, chosen anew each time.

        Raises DeliveryFailed.
        """
        bounds = self.bounds(topic)
        chosen = self._choice.sample(sorted(bounds), min(partitions, len(bounds)))
        wanted = {p: (max(bounds[p][0], bounds[p][1] - count), bounds[p][1]) for p in chosen}
        read = self.read_records(topic, wanted)
        seen = (_seen_record(record) for records in read.values() for record in records)
        return [record for record in seen if record is not None]

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """(start, end) per partition. Raises DeliveryFailed."""
        try:
            numbers = self._partitions(topic)
            starts = self._list_offsets(topic, numbers, OffsetSpec.earliest())
            ends = self._list_offsets(topic, numbers, OffsetSpec.latest())
        except KafkaException as error:
            raise self._failed(error) from error
        return {number: (starts[number], ends[number]) for number in numbers}

    # -- inside --------------------------------------------------------------------------------

    def _offsets(self, group: str, topic: str) -> tuple[GroupPartition, ...]:
        numbers = self._partitions(topic)
        # Committed first, ends last: what is asked later is larger, so a lag is never negative.
        answer = self._admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, n) for n in numbers])],
            request_timeout=self._timeout,
        )[group].result(self._timeout)
        committed = {
            found.partition: found.offset if found.offset >= 0 else None
            for found in answer.topic_partitions
        }
        starts = self._list_offsets(topic, numbers, OffsetSpec.earliest())
        ends = self._list_offsets(topic, numbers, OffsetSpec.latest())
        return tuple(
            GroupPartition(number, starts[number], ends[number], committed.get(number))
            for number in numbers
        )

    def _partitions(self, topic: str) -> list[int]:
        found = self._admin.list_topics(topic, timeout=self._timeout).topics[topic]
        if found.error is not None:
            raise HeadwaterError(f"topic {topic}: {found.error.str()}; run `headwater apply`")
        return sorted(found.partitions)

    def _list_offsets(self, topic: str, numbers: list[int], spec: Any) -> dict[int, int]:
        futures = self._admin.list_offsets(
            {TopicPartition(topic, number): spec for number in numbers},
            request_timeout=self._timeout,
        )
        return {tp.partition: future.result(self._timeout).offset for tp, future in futures.items()}

    def _num_members(self, group: str) -> int:
        futures = self._admin.describe_consumer_groups([group], request_timeout=self._timeout)
        try:
            return len(futures[group].result(self._timeout).members)
        except KafkaException as error:
            if error.args[0].name() == "GROUP_ID_NOT_FOUND":
                return 0
            raise

    def _open_records(
        self, topic: str, partitions: tuple[GroupPartition, ...]
    ) -> tuple[tuple[OpenRecord, ...], tuple[int, ...]]:
        behind = {found.partition: found.position for found in partitions if found.lag}
        known = {
            partition: self._peeked[topic, partition]
            for partition in behind
            if (topic, partition) in self._peeked
        }
        new = [p for p, position in behind.items() if known.get(p, (-1, None))[0] != position]
        # First those of which nothing is known, then those that were read the longest ago.
        new.sort(key=lambda p: known[p][0] - behind[p] if p in known else -(2**62))
        read = self._read(topic, {p: (behind[p], behind[p] + 1) for p in new[:MAX_PEEKS]})
        is_request = topic == self._settings.refresh_topic
        for partition, records in read.items():
            record = _open_record(records[0], is_request)
            self._peeked[topic, partition] = (behind[partition], record)
        self._peeked = {k: v for k, v in self._peeked.items() if k[0] != topic or k[1] in behind}
        # A partition that moved on and wasn't read again keeps its older record: an upper bound.
        found = tuple(
            self._peeked[topic, partition][1]
            for partition in behind
            if (topic, partition) in self._peeked
        )
        return found, tuple(p for p in behind if (topic, p) not in self._peeked)

    def _read(
        self, topic: str, wanted: Mapping[int, tuple[int, int]]
    ) -> dict[int, list[LogRecord]]:
        open_ = {p: end for p, (first, end) in wanted.items() if end > first}
        if not open_:
            return {}
        self._consumer.assign([TopicPartition(topic, p, wanted[p][0]) for p in open_])
        deadline = time.monotonic() + self._timeout
        found: dict[int, list[LogRecord]] = {}
        try:
            while open_ and time.monotonic() < deadline:
                for message in self._consumer.consume(256, _POLL_SECONDS):
                    self._take(message, open_, found)
        finally:
            self._consumer.unassign()
        return found

    def _take(
        self, message: Message, open_: dict[int, int], found: dict[int, list[LogRecord]]
    ) -> None:
        if message.error() is not None:
            raise KafkaException(message.error())
        partition, offset = message.partition(), message.offset()
        end = open_.get(partition)
        if end is None:
            return
        if offset < end or partition not in found:
            found.setdefault(partition, []).append(_record(message))
        if offset >= end - 1:
            del open_[partition]
            self._consumer.incremental_unassign([TopicPartition(message.topic(), partition)])

    def _failed(self, error: KafkaException) -> DeliveryFailed:
        return DeliveryFailed(
            f"Kafka at {self._settings.bootstrap_servers} didn't answer: {error.args[0].str()}"
        )


def _record(message: Message) -> LogRecord:
    return LogRecord(
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        message.key(),
        message.value(),
        dict(message.headers() or []),
    )


def _open_record(record: LogRecord, is_request: bool) -> OpenRecord:
    """A record that isn't valid is open like any other, until it is a dead letter."""
    partition, queued_at = record.partition, record.appended_at
    try:
        if is_request:
            request = RefreshRequest.decode(record.value)
            return OpenRecord(partition, request.oldest_event_time, request.ingested_at, queued_at)
        event_time = decode_record(record.value).event_time
        return OpenRecord(partition, event_time, queued_at, queued_at)
    except InvalidRecord:
        return OpenRecord(partition, None, queued_at, queued_at)


def _seen_record(record: LogRecord) -> SeenRecord | None:
    try:
        event = decode_record(record.value)
    except InvalidRecord:
        return None  # the workers count it; it tells nothing of a clock
    producer = (record.headers.get(PRODUCER_HEADER) or b"").decode("utf-8", "replace")
    return SeenRecord(event.user_id, event.event_time, record.appended_at, producer)
