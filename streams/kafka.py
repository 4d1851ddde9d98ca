"""Kafka's admin side: topics, their identity and offsets, and the dead letters.

What consumes lives in `streams/workers/transport.py`, what produces in `streams/producer.py`.
"""

from __future__ import annotations

import socket
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from streams.errors import ConfigError, DeliveryFailed, HeadwaterError
from streams.settings import KafkaSettings

REQUEST_SECONDS = 10.0
_DEFAULT_PORT = 9092
_CONNECT_SECONDS = 3.0
# Nobody is there, or who is there has only just come up or moved; the same request may succeed.
_UNANSWERED = frozenset(
    (
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_CONTROLLER,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    )
)
# A dead letter is the whole record, plus headers that say what was wrong and where it lay.
DEAD_LETTER_ROOM = 64 * 1024
MAX_DETAIL = 2_000


class TopicIdentity(msgspec.Struct, frozen=True):
    """What tells one incarnation of a topic from another (R2)."""

    topic_id: str
    partitions: int


class PartitionOffsets(msgspec.Struct, frozen=True):
    """Where a group stands in a partition; `committed` None if it never committed."""

    partition: int
    start: int
    end: int
    committed: int | None

    @property
    def lag(self) -> int:
        """Records between the group's position and the end."""
        return self.end - max(self.start, self.committed or 0)


def home_partition(key: bytes, partitions: int) -> int:
    """The partition that librdkafka's default partitioner (`consistent`) gives a key."""
    return zlib.crc32(key) % partitions


def admin_client(settings: KafkaSettings) -> AdminClient:
    """A client for the functions below. Hold it until its futures are answered: it ends with
    its last reference, and they with it.

    Raises DeliveryFailed at once if nobody listens at any of the addresses: librdkafka goes on
    trying for the whole of a request's time.
    """
    if not any(_listens(address) for address in settings.bootstrap_servers.split(",")):
        raise _nobody_answers(settings)
    return AdminClient(
        {
            "bootstrap.servers": settings.bootstrap_servers,
            "socket.timeout.ms": int(REQUEST_SECONDS * 1000),
            # What the broker says is in the error that is raised; librdkafka needn't print it.
            "log_level": 2,
        }
    )


# -- topics ------------------------------------------------------------------------------------


def create_topics(settings: KafkaSettings) -> list[str]:
    """Create the topics that don't exist; answers their names. Leaves existing ones alone.

    Raises DeliveryFailed if no broker answers.
    """
    hour = 3_600_000
    events = {
        # `ingested_at` is the broker's clock (R10); the record's own time is in the event.
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(settings.max_record_bytes),
        "retention.ms": str(settings.retention_hours * hour),
    }
    refresh = {
        "message.timestamp.type": "LogAppendTime",
        "cleanup.policy": "delete",
        "retention.ms": str(settings.refresh_retention_hours * hour),
    }
    dead = {
        "max.message.bytes": str(settings.max_record_bytes + DEAD_LETTER_ROOM),
        "retention.ms": str(settings.retention_hours * hour),
    }
    wanted = {
        settings.events_topic: (settings.partitions, events),
        settings.refresh_topic: (settings.partitions, refresh),
        settings.dead_letters_topic: (1, dead),
    }
    admin = admin_client(settings)
    futures = admin.create_topics(
        [
            NewTopic(name, partitions, settings.replication_factor, config=config)
            for name, (partitions, config) in wanted.items()
        ],
        request_timeout=REQUEST_SECONDS,
    )
    return [name for name, future in futures.items() if _created(settings, future)]


def _created(settings: KafkaSettings, future: Any) -> bool:
    try:
        with _answered(settings):
            future.result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise HeadwaterError(f"a topic can't be created: {error.args[0].str()}") from error
    return True


def delete_topics(settings: KafkaSettings) -> None:
    """Delete the three topics with all that is in them; those that don't exist are left out."""
    admin = admin_client(settings)
    names = [settings.events_topic, settings.refresh_topic, settings.dead_letters_topic]
    for future in admin.delete_topics(names, request_timeout=REQUEST_SECONDS).values():
        try:
            with _answered(settings):
                future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise


