"""Filling a new or changed view from the log, while live traffic flows.

A rebuild sends the view's records through the front door again: it appends copies of them to the
events topic, and the workers fold the copies as the late or duplicated events that they are. So
there is one fold (R9) and one writer per user, a newer value can't be overwritten, an interrupted
rebuild is simply started again, and a forgotten user's mark holds. Copies keep the broker's first
time in a header: delays aren't measured from them, and no rebuild copies a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from streams.errors import InvalidRecord
from streams.events import Event, decode_record
from streams.kafka import INGESTED_AT, PartitionOffsets, group_offsets, read_range
from streams.sequences import SequenceView
from streams.settings import Settings


class Copy(NamedTuple):
    """A record to append again."""

    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


class Progress(msgspec.Struct):
    """How far a rebuild has come: records read and copied, of `total` to read."""

    total: int = 0
    read: int = 0
    copied: int = 0


def log_bounds(settings: Settings) -> list[PartitionOffsets]:
    """What of the log exists now. A rebuild reads up to here: later events are folded live."""
    return group_offsets(
        settings.kafka, settings.sequence_worker.group, settings.kafka.events_topic
    )


def copies(
    settings: Settings, view: SequenceView, bounds: list[PartitionOffsets], progress: Progress
) -> Iterator[Copy]:
    """The copies to append, in log order per partition; counts into `progress`."""
    progress.total = sum(part.end - part.start for part in bounds)
    topic = settings.kafka.events_topic
    wanted = frozenset(view.event_types)
    for part in bounds:
        done = progress.read
        for message in read_range(settings.kafka, topic, part.partition, part.start, part.end):
            progress.read = done + message.offset() + 1 - part.start
            key, value = message.key(), message.value()
            headers = message.headers() or []
            ingested_at = message.timestamp()[1]
            latest = ingested_at + int(settings.sequence_worker.future_allowance_seconds * 1000)
            if any(name == INGESTED_AT for name, _ in headers):
                continue
            if not _was_taken(key, value, wanted, latest):
                continue
            progress.copied += 1
            yield Copy(key, value, [*headers, (INGESTED_AT, b"%d" % ingested_at)])
        progress.read = done + part.end - part.start


def _was_taken(
    key: bytes | None, value: bytes | None, event_types: frozenset[str], latest: int
) -> bool:
    """Whether a record is an event of these types that a worker took: others are dead letters
    already, and a copy of one would be another."""
    try:
        record = decode_record(value)
    except InvalidRecord:
        return False
    return (
        isinstance(record, Event)
        and record.event_type in event_types
        and record.event_time <= latest
        and key == record.user_id.encode()
    )
