"""The table `stream_log`: which incarnation of a topic an epoch of log positions belongs to (R2).

((topic), epoch DESC) -> topic_id, partitions, opened_at
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from streams.cassandra import Session, Statement
from streams.errors import LogMismatch
from streams.sequences import FIRST_EPOCH, MAX_EPOCH

_SELECT = Statement("SELECT epoch, topic_id, partitions, opened_at FROM stream_log WHERE topic = ?")
# Not idempotent: a repetition is not applied, and would be taken for another opener's epoch.
_INSERT = Statement(
    "INSERT INTO stream_log (topic, epoch, topic_id, partitions, opened_at) "
    "VALUES (?, ?, ?, ?, ?) IF NOT EXISTS",
    idempotent=False,
)


class LogEpoch(msgspec.Struct, frozen=True):
    """One incarnation of a topic; `opened_at` in ms."""

    topic: str
    epoch: int
    topic_id: str
    partitions: int
    opened_at: int

    def is_of(self, topic_id: str, partitions: int) -> bool:
        """Whether a topic found on the broker is this incarnation."""
        return (self.topic_id, self.partitions) == (topic_id, partitions)


class LogStore:
    """Reads and opens epochs. Every method raises StoreUnavailable or StoreRejected."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def read_epochs(self, topic: str) -> list[LogEpoch]:
        """The topic's epochs, newest first; empty for a topic that was never read."""
        rows = await self._session.execute(_SELECT, (topic,))
        return [
            LogEpoch(topic, epoch, topic_id, partitions, _milliseconds(opened_at))
            for epoch, topic_id, partitions, opened_at in rows
        ]

    async def open_epoch(
        self, topic: str, topic_id: str, partitions: int, opened_at: int
    ) -> LogEpoch:
        """Record the topic's incarnation as its next epoch, or find it as the newest one.

        Of several processes that open at once, one does and the others find its epoch. Raises
        LogMismatch if another incarnation was recorded at the same moment.
        """
        newest = next(iter(await self.read_epochs(topic)), None)
        if newest is not None and newest.is_of(topic_id, partitions):
            return newest
        epoch = next_epoch(topic, newest)
        opened = LogEpoch(topic, epoch, topic_id, partitions, opened_at)
        values = (topic, epoch, topic_id, partitions, _datetime(opened_at))
        rows = await self._session.execute(_INSERT, values)
        if rows[0][0]:
            return opened
        found = (await self.read_epochs(topic))[0]
        if found.is_of(topic_id, partitions):
            return found
        raise opened_by_another(found)


def next_epoch(topic: str, newest: LogEpoch | None) -> int:
    """The number of the epoch after `newest`. Raises LogMismatch when there is no more."""
    epoch = FIRST_EPOCH if newest is None else newest.epoch + 1
    if epoch > MAX_EPOCH:
        raise LogMismatch(f"topic {topic} has used up its {MAX_EPOCH} epochs: use a new topic name")
    return epoch


def opened_by_another(found: LogEpoch) -> LogMismatch:
    """The error of an opener that lost against one with another view of the topic."""
    return LogMismatch(
        f"epoch {found.epoch} of topic {found.topic} was just opened for incarnation "
        f"{found.topic_id} with {found.partitions} partitions: look at `headwater log status`"
    )


def _datetime(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
