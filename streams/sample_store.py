"""A random sample of stored users, for coverage, ages and lengths.

Users lie in Cassandra by the hash of their ids, so that the users behind a random hash are a
uniform sample, whatever they do; reading it costs the same for a thousand users and for a billion.
The alternatives are biased: workers remember the busiest users, the log's end the latest ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from streams.cassandra import Session, Statement
from streams.chunks import Chunk, decode_head
from streams.freshness import is_canary
from streams.representation_store import RepresentationStore
from streams.representations import read_header
from streams.sequence_store import SequenceStore
from streams.sequences import HEAD, Row, SequenceView

_SELECT_USERS = Statement(
    "SELECT DISTINCT user_id FROM user_sequence WHERE token(user_id) >= ? LIMIT ?"
)
_MIN_TOKEN, _MAX_TOKEN = -(2**63), 2**63 - 1
# More places are more even, where users' ids were deleted in clumps; fewer are cheaper.
_PLACES = 10


class SampledSequence(msgspec.Struct, frozen=True):
    """What is stored of one view of a user; `length` as it is served, up to a chunk's events more
    for a view with `max_age`. `newest_time` in ms."""

    length: int
    newest_time: int
    position: int


class SampledUser(msgspec.Struct, frozen=True):
    """A user's sequences by view."""

    user_id: str
    sequences: dict[str, SampledSequence]

    def newest_time(self, views: Sequence[str]) -> int | None:
        """Event time (ms) of the newest event in some views, None if they are empty."""
        found = [s.newest_time for name, s in self.sequences.items() if name in views]
        return max(found, default=None)

    def position(self, views: Sequence[str]) -> int:
        """Log position that some views have reached, 0 if they are empty."""
        return max((s.position for name, s in self.sequences.items() if name in views), default=0)


class SampledRepresentation(msgspec.Struct, frozen=True):
    """A stored representation's facts; times in ms."""

    as_of: int
    position: int
    encoded_at: int
    size: int


class SampleStore:
    """Reads samples. Every method raises StoreUnavailable or StoreRejected."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._sequences = SequenceStore(session)
        self._representations = RepresentationStore(session)

    async def ping(self) -> None:
        """Ask for almost nothing."""
        await self._session.execute(_SELECT_USERS, (_MAX_TOKEN, 1))

    async def sample_users(
        self, count: int, views: Sequence[SequenceView], choice: random.Random
    ) -> list[SampledUser]:
        """About `count` users, chosen by `choice`; canaries and deleted users are left out."""
        ids: set[str] = set()
        per_place = -(-count // _PLACES)
        for _ in range(_PLACES):
            start = choice.randint(_MIN_TOKEN, _MAX_TOKEN)
            found = await self._session.execute(_SELECT_USERS, (start, per_place))
            if len(found) < per_place:  # the ring's end: go on at its start
                missing = per_place - len(found)
                found += await self._session.execute(_SELECT_USERS, (_MIN_TOKEN, missing))
            ids |= {user_id for (user_id,) in found if not is_canary(user_id)}
        users = [await self._read_user(user_id, views) for user_id in sorted(ids)]
        return [user for user in users if user.sequences]

    async def read_representations(
        self, encoder: str, version: str, user_ids: Sequence[str]
    ) -> list[SampledRepresentation | None]:
        """The facts of the users' representations, None where there is none."""
        blobs = await self._representations.read_blobs(encoder, version, user_ids)
        return [_facts(blob) for blob in blobs]

    async def _read_user(self, user_id: str, views: Sequence[SequenceView]) -> SampledUser:
        stored = await self._sequences.load(user_id, [view.name for view in views])
        found = {view.name: _sampled(stored.rows, view) for view in views}
        return SampledUser(user_id, {name: s for name, s in found.items() if s is not None})


def _sampled(rows: Sequence[Row], view: SequenceView) -> SampledSequence | None:
    own = [row for row in rows if row.view == view.name]
    older = sum(c for row in own if row.chunk == HEAD for _, c in decode_head(row.value))
    chunks = [row for row in own if row.chunk != HEAD]
    if not chunks:
        return None
    newest = Chunk.decode(max(chunks, key=lambda row: row.chunk).value)
    length = min(view.max_length, older + len(newest))
    return SampledSequence(length, newest.times[-1], max(row.position for row in own))


def _facts(blob: object) -> SampledRepresentation | None:
    if isinstance(blob, Exception):
        raise blob
    if not isinstance(blob, bytes):
        return None
    _, _, _, _, as_of, position, encoded_at = read_header(blob)
    return SampledRepresentation(as_of, position, encoded_at, len(blob))