def topic_identity(settings: KafkaSettings, topic: str) -> TopicIdentity:
    """The topic's id and number of partitions.

    Raises ConfigError if it doesn't exist, DeliveryFailed if no broker answers.
    """
    admin = admin_client(settings)
    try:
        with _answered(settings):
            described = admin.describe_topics(
                TopicCollection([topic]), request_timeout=REQUEST_SECONDS
            )[topic].result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise ConfigError(
                f"topic {topic} doesn't exist on {settings.bootstrap_servers}; "
                "create it with `headwater apply`"
            ) from error
        raise
    return TopicIdentity(str(described.topic_id), len(described.partitions))


# -- offsets -----------------------------------------------------------------------------------


def group_offsets(settings: KafkaSettings, group: str, topic: str) -> list[PartitionOffsets]:
    """Where a group stands, per partition. Raises ConfigError or DeliveryFailed."""
    admin = admin_client(settings)
    count = topic_identity(settings, topic).partitions
    partitions = [TopicPartition(topic, number) for number in range(count)]
    with _answered(settings):
        starts = _list_offsets(admin, partitions, OffsetSpec.earliest())
        ends = _list_offsets(admin, partitions, OffsetSpec.latest())
        answer = admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, partitions)], request_timeout=REQUEST_SECONDS
        )[group].result()
    committed = {
        found.partition: found.offset if found.offset >= 0 else None
        for found in answer.topic_partitions
    }
    return [
        PartitionOffsets(number, starts[number], ends[number], committed.get(number))
        for number in range(count)
    ]


def _list_offsets(
    admin: AdminClient, partitions: list[TopicPartition], spec: Any
) -> dict[int, int]:
    futures = admin.list_offsets(dict.fromkeys(partitions, spec), request_timeout=REQUEST_SECONDS)
    return {partition.partition: future.result().offset for partition, future in futures.items()}


def forget_group_offsets(settings: KafkaSettings, group: str, topic: str) -> None:
    """Let a group start at the log's start again, as a new epoch needs it.

    Raises ConfigError while workers of the group run.
    """
    partitions = [offsets.partition for offsets in group_offsets(settings, group, topic)]
    _alter_offsets(settings, group, topic, dict.fromkeys(partitions, OFFSET_BEGINNING))


def skip_lost_offsets(settings: KafkaSettings, group: str, topic: str) -> dict[int, int]:
    """Accept that the broker deleted records unread: moves the group to the start of the log where
    it lies behind it. Answers the number of lost records per partition."""
    behind = {
        found.partition: found
        for found in group_offsets(settings, group, topic)
        if found.committed is not None and found.committed < found.start
    }
    if behind:
        starts = {partition: found.start for partition, found in behind.items()}
        _alter_offsets(settings, group, topic, starts)
    return {partition: found.start - (found.committed or 0) for partition, found in behind.items()}


def _alter_offsets(
    settings: KafkaSettings, group: str, topic: str, offsets: dict[int, int]
) -> None:
    if OFFSET_BEGINNING in offsets.values():
        starts = {found.partition: found.start for found in group_offsets(settings, group, topic)}
        offsets = {partition: starts[partition] for partition in offsets}
    wanted = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
    admin = admin_client(settings)
    try:
        with _answered(settings):
            answer = admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, wanted)], request_timeout=REQUEST_SECONDS
            )[group].result()
    except KafkaException as error:
        raise ConfigError(
            f"the offsets of group {group} can't be changed ({error.args[0].str()}); "
            "stop its workers first"
        ) from error
    refused = [found for found in answer.topic_partitions if found.error is not None]
    if refused:
        raise ConfigError(
            f"the offsets of group {group} can't be changed ({refused[0].error.str()}); "
            "stop its workers first"
        )


@contextmanager
def _answered(settings: KafkaSettings) -> Iterator[None]:
    """Turn "nobody answered", also "ask again later", into DeliveryFailed; other errors of the
    broker pass."""
    try:
        yield
    except KafkaException as error:
        if error.args[0].code() in _UNANSWERED:
            raise _nobody_answers(settings) from error
        raise


