"""Reading sequences back for the encoder, at no less than the log position that was asked for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from streams.columns import SequenceColumns
from streams.encoder_input import EncoderInput, merge_sequences
from streams.errors import HeadwaterError
from streams.representations import RepresentationView
from streams.sequences import HEAD, Row, StoredUser
from streams.workers.declarations import Views
from streams.workers.refresh import Refresh

log = logging.getLogger(__name__)

# Requests are sent after the write was acknowledged, by a quorum: a read that lags behind comes
# from a store that lost something, or from a view that is declared no more. Then what is there
# has to do, after a while.
_PATIENCE_SECONDS = 10.0
_PAUSE_SECONDS = 0.1


class Sequences(Protocol):
    """What is needed of `SequenceStore`."""

    async def load_all(self, user_id: str) -> StoredUser: ...
    async def read_many(
        self, user_ids: Any, views: Any, *, timeout: float | None = None
    ) -> list[list[Row] | HeadwaterError]: ...


class Reading(msgspec.Struct):
    """A user's stored chunks and the log position that they reflect."""

    refresh: Refresh
    rows: list[Row]
    position: int

    @property
    def has_events(self) -> bool:
        """Whether there is anything to encode."""
        return bool(self.rows)

    def chunks(self, view: str) -> list[bytes]:
        """The chunks of one view, oldest first."""
        return [row.value for row in sorted(self.rows, key=_by_chunk) if row.view == view]


class ReadBack:
    """Reads users for the encoder. Methods raise StoreUnavailable or StoreRejected."""

    def __init__(self, store: Sequences) -> None:
        self._store = store

    async def read(
        self, views: Views, view: RepresentationView, refreshes: Sequence[Refresh]
    ) -> list[Reading]:
        """The users' sequences that feed `view`, in their order."""
        names = [name for name in view.sequences if name in views.set.views]
        users = [refresh.user_id for refresh in refreshes]
        readings = []
        for refresh, rows in zip(refreshes, await self._store.read_many(users, names), strict=True):
            if isinstance(rows, HeadwaterError):
                raise rows
            reading = Reading(refresh, rows, max((row.position for row in rows), default=-1))
            if reading.position < refresh.position:
                reading = await self._read_whole(names, refresh)
            readings.append(reading)
        return readings

    async def _read_whole(self, names: Sequence[str], refresh: Refresh) -> Reading:
        """With the deletion mark, which may be all that the position is about."""
        deadline = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
        while True:
            stored = await self._store.load_all(refresh.user_id)
            rows = [row for row in stored.rows if row.view in names and row.chunk != HEAD]
            reached = max((row.position for row in rows), default=-1)
            reading = Reading(refresh, rows, max(reached, stored.mark_position))
            if reading.position >= refresh.position:
                return reading
            if asyncio.get_running_loop().time() > deadline:
                log.error("sequences stand at %d, asked: %d", reading.position, refresh.position)
                return reading
            await asyncio.sleep(_PAUSE_SECONDS)

    def merge(
        self, views: Views, view: RepresentationView, readings: Sequence[Reading]
    ) -> EncoderInput:
        """What the encoder gets of them: all views by time, the newest `max_length` events."""
        columns = [
            SequenceColumns([reading.chunks(name) for reading in readings], views.set.views[name])
            for name in view.sequences
            if name in views.set.views
        ]
        return merge_sequences(columns, view.max_length)


def _by_chunk(row: Row) -> int:
    return row.chunk
