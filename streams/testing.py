"""In-memory twins of the stores, held to the same contract tests as the real ones.

They keep what makes the real ones what they are: cells with write timestamps, of which the newest
wins and, of two equal ones, the deletion, then the larger value. They know no time to live.
`fail_with` makes every call fail, as a store that is away does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from streams.errors import HeadwaterError
from streams.feature_row_store import (
    Arrivals,
    FeatureCell,
    FeatureRow,
    check_entity_key,
    payload_of,
)
from streams.log_store import LogEpoch, next_epoch
from streams.representation_store import check_version, state_of, unknown_version
from streams.representations import (
    EncoderVersion,
    Representation,
    newest_first,
)
from streams.sequences import HEAD, Row, StoredUser, UserFlush

K = TypeVar("K")


class Cell(NamedTuple):
    """A value and its write timestamp; None is a deletion."""

    position: int
    value: bytes | None


class Cells(Generic[K]):
    """Cells by key, and deletions of whole partitions."""

    def __init__(self) -> None:
        self._cells: dict[K, Cell] = {}
        self.deleted_at: int | None = None

    def put(self, key: K, value: bytes | None, position: int) -> None:
        """Write, or delete with None; what is there already may be newer and stay."""
        found = self._cells.get(key)
        if found is None or _beats(Cell(position, value), found):
            self._cells[key] = Cell(position, value)

    def delete_all(self, position: int) -> None:
        """Delete what was written up to `position`, whenever it arrives."""
        self.deleted_at = max(position, self.deleted_at or position)

    def live(self) -> dict[K, tuple[int, bytes]]:
        """(position, value) of what is there, by key."""
        return {
            key: (cell.position, cell.value)
            for key, cell in self._cells.items()
            if cell.value is not None
            and (self.deleted_at is None or cell.position > self.deleted_at)
        }


def _beats(new: Cell, old: Cell) -> bool:
    if new.position != old.position:
        return new.position > old.position
    if new.value is None or old.value is None:
        return new.value is None
    return new.value >= old.value


class _Twin:
    """What the twins have in common: they can be away."""

    def __init__(self) -> None:
        self.fail_with: HeadwaterError | None = None

    def _check(self) -> None:
        if self.fail_with is not None:
            raise self.fail_with


_MARK = ("", 0)


class InMemorySequenceStore(_Twin):
    """Twin of `streams.sequence_store.SequenceStore`."""

    def __init__(self) -> None:
        super().__init__()
        self.users: dict[str, Cells[tuple[str, int]]] = {}
        self.num_writes = 0

    async def load(self, user_id: str, views: Sequence[str]) -> StoredUser:
        """See SequenceStore; never more rows than asked for."""
        stored = await self.load_all(user_id)
        stored.rows = [
            row
            for view in sorted(views)
            for row in [found for found in stored.rows if found.view == view][:2]
        ]
        return stored

    async def load_chunks(self, user_id: str, view: str, chunks: Sequence[int]) -> list[Row]:
        """See SequenceStore."""
        stored = await self.load_all(user_id)
        return [row for row in stored.rows if row.view == view and row.chunk in chunks]

    async def load_all(self, user_id: str) -> StoredUser:
        """See SequenceStore."""
        self._check()
        live = self.users[user_id].live() if user_id in self.users else {}
        mark_position, mark = live.pop(_MARK, (0, None))
        rows = [Row(*key, value, position) for key, (position, value) in live.items()]
        rows.sort(key=lambda row: (row.view, -row.chunk))
        return StoredUser(rows=rows, mark=mark, mark_position=mark_position)

    async def write(self, flush: UserFlush) -> None:
        """See SequenceStore."""
        self._check()
        self.num_writes += 1
        cells = self.users.setdefault(flush.user_id, Cells())
        if flush.mark is not None:
            cells.delete_all(flush.mark_position - 1)
            cells.put(_MARK, flush.mark, flush.mark_position)
        for write in flush.writes:
            cells.put((write.view, write.chunk), write.value, flush.position)

    async def read_many(
        self, user_ids: Sequence[str], views: Sequence[str], *, timeout: float | None = None
    ) -> list[list[Row] | HeadwaterError]:
        """See SequenceStore."""
        del timeout
        if self.fail_with is not None:
            return [self.fail_with] * len(user_ids)
        users = [await self.load_all(user_id) for user_id in user_ids]
        return [
            [row for row in user.rows if row.view in views and row.chunk != HEAD] for user in users
        ]

    async def read_chunks(
        self, user_ids: Sequence[str], views: Sequence[str], *, timeout: float | None = None
    ) -> list[dict[str, list[bytes]] | HeadwaterError]:
        """See SequenceStore."""
        found: list[dict[str, list[bytes]] | HeadwaterError] = []
        for rows in await self.read_many(user_ids, views, timeout=timeout):
            if isinstance(rows, HeadwaterError):
                found.append(rows)
                continue
            chunks: dict[str, list[bytes]] = {}
            for row in reversed(rows):
                chunks.setdefault(row.view, []).append(row.value)
            found.append(chunks)
        return found


class InMemoryLogStore(_Twin):
    """Twin of `streams.log_store.LogStore`."""

    def __init__(self) -> None:
        super().__init__()
        self._epochs: dict[str, list[LogEpoch]] = {}

    async def read_epochs(self, topic: str) -> list[LogEpoch]:
        """See LogStore."""
        self._check()
        return list(self._epochs.get(topic, ()))

    async def open_epoch(
        self, topic: str, topic_id: str, partitions: int, opened_at: int
    ) -> LogEpoch:
        """See LogStore."""
        newest = next(iter(await self.read_epochs(topic)), None)
        if newest is not None and newest.is_of(topic_id, partitions):
            return newest
        opened = LogEpoch(topic, next_epoch(topic, newest), topic_id, partitions, opened_at)
        self._epochs.setdefault(topic, []).insert(0, opened)
        return opened


class InMemoryRepresentationStore(_Twin):
    """Twin of `streams.representation_store.RepresentationStore`, without TTLs."""

    def __init__(self) -> None:
        super().__init__()
        self._vectors: dict[tuple[str, str, str], Cells[None]] = {}
        self._versions: dict[tuple[str, str], EncoderVersion] = {}
        self._active: dict[str, str] = {}

    async def write_many(
        self,
        encoder: str,
        version: str,
        items: Sequence[tuple[str, Representation]],
        ttl_seconds: int | None = None,
    ) -> list[HeadwaterError | None]:
        """See RepresentationStore."""
        del ttl_seconds
        if self.fail_with is None:
            for user_id, item in items:
                cells = self._vectors.setdefault((encoder, version, user_id), Cells())
                cells.put(None, item.encode(), item.position)
        return [self.fail_with] * len(items)

    async def read_blobs(
        self,
        encoder: str,
        version: str,
        user_ids: Sequence[str],
        *,
        timeout: float | None = None,
    ) -> list[bytes | HeadwaterError | None]:
        """See RepresentationStore."""
        del timeout
        if self.fail_with is not None:
            return [self.fail_with] * len(user_ids)
        found: list[bytes | HeadwaterError | None] = []
        for user_id in user_ids:
            cells = self._vectors.get((encoder, version, user_id))
            found.append(cells.live().get(None, (0, None))[1] if cells is not None else None)
        return found

    async def read_many(
        self, encoder: str, version: str, user_ids: Sequence[str]
    ) -> list[Representation | HeadwaterError | None]:
        """See RepresentationStore."""
        blobs = await self.read_blobs(encoder, version, user_ids)
        return [Representation.decode(b) if isinstance(b, bytes) else b for b in blobs]

    async def delete(
        self, encoder: str, versions: Sequence[str], user_id: str, position: int
    ) -> None:
        """See RepresentationStore."""
        self._check()
        for version in versions:
            cells = self._vectors.setdefault((encoder, version, user_id), Cells())
            cells.delete_all(position - 1)

    async def read_versions(self, encoder: str) -> list[EncoderVersion]:
        """See RepresentationStore."""
        self._check()
        active = self._active.get(encoder)
        return newest_first(
            [
                EncoderVersion(
                    encoder,
                    known.version,
                    state_of(known.version, known.state, active),
                    known.created_at,
                    known.stats,
                )
                for (name, _), known in self._versions.items()
                if name == encoder
            ]
        )

    async def add_version(self, version: EncoderVersion) -> None:
        """See RepresentationStore."""
        self._check()
        check_version(version.version)
        self._versions[version.encoder, version.version] = version

    async def activate(self, encoder: str, version: str) -> None:
        """See RepresentationStore."""
        self._check()
        if (encoder, version) not in self._versions:
            raise unknown_version(encoder, version)
        self._active[encoder] = version

    async def active_version(self, encoder: str) -> str | None:
        """See RepresentationStore."""
        self._check()
        return self._active.get(encoder)


class InMemoryFeatureRowStore(_Twin):
    """Twin of `streams.feature_row_store.FeatureRowStore`."""

    def __init__(self, arrivals: Arrivals) -> None:
        super().__init__()
        self._arrivals = arrivals
        self._rows: dict[tuple[str, bytes], Cells[str]] = {}
        self._generations: dict[str, int] = {}

    async def write_many(self, rows: Sequence[FeatureRow]) -> list[HeadwaterError | None]:
        """See FeatureRowStore."""
        for row in rows:
            check_entity_key(row.entity_key)
        if self.fail_with is None:
            for row in rows:
                arrival = self._arrivals.next()
                cells = self._rows.setdefault((row.feature_view, row.entity_key), Cells())
                for feature, payload in row.features.items():
                    cells.put(feature, arrival + payload, row.event_time)
        return [self.fail_with] * len(rows)

    async def read_many(
        self,
        feature_view: str,
        entity_keys: Sequence[bytes],
        features: Sequence[str] | None = None,
        *,
        timeout: float | None = None,
    ) -> list[dict[str, FeatureCell] | HeadwaterError]:
        """See FeatureRowStore."""
        del timeout
        for entity_key in entity_keys:
            check_entity_key(entity_key)
        if self.fail_with is not None:
            return [self.fail_with] * len(entity_keys)
        found: list[dict[str, FeatureCell] | HeadwaterError] = []
        for key in entity_keys:
            cells = self._rows.get((feature_view, key))
            live = cells.live() if cells is not None else {}
            found.append(
                {
                    name: FeatureCell(payload_of(value), event_time)
                    for name, (event_time, value) in live.items()
                    if features is None or name in features
                }
            )
        return found

    async def generation(self, view_name: str) -> int:
        """See FeatureRowStore."""
        self._check()
        return self._generations.get(view_name, 0)

    async def drop(self, view_name: str) -> None:
        """See FeatureRowStore."""
        self._check()
        self._generations[view_name] = self._generations.get(view_name, 0) + 1
