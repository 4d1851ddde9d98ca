"""The table `user_sequence`: rows of sequences and the deletion mark, per user.

    ((user_id), feature_view, chunk DESC) -> value, static mark

Rows in, rows out: what a chunk means is in `streams.sequences` and `streams.chunks`. Every write
carries its log position as the timestamp (R2), so that order, repetition and zombies don't matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from streams.cassandra import Rows, Session, Statement
from streams.errors import HeadwaterError
from streams.sequences import HEAD, Row, StoredUser, UserFlush

_ROW = "feature_view, chunk, value, WRITETIME(value)"
_MARK = "mark, WRITETIME(mark)"

# Without a clustering restriction the static mark comes along even if there is no row.
_SELECT_FIRST = Statement(f"SELECT {_ROW}, {_MARK} FROM user_sequence WHERE user_id = ? LIMIT ?")
_SELECT_USER = Statement(
    f"SELECT {_ROW}, mark, WRITETIME(mark) FROM user_sequence WHERE user_id = ?"
)
_SELECT_VIEW = Statement(
    f"SELECT {_ROW} FROM user_sequence WHERE user_id = ? AND feature_view = ? LIMIT 2"
)
_SELECT_VIEWS = Statement(
    f"SELECT {_ROW} FROM user_sequence WHERE user_id = ? AND feature_view IN ?"
)
_SELECT_VALUES = Statement(
    "SELECT feature_view, chunk, value FROM user_sequence WHERE user_id = ? AND feature_view IN ?"
)
_SELECT_CHUNKS = Statement(
    f"SELECT {_ROW} FROM user_sequence WHERE user_id = ? AND feature_view = ? AND chunk IN ?"
)
_UPSERT = Statement(
    "INSERT INTO user_sequence (user_id, feature_view, chunk, value) "
    "VALUES (?, ?, ?, ?) USING TIMESTAMP ?"
)
_DELETE_ROW = Statement(
    "DELETE FROM user_sequence USING TIMESTAMP ? "
    "WHERE user_id = ? AND feature_view = ? AND chunk = ?"
)
_DELETE_USER = Statement("DELETE FROM user_sequence USING TIMESTAMP ? WHERE user_id = ?")
_UPSERT_MARK = Statement(
    "INSERT INTO user_sequence (user_id, mark) VALUES (?, ?) USING TIMESTAMP ?"
)


class SequenceStore:
    """Reads and writes whole users. Every method raises StoreUnavailable or StoreRejected."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def load(self, user_id: str, views: Sequence[str]) -> StoredUser:
        """What an append needs: the mark, and per view the head and the newest chunk.

        One request for a new user or one with short sequences; more rows may come along.
        """
        limit = 2 * len(views) + 1
        rows = await self._session.execute(_SELECT_FIRST, (user_id, limit))
        stored = _stored_user(rows)
        if stored.rows and len(rows) == limit:  # long sequences: there may be more than was read
            cut = _cut_off(stored.rows, views)
            more = await asyncio.gather(
                *(self._session.execute(_SELECT_VIEW, (user_id, view)) for view in cut)
            )
            stored.rows = [row for row in stored.rows if row.view not in cut]
            stored.rows += [Row(*row) for found in more for row in found]
        return stored

    async def load_chunks(self, user_id: str, view: str, chunks: Sequence[int]) -> list[Row]:
        """The named chunks of one view, newest first."""
        rows = await self._session.execute(_SELECT_CHUNKS, (user_id, view, list(chunks)))
        return [Row(*row) for row in rows]

    async def load_all(self, user_id: str) -> StoredUser:
        """All that is stored of a user, also rows of views that are no longer declared."""
        return _stored_user(await self._session.execute(_SELECT_USER, (user_id,)))

    async def write(self, flush: UserFlush) -> None:
        """Store what a batch of records changed for one user: atomic, isolated, repeatable."""
        user_id, position = flush.user_id, flush.position
        parts: list[tuple[Statement, tuple[object, ...]]] = []
        if flush.mark is not None:
            parts.append((_DELETE_USER, (flush.mark_position - 1, user_id)))
            parts.append((_UPSERT_MARK, (user_id, flush.mark, flush.mark_position)))
        for write in flush.writes:
            if write.value is None:
                parts.append((_DELETE_ROW, (position, user_id, write.view, write.chunk)))
            else:
                parts.append((_UPSERT, (user_id, write.view, write.chunk, write.value, position)))
        if len(parts) == 1:
            await self._session.execute(*parts[0])
        elif parts:
            await self._session.execute_batch(parts)

    async def read_many(
        self, user_ids: Sequence[str], views: Sequence[str], *, timeout: float | None = None
    ) -> list[list[Row] | HeadwaterError]:
        """All rows of some views for many users, without heads, newest first within a view.

        One outcome per user, in their order; a failed one is its error, the others stand.
        """
        names = list(views)
        found = await self._session.execute_many(
            _SELECT_VIEWS, [(user_id, names) for user_id in user_ids], timeout=timeout
        )
        return [
            rows
            if isinstance(rows, HeadwaterError)
            else [Row(*row) for row in rows if row[1] != HEAD]
            for rows in found
        ]

    async def read_chunks(
        self, user_ids: Sequence[str], views: Sequence[str], *, timeout: float | None = None
    ) -> list[dict[str, list[bytes]] | HeadwaterError]:
        """The chunks of some views for many users, by view, oldest first: what readers need.

        One outcome per user, in their order; a failed one is its error, the others stand.
        """
        names = list(views)
        found = await self._session.execute_many(
            _SELECT_VALUES, [(user_id, names) for user_id in user_ids], timeout=timeout
        )
        return [rows if isinstance(rows, HeadwaterError) else _by_view(rows) for rows in found]


def _by_view(rows: Rows) -> dict[str, list[bytes]]:
    chunks: dict[str, list[bytes]] = {}
    for view, chunk, value in reversed(rows):
        if chunk != HEAD:
            mine = chunks.get(view)
            if mine is None:
                chunks[view] = [value]
            else:
                mine.append(value)
    return chunks


def _stored_user(rows: Rows) -> StoredUser:
    if not rows:
        return StoredUser()
    mark, mark_position = rows[0][4], rows[0][5]
    return StoredUser(
        rows=[Row(*row[:4]) for row in rows if row[0] is not None],
        mark=mark,
        mark_position=mark_position or 0,
    )


def _cut_off(rows: Sequence[Row], views: Sequence[str]) -> set[str]:
    """The views of which a limited read may have missed the head or the newest chunk.

    Rows come in the order of the view's name: what is behind the last row wasn't reached, and
    the last row's own view is whole only if two of its rows were.
    """
    last = rows[-1].view
    whole = sum(row.view == last for row in rows) >= 2
    # Cassandra orders text by its bytes, as UTF-8 does with code points.
    return {view for view in views if view > last or (view == last and not whole)}
