"""`OnlineFeatures`: what a Python reader imports to get sequences and representations.

    online = OnlineFeatures(load_settings())
    batch = online.get(["alice", "bob"])                  # or: await online.get_async([...])
    clicks = batch.sequences["engagement"].columns        # values and offsets, numpy
    vectors = batch.representations["user_representation"].vector   # (B, D) float32

One answer has the users in the order asked for, repeats included, and says of each what came of
it: found, absent, expired or failed. Arrays go into torch without a copy per user:
`torch.from_numpy(columns.item_hash)`. Feast's SDK and feature server answer the same values.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import IntEnum
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from streams.columns import SequenceColumns
from streams.errors import ConfigError, HeadwaterError, UnknownFormat
from streams.reads import process_reads
from streams.representations import HEADER, RepresentationView, read_header
from streams.sequences import Mark, SequenceView
from streams.settings import Settings
from streams.stores import Stores, store_pool
from streams.views import DeclaredViews, declared_views, feature_store


class ReadOutcome(IntEnum):
    """What came of reading one user's value in one view."""

    FOUND = 0
    ABSENT = 1  # nothing is stored
    EXPIRED = 2  # older than the view's ttl: not answered as a value
    FAILED = 3  # no answer for this user, or an unreadable one; see `FeatureBatch.errors`


Outcomes = NDArray[np.uint8]
_NAMES = tuple((outcome.name.lower(), bytes([outcome])) for outcome in ReadOutcome)
# Looking a member up in its class costs as much as a dict's look-up.
_FOUND, _ABSENT, _EXPIRED, _FAILED = map(int, ReadOutcome)


class SequenceBatch(msgspec.Struct, frozen=True, eq=False):
    """A sequence view of B users. A user that isn't found has an empty range in `columns`."""

    view: SequenceView
    columns: SequenceColumns
    outcome: Outcomes  # (B,), of ReadOutcome

    def of(self, index: int) -> dict[str, list[Any]]:
        """One user's sequence as lists, newest last; absent surfaces and values are None."""
        columns = self.columns
        part = slice(int(columns.offsets[index]), int(columns.offsets[index + 1]))
        values = columns.value[part]
        return {
            "event_time": columns.event_time[part].tolist(),
            "item_id": columns.item_ids[part],
            "event_type": [columns.event_types[c] for c in columns.event_type[part].tolist()],
            "surface": [columns.surfaces[c] or None for c in columns.surface[part].tolist()],
            # The shortest text of a float32 is what the producer wrote, within its precision.
            "value": [None if v != v else float(str(v)) for v in values],
        }


class RepresentationBatch(msgspec.Struct, frozen=True, eq=False):
    """A representation view of B users, all of one version (R7). Zeros where none is found."""

    view: RepresentationView
    version: str | None
    vector: NDArray[np.float32]  # (B, D)
    as_of: NDArray[np.int64]  # (B,) ms, event time of the newest event in it
    encoded_at: NDArray[np.int64]  # (B,) ms
    position: NDArray[np.int64]  # (B,) log position
    outcome: Outcomes  # (B,), of ReadOutcome


class FeatureBatch(msgspec.Struct, frozen=True, eq=False):
    """The answer for B users; `errors` has a failed user's index and what the store said."""

    user_ids: list[str]
    sequences: dict[str, SequenceBatch]
    representations: dict[str, RepresentationBatch]
    errors: dict[int, HeadwaterError]


