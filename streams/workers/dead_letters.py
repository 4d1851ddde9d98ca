"""What a worker sends to the dead letters topic. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from streams.kafka import dead_letter_headers
from streams.producer import OutgoingRecord
from streams.workers.intake import Refused
from streams.workers.transport import RecordBatch


def dead_letters(
    batch: RecordBatch, refused: Iterable[Refused], to: str, failed_at: int
) -> list[OutgoingRecord]:
    """The bad records of a batch for the topic `to`, as they were, with what is wrong (R5)."""
    return [
        OutgoingRecord(
            to,
            bad.record.key,
            bad.record.value,
            dead_letter_headers(
                bad.reason,
                bad.detail,
                topic=batch.topic,
                partition=batch.partition,
                offset=bad.record.offset,
                timestamp=bad.record.timestamp,
                failed_at=failed_at,
            ),
        )
        for bad in refused
    ]