def _listens(address: str) -> bool:
    """Whether a connection to `[PROTOCOL://]HOST[:PORT]` is taken."""
    address = address.strip()
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        place = (parts.hostname or "", parts.port or _DEFAULT_PORT)
        with socket.create_connection(place, timeout=_CONNECT_SECONDS):
            return True
    except (OSError, ValueError):
        return False


def _nobody_answers(settings: KafkaSettings) -> DeliveryFailed:
    return DeliveryFailed(
        f"no Kafka broker answers at {settings.bootstrap_servers}; is it up (`headwater status`)?"
    )


# -- records that are appended again -----------------------------------------------------------

# Carries the broker's first time (ms) of a record that was forwarded or replayed, so that its
# delays are not measured from the copy.
INGESTED_AT = "ingested_at"


class ConsumedRecord(Protocol):
    """A record as a worker gets it. Times are ms; where it lies is known from its batch."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


def again_headers(record: ConsumedRecord) -> list[tuple[str, bytes]]:
    """The headers of a record's copy on the events topic."""
    first = first_ingested_at(record.headers, record.timestamp)
    others = [(name, content) for name, content in record.headers if name != INGESTED_AT]
    return [*others, (INGESTED_AT, b"%d" % first)]


def first_ingested_at(headers: Iterable[tuple[str, bytes]], timestamp: int) -> int:
    """When the broker first took the record (ms); `timestamp` unless it is a copy."""
    for name, content in headers:
        if name == INGESTED_AT and content and content.isdigit():
            return min(int(content), timestamp)
    return timestamp


# -- dead letters ------------------------------------------------------------------------------


class DeadLetter(msgspec.Struct, frozen=True):
    """A record that was refused, as it was, and why.

    `partition` and `offset` are its coordinates among the dead letters; `origin_*` those it had
    on the topic it came from. `failed_at`, `origin_timestamp` are milliseconds.
    """

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    reason: str
    detail: str
    origin_topic: str
    origin_partition: int
    origin_offset: int
    origin_timestamp: int
    failed_at: int


def dead_letter_headers(
    reason: str,
    detail: str,
    *,
    topic: str,
    partition: int,
    offset: int,
    timestamp: int,
    failed_at: int,
) -> list[tuple[str, bytes]]:
    """The headers that a dead letter carries; times in ms."""
    fields = {
        "reason": reason,
        "detail": detail[:MAX_DETAIL],
        "topic": topic,
        "partition": str(partition),
        "offset": str(offset),
        "timestamp": str(timestamp),
        "failed_at": str(failed_at),
    }
    # A detail quotes what it found, which may hold lone surrogates.
    return [(name, text.encode("utf-8", "replace")) for name, text in fields.items()]


def _dead_letter(message: Message) -> DeadLetter:
    headers = {name: (value or b"").decode() for name, value in message.headers() or []}
    return DeadLetter(
        partition=message.partition(),
        offset=message.offset(),
        key=message.key(),
        value=message.value(),
        reason=headers.get("reason", ""),
        detail=headers.get("detail", ""),
        origin_topic=headers.get("topic", ""),
        origin_partition=int(headers.get("partition", -1)),
        origin_offset=int(headers.get("offset", -1)),
        origin_timestamp=int(headers.get("timestamp", 0)),
        failed_at=int(headers.get("failed_at", 0)),
    )


def list_dead_letters(settings: KafkaSettings, limit: int) -> list[DeadLetter]:
    """The newest `limit` dead letters, newest first."""
    topic = settings.dead_letters_topic
    found: list[DeadLetter] = []
    for bounds in topic_bounds(settings, topic):
        first = max(bounds.start, bounds.end - limit)
        found += read_dead_letters(settings, bounds.partition, first, bounds.end)
    found.sort(key=lambda letter: (letter.failed_at, letter.partition, letter.offset), reverse=True)
    return found[:limit]