class OnlineFeatures:
    """Reads declared views straight from the store. One object serves any thread and loop.

    `views` come from the registry unless given. Every call ends within
    `cassandra.request_timeout_seconds`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        views: DeclaredViews | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._timeout = settings.cassandra.request_timeout_seconds
        self._pool = store_pool(settings.cassandra)
        self.views = views or declared_views(feature_store(settings))
        self._now = now

    def get(self, user_ids: Sequence[str], views: Collection[str] | None = None) -> FeatureBatch:
        """The features of some users, of all declared views or the named ones.

        Raises ConfigError for a view that isn't declared. What the store can't answer is FAILED in
        its place; the rest stands.
        """
        # Twice: a read of sequences and one of representations have a deadline each.
        return self._pool.run(self.get_async(user_ids, views), 2 * self._timeout)

    async def get_async(
        self, user_ids: Sequence[str], views: Collection[str] | None = None
    ) -> FeatureBatch:
        """Like `get`, in the caller's event loop."""
        sequences, representations = self._chosen(views)
        users = list(user_ids)
        stores = self._pool.stores()
        errors: dict[int, HeadwaterError] = {}
        reads = [
            asyncio.create_task(self._representation(stores, view, users, errors))
            for view in representations
        ]
        try:
            found = await self._sequences(stores, sequences, users, errors)
            others = [await read for read in reads]
        finally:
            for read in reads:  # if the caller has left; else they are done
                read.cancel()
        batch = FeatureBatch(users, found, {made.view.name: made for made in others}, errors)
        _count(batch, self._now())
        return batch

    async def forgotten_async(self, user_id: str) -> Mark | None:
        """The user's deletion mark; None if the user was never forgotten."""
        stored = await self._pool.stores().sequences.load(user_id, ())
        return None if stored.mark is None else Mark.decode(stored.mark)

    async def aclose(self) -> None:
        """Close the running loop's connections."""
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _chosen(
        self, names: Collection[str] | None
    ) -> tuple[list[SequenceView], list[RepresentationView]]:
        declared = self.views
        if names is None:
            return list(declared.sequences.values()), list(declared.representations.values())
        unknown = set(names) - declared.sequences.keys() - declared.representations.keys()
        if unknown:
            known = ", ".join([*declared.sequences, *declared.representations])
            raise ConfigError(f"no such view: {', '.join(sorted(unknown))}; there are: {known}")
        return (
            [view for name, view in declared.sequences.items() if name in names],
            [view for name, view in declared.representations.items() if name in names],
        )

    async def _sequences(
        self,
        stores: Stores,
        views: list[SequenceView],
        users: list[str],
        errors: dict[int, HeadwaterError],
    ) -> dict[str, SequenceBatch]:
        if not views:
            return {}
        names = [view.name for view in views]
        answers = await stores.sequences.read_chunks(users, names, timeout=self._timeout)
        found: list[Mapping[str, list[bytes]]] = []
        failed = []
        for index, answer in enumerate(answers):
            if isinstance(answer, HeadwaterError):
                failed.append(index)
                errors[index] = answer
                found.append({})
            else:
                found.append(answer)
        return {
            view.name: self._batch(
                view, [mine.get(view.name, []) for mine in found], failed, errors
            )
            for view in views
        }

    def _batch(
        self,
        view: SequenceView,
        chunks: list[list[bytes]],
        failed: list[int],
        errors: dict[int, HeadwaterError],
    ) -> SequenceBatch:
        try:
            columns = SequenceColumns(chunks, view)
        except UnknownFormat:
            unreadable = _unreadable(chunks, view)
            errors |= unreadable
            failed = [*failed, *unreadable]
            chunks = [[] if index in unreadable else mine for index, mine in enumerate(chunks)]
            columns = SequenceColumns(chunks, view)
        newest = columns.newest_time
        outcome = np.where(newest < 0, _ABSENT, _FOUND).astype(np.uint8)
        if view.ttl_seconds is not None:
            expired = (newest >= 0) & (newest < (self._now() - view.ttl_seconds) * 1000)
            if expired.any():
                kept = [[] if gone else mine for gone, mine in zip(expired, chunks, strict=True)]
                columns = SequenceColumns(kept, view)
                outcome[expired] = _EXPIRED
        if failed:
            outcome[failed] = _FAILED
        return SequenceBatch(view, columns, outcome)

    async def _representation(
        self,
        stores: Stores,
        view: RepresentationView,
        users: list[str],
        errors: dict[int, HeadwaterError],
    ) -> RepresentationBatch:
        count = len(users)
        version: str | None = None
        away: HeadwaterError | None = None
        try:
            version = await stores.active_versions.get(view.encoder)
        except HeadwaterError as error:
            away = error
        made = RepresentationBatch(
            view,
            version,
            np.zeros((count, view.dimensions), np.float32),
            np.zeros(count, np.int64),
            np.zeros(count, np.int64),
            np.zeros(count, np.int64),
            np.full(count, _ABSENT, np.uint8),
        )
        if away is not None:
            made.outcome[:] = _FAILED
            errors.update(dict.fromkeys(range(count), away))
        if version is None:
            return made
        blobs = await stores.representations.read_blobs(
            view.encoder, version, users, timeout=self._timeout
        )
        oldest = -np.inf if view.ttl_seconds is None else (self._now() - view.ttl_seconds) * 1000
        for index, blob in enumerate(blobs):
            if isinstance(blob, HeadwaterError):
                made.outcome[index] = _FAILED
                errors[index] = blob
            elif blob is not None:
                try:
                    _fill(made, index, blob, oldest)
                except UnknownFormat as error:
                    made.outcome[index] = _FAILED
                    errors[index] = error
        return made


def _count(batch: FeatureBatch, read_at: float) -> None:
    reads = process_reads()
    outcomes = {name: found.outcome for name, found in batch.sequences.items()}
    outcomes |= {name: made.outcome for name, made in batch.representations.items()}
    for name, outcome_codes in outcomes.items():
        codes = outcome_codes.tobytes()
        reads.outcomes(name, {outcome: codes.count(code) for outcome, code in _NAMES})
    users = batch.user_ids
    for made in batch.representations.values():
        columns = (made.outcome.tolist(), made.position.tolist(), made.encoded_at.tolist())
        found = [
            (user_id, position, encoded_at)
            for user_id, outcome, position, encoded_at in zip(users, *columns, strict=True)
            if outcome == _FOUND
        ]
        reads.representations(made.view.encoder, made.version or "", found, read_at)


def _unreadable(chunks: list[list[bytes]], view: SequenceView) -> dict[int, HeadwaterError]:
    """The users with a chunk of a newer writer or a damaged one, and what is wrong with it."""
    found: dict[int, HeadwaterError] = {}
    for index, mine in enumerate(chunks):
        try:
            SequenceColumns([mine], view)
        except UnknownFormat as error:
            found[index] = error
    return found


def _fill(made: RepresentationBatch, index: int, blob: bytes, oldest: float) -> None:
    _, _, dimensions, _, as_of, position, encoded_at = read_header(blob)
    made.as_of[index], made.position[index] = as_of, position
    made.encoded_at[index] = encoded_at
    if (
        dimensions != made.view.dimensions
    ):  # a declaration changed: not the space that was asked for
        return
    if encoded_at < oldest:
        made.outcome[index] = _EXPIRED
        return
    made.vector[index] = np.frombuffer(blob, "<f4", dimensions, HEADER.size)
    made.outcome[index] = _FOUND
