"""The tables `representation` and `encoder_version`.

    ((encoder, version, user_id)) -> value          written at the log position, with the view's TTL
    ((encoder), version) -> state, created_at, stats, static active

Blobs are made and read in `streams.representations`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from streams.cassandra import Session, Statement
from streams.errors import HeadwaterError, StoreRejected
from streams.recent import RecentValues
from streams.representations import (
    EncoderVersion,
    Representation,
    VersionState,
    newest_first,
)

# TTL 0 is none. Cassandra takes at most twenty years.
_UPSERT = Statement(
    "INSERT INTO representation (encoder, version, user_id, value) VALUES (?, ?, ?, ?) "
    "USING TIMESTAMP ? AND TTL ?"
)
_SELECT = Statement(
    "SELECT value FROM representation WHERE encoder = ? AND version = ? AND user_id = ?"
)
_DELETE = Statement(
    "DELETE FROM representation USING TIMESTAMP ? WHERE encoder = ? AND version = ? AND user_id = ?"
)
_SELECT_VERSIONS = Statement(
    "SELECT version, state, created_at, stats, active FROM encoder_version WHERE encoder = ?"
)
_UPSERT_VERSION = Statement(
    "INSERT INTO encoder_version (encoder, version, state, created_at, stats) "
    "VALUES (?, ?, ?, ?, ?)"
)
_ACTIVATE = Statement("UPDATE encoder_version SET active = ? WHERE encoder = ?")
_SET_STATE = Statement("UPDATE encoder_version SET state = ? WHERE encoder = ? AND version = ?")
_SELECT_ACTIVE = Statement("SELECT active FROM encoder_version WHERE encoder = ? LIMIT 1")


class RepresentationStore:
    """Reads and writes vectors and versions. Methods raise StoreUnavailable or StoreRejected."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def write_many(
        self,
        encoder: str,
        version: str,
        items: Sequence[tuple[str, Representation]],
        ttl_seconds: int | None = None,
    ) -> list[HeadwaterError | None]:
        """Store vectors by user, each at its own log position; the outcome of each."""
        ttl = ttl_seconds or 0
        outcomes = await self._session.execute_many(
            _UPSERT,
            [
                (encoder, version, user_id, item.encode(), item.position, ttl)
                for user_id, item in items
            ],
        )
        return [found if isinstance(found, HeadwaterError) else None for found in outcomes]

    async def read_blobs(
        self,
        encoder: str,
        version: str,
        user_ids: Sequence[str],
        *,
        timeout: float | None = None,
    ) -> list[bytes | HeadwaterError | None]:
        """The stored blobs of one version, in the users' order; None where there is none."""
        found = await self._session.execute_many(
            _SELECT, [(encoder, version, user_id) for user_id in user_ids], timeout=timeout
        )
        return [
            rows if isinstance(rows, HeadwaterError) else (rows[0][0] if rows else None)
            for rows in found
        ]

    async def read_many(
        self, encoder: str, version: str, user_ids: Sequence[str]
    ) -> list[Representation | HeadwaterError | None]:
        """Like `read_blobs`, decoded."""
        blobs = await self.read_blobs(encoder, version, user_ids)
        return [Representation.decode(b) if isinstance(b, bytes) else b for b in blobs]

    async def delete(
        self, encoder: str, versions: Sequence[str], user_id: str, position: int
    ) -> None:
        """Remove a user's vectors that reflect less than `position`; one of that position stays."""
        outcomes = await self._session.execute_many(
            _DELETE, [(position - 1, encoder, version, user_id) for version in versions]
        )
        for outcome in outcomes:
            if isinstance(outcome, HeadwaterError):
                raise outcome

    async def read_versions(self, encoder: str) -> list[EncoderVersion]:
        """All known versions of an encoder, the newest first."""
        rows = await self._session.execute(_SELECT_VERSIONS, (encoder,))
        return newest_first(
            [
                EncoderVersion(
                    encoder,
                    version,
                    state_of(version, state, active),
                    round(created_at.timestamp() * 1000),
                    msgspec.json.decode(stats) if stats else {},
                )
                for version, state, created_at, stats, active in rows
                if created_at is not None
            ]
        )

    async def add_version(self, version: EncoderVersion) -> None:
        """Record a version, again or for the first time; `activate` is another step."""
        check_version(version.version)
        created_at = datetime.fromtimestamp(version.created_at / 1000, UTC)
        stats = msgspec.json.encode(version.stats).decode()
        state = str(version.state)
        await self._session.execute(
            _UPSERT_VERSION, (version.encoder, version.version, state, created_at, stats)
        )

    async def activate(self, encoder: str, version: str) -> None:
        """Make a recorded version the active one; the one before it is ready again."""
        versions = await self.read_versions(encoder)
        if version not in {known.version for known in versions}:
            raise unknown_version(encoder, version)
        # `active` decides; the states are for whoever looks at the table.
        parts = [(_ACTIVATE, (version, encoder)), (_SET_STATE, ("active", encoder, version))]
        parts += [
            (_SET_STATE, ("ready", encoder, known.version))
            for known in versions
            if known.state is VersionState.ACTIVE and known.version != version
        ]
        await self._session.execute_batch(parts)

    async def active_version(self, encoder: str) -> str | None:
        """The active version, None before the first activation."""
        rows = await self._session.execute(_SELECT_ACTIVE, (encoder,))
        return rows[0][0] if rows else None


def check_version(version: str) -> None:
    """Raises StoreRejected for a version that the model repository can't have."""
    if not (version.isascii() and version.isdecimal() and version[0] != "0"):
        raise StoreRejected(f"version {version!r} isn't a positive whole number")


def state_of(version: str, state: str, active: str | None) -> VersionState:
    """A version's state: one that was active before another was activated is ready."""
    if version == active:
        return VersionState.ACTIVE
    return VersionState.READY if state == VersionState.ACTIVE else VersionState(state)


def unknown_version(encoder: str, version: str) -> StoreRejected:
    """The error of an activation of what was never recorded."""
    return StoreRejected(f"encoder {encoder} has no version {version}: export it first")


class ActiveVersions(RecentValues[str, str | None]):
    """The active version by encoder, as it was a few seconds ago (R7)."""

    def __init__(self, store: RepresentationStore) -> None:
        super().__init__(store.active_version)
