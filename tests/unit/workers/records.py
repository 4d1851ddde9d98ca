"""Consumed records for the workers' unit tests."""

from __future__ import annotations

from aiokafka.structs import ConsumerRecord

from streams.events import Event, Forget, encode_record
from streams.kafka import home_partition
from streams.workers.transport import RecordBatch

NOW = 1_750_000_000_000
PARTITIONS = 4


def consumed(
    value: bytes | None,
    key: bytes | None,
    *,
    offset: int = 0,
    partition: int = 0,
    timestamp: int = NOW,
    headers: tuple[tuple[str, bytes], ...] = (),
) -> ConsumerRecord:
    """A record as aiokafka gives it."""
    size = len(value or b"")
    return ConsumerRecord(
        "events", partition, offset, timestamp, 1, key, value, None, len(key or b""), size, headers
    )


def batch_of(
    records: list[Event | Forget], *, partition: int, first: int = 0, timestamp: int = NOW
) -> RecordBatch:
    """A batch of good records; offsets from `first` on."""
    found = [
        consumed(
            encode_record(record),
            record.user_id.encode(),
            offset=first + place,
            partition=partition,
            timestamp=timestamp,
        )
        for place, record in enumerate(records)
    ]
    return RecordBatch("events", partition, found, first + len(found))


def users_at_home(partition: int, count: int) -> list[str]:
    """User ids whose home is the partition."""
    found: list[str] = []
    number = 0
    while len(found) < count:
        user = f"user-{number}"
        if home_partition(user.encode(), PARTITIONS) == partition:
            found.append(user)
        number += 1
    return found
