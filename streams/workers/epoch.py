"""Which incarnation of the events topic the log positions belong to (R2).

A recreated or repartitioned topic gives other records the same offsets. Positions made from it
under the old epoch would be taken for replays, or beat what they must not beat: a worker that sees
another incarnation than the recorded one stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from streams.errors import LogMismatch
from streams.kafka import TopicIdentity
from streams.log_store import LogEpoch


class Epochs(Protocol):
    """What the guard needs of `LogStore`."""

    async def read_epochs(self, topic: str) -> list[LogEpoch]: ...
    async def open_epoch(
        self, topic: str, topic_id: str, partitions: int, opened_at: int
    ) -> LogEpoch: ...


class EpochGuard:
    """The current epoch of one topic, and whether it still is."""

    def __init__(
        self,
        topic: str,
        epochs: Epochs,
        identify: Callable[[], TopicIdentity],
        now: Callable[[], float],
        check_seconds: float,
    ) -> None:
        self._topic = topic
        self._epochs = epochs
        self._identify = identify  # blocking
        self._now = now
        self._check_seconds = check_seconds
        self._verified_at = 0.0
        self._current: LogEpoch | None = None

    @property
    def epoch(self) -> int:
        """The number that log positions begin with; 0 before `open`."""
        return 0 if self._current is None else self._current.epoch

    @property
    def partitions(self) -> int:
        """Partitions of the topic, as recorded."""
        return 0 if self._current is None else self._current.partitions

    @property
    def topic_id(self) -> str:
        """The topic's id, as recorded."""
        return "" if self._current is None else self._current.topic_id

    async def open(self) -> None:
        """Find the topic's epoch; the first worker of all opens the first one.

        Raises LogMismatch if the recorded one belongs to another incarnation, ConfigError if
        there is no such topic, StoreUnavailable, StoreRejected, DeliveryFailed.
        """
        identity = await asyncio.to_thread(self._identify)
        epochs = await self._epochs.read_epochs(self._topic)
        self._current = (
            epochs[0]
            if epochs
            else await self._epochs.open_epoch(
                self._topic, identity.topic_id, identity.partitions, int(self._now() * 1000)
            )
        )
        self._compare(identity)

    async def verify(self) -> None:
        """Raises LogMismatch if the topic isn't the recorded incarnation, DeliveryFailed."""
        self._compare(await asyncio.to_thread(self._identify))

    async def verify_sometimes(self) -> None:
        """`verify`, unless it was done a few seconds ago."""
        now = asyncio.get_running_loop().time()
        if now - self._verified_at >= self._check_seconds:
            await self.verify()

    def _compare(self, identity: TopicIdentity) -> None:
        found = self._current
        assert found is not None
        self._verified_at = asyncio.get_running_loop().time()
        if found.is_of(identity.topic_id, identity.partitions):
            return
        raise LogMismatch(
            f"topic {self._topic} has id {identity.topic_id} and {identity.partitions} "
            f"partitions, but epoch {found.epoch} was opened for id {found.topic_id} with "
            f"{found.partitions}: it was recreated or repartitioned. See `headwater log status`, "
            "then run `headwater log open-epoch`"
        )