def show_dead_letter(settings: KafkaSettings, partition: int, offset: int) -> DeadLetter:
    """One dead letter by its coordinates. Raises ConfigError if there is none."""
    for bounds in topic_bounds(settings, settings.dead_letters_topic):
        if bounds.partition == partition and bounds.start <= offset < bounds.end:
            for letter in read_dead_letters(settings, partition, offset, offset + 1):
                return letter
    raise ConfigError(
        f"there is no dead letter {partition}:{offset}; see `headwater dead-letters list`"
    )


def all_dead_letters(settings: KafkaSettings) -> Iterator[DeadLetter]:
    """Every dead letter that exists now, oldest first per partition."""
    for bounds in topic_bounds(settings, settings.dead_letters_topic):
        yield from read_dead_letters(settings, bounds.partition, bounds.start, bounds.end)


def count_dead_letters(settings: KafkaSettings) -> int:
    """How many dead letters are kept."""
    return sum(b.end - b.start for b in topic_bounds(settings, settings.dead_letters_topic))


def purge_dead_letters(settings: KafkaSettings) -> int:
    """Delete every dead letter that exists now; answers their number."""
    topic = settings.dead_letters_topic
    bounds = topic_bounds(settings, topic)
    ends = [TopicPartition(topic, b.partition, b.end) for b in bounds if b.end > b.start]
    if ends:
        admin = admin_client(settings)
        with _answered(settings):
            for future in admin.delete_records(ends).values():
                future.result()
    return sum(b.end - b.start for b in bounds)


def replay_dead_letters(
    settings: KafkaSettings,
    send: Callable[[bytes | None, bytes], None],
    *,
    keep: Callable[[DeadLetter], bool] = lambda letter: letter.value is not None,
    edit: Callable[[DeadLetter], tuple[bytes | None, bytes | None]] | None = None,
) -> int:
    """Send dead letters to the events topic again, with `send(key, value)`.

    `keep` chooses them; `edit` gives the key and value to send instead, a value of None leaves the
    letter out. Answers how many were sent. They stay among the dead letters: a replay is harmless
    to repeat (R1), a lost letter is not.
    """
    sent = 0
    for letter in all_dead_letters(settings):
        if keep(letter):
            key, value = edit(letter) if edit else (letter.key, letter.value)
            if value is not None:
                send(key, value)
                sent += 1
    return sent


def topic_bounds(settings: KafkaSettings, topic: str) -> list[PartitionOffsets]:
    """Where each partition of a topic starts and ends now; nobody's `committed`."""
    admin = admin_client(settings)
    count = topic_identity(settings, topic).partitions
    partitions = [TopicPartition(topic, number) for number in range(count)]
    with _answered(settings):
        starts = _list_offsets(admin, partitions, OffsetSpec.earliest())
        ends = _list_offsets(admin, partitions, OffsetSpec.latest())
    return [PartitionOffsets(n, starts[n], ends[n], None) for n in range(count)]


def read_dead_letters(
    settings: KafkaSettings, partition: int, first: int, end: int
) -> Iterator[DeadLetter]:
    """The dead letters of one partition with offsets from `first` up to `end`, in order."""
    for message in read_range(settings, settings.dead_letters_topic, partition, first, end):
        yield _dead_letter(message)


def read_range(
    settings: KafkaSettings, topic: str, partition: int, first: int, end: int
) -> Iterator[Message]:
    """The records of one partition from offset `first` up to `end`, without a consumer group.

    Raises DeliveryFailed if the broker stops answering before `end`.
    """
    if first >= end:
        return
    consumer = Consumer(
        {
            "bootstrap.servers": settings.bootstrap_servers,
            "group.id": "headwater-reader",  # librdkafka wants one; nothing is committed
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "log_level": 2,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, first)])
        while True:
            message = consumer.poll(REQUEST_SECONDS)
            if message is None:
                raise _nobody_answers(settings)
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    return
                raise HeadwaterError(f"{topic}/{partition} can't be read: {error.str()}")
            if message.offset() < end:
                yield message
            if message.offset() >= end - 1:
                return
    finally:
        consumer.close()
