"""Feast's questions answered from the tables: one answer per view, all read side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from streams.columns import SequenceColumns
from streams.errors import HeadwaterError, StoreUnavailable
from streams.feast_answers import (
    EXPIRED,
    NOT_FOUND,
    PRESENT,
    Answer,
    Request,
    schema_version,
)
from streams.feast_values import representation_values, sequence_values
from streams.feature_row_store import stored_view, view_name
from streams.reads import process_reads
from streams.representations import RepresentationView, read_header
from streams.sequences import SequenceView
from streams.stores import Stores

_SECOND_US = 1_000_000
T = TypeVar("T")


class Reading(NamedTuple):
    """What all answers of one call have in common; `now` in µs, `clock` in seconds."""

    project: str
    now: int
    clock: Callable[[], float]
    enforce_ttl: bool
    versioning: bool


async def read_answers(
    stores: Stores, requests: Sequence[Request], reading: Reading, timeout: float
) -> list[Answer]:
    """All answers, read side by side. Raises StoreUnavailable or StoreRejected, never a part."""
    try:
        async with asyncio.timeout(timeout):
            versions = await _active_versions(stores, requests)
            sequences = _SequenceReads(stores, requests)
            return await _all(
                [
                    sequences.answer(request, reading)
                    if isinstance(request.view, SequenceView)
                    else _representations(stores, request, versions, reading)
                    if isinstance(request.view, RepresentationView)
                    else _rows(stores, request, reading)
                    for request in requests
                ]
            )
    except TimeoutError:
        raise StoreUnavailable(f"Cassandra didn't answer within {timeout:g} s") from None


async def _all(works: Sequence[Any]) -> list[Answer]:
    """Like gather, but the first error ends the others."""
    if len(works) == 1:
        return [await works[0]]
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


async def _active_versions(stores: Stores, requests: Sequence[Request]) -> dict[str, str | None]:
    """Looked up once per call, so that no answer mixes two versions of an encoder (R7)."""
    encoders = {r.view.encoder for r in requests if isinstance(r.view, RepresentationView)}
    return {encoder: await stores.active_versions.get(encoder) for encoder in encoders}


class _SequenceReads:
    """Sequence views that are asked for the same users are one read: they share a partition."""

    def __init__(self, stores: Stores, requests: Sequence[Request]) -> None:
        self._stores = stores
        self._reads: list[tuple[list[str], list[str]]] = []
        self._tasks: dict[int, asyncio.Task[list[dict[str, list[bytes]]]]] = {}
        for request in requests:
            if isinstance(request.view, SequenceView):
                place = self._place(request.user_ids)
                if request.view.name not in self._reads[place][1]:
                    self._reads[place][1].append(request.view.name)

    def _place(self, user_ids: list[str]) -> int:
        for place, (users, _) in enumerate(self._reads):
            if users == user_ids:
                return place
        self._reads.append((user_ids, []))
        return len(self._reads) - 1

    async def answer(self, request: Request, reading: Reading) -> Answer:
        """The answer for one of the views."""
        place = self._place(request.user_ids)
        if place not in self._tasks:
            self._tasks[place] = asyncio.ensure_future(self._read(*self._reads[place]))
        users = await self._tasks[place]
        assert isinstance(request.view, SequenceView)
        name = request.view.name
        columns = SequenceColumns([user.get(name, []) for user in users], request.view)
        return _sequence_answer(request, columns, reading)

    async def _read(self, users: list[str], views: list[str]) -> list[dict[str, list[bytes]]]:
        return _whole(await self._stores.sequences.read_chunks(users, views), ", ".join(views))


def _sequence_answer(request: Request, columns: SequenceColumns, reading: Reading) -> Answer:
    view = request.view
    assert isinstance(view, SequenceView)
    oldest = _oldest(view.ttl_seconds, reading)
    times = [None if ms < 0 else ms * 1_000 for ms in columns.newest_time.tolist()]
    statuses = [NOT_FOUND if at is None else EXPIRED if at < oldest else PRESENT for at in times]
    made = sequence_values(columns, request.features)
    return Answer(
        values=[
            [v if s == PRESENT else b"" for v, s in zip(made[name], statuses, strict=True)]
            for name in request.features
        ],
        statuses=[statuses] * len(request.features),
        times=[times] * len(request.features),
    )


async def _representations(
    stores: Stores, request: Request, versions: dict[str, str | None], reading: Reading
) -> Answer:
    view = request.view
    assert isinstance(view, RepresentationView)
    version = versions[view.encoder]
    blobs: list[bytes | None] = [None] * len(request.user_ids)
    if version is not None:
        outcomes = await stores.representations.read_blobs(view.encoder, version, request.user_ids)
        blobs = _whole(outcomes, view.name)
    oldest = _oldest(view.ttl_seconds, reading)
    statuses: list[int] = []
    times: list[int | None] = []
    rows: list[dict[str, bytes]] = []
    found: list[tuple[str, int, int]] = []
    for user_id, blob in zip(request.user_ids, blobs, strict=True):
        if blob is None:
            statuses.append(NOT_FOUND)
            times.append(None)
            rows.append({})
            continue
        header = read_header(blob)
        # The view's ttl is how long a vector lives after it was encoded (as in the table).
        live = header[6] * 1_000 >= oldest
        if live:
            found.append((user_id, header[5], header[6]))
        statuses.append(PRESENT if live else EXPIRED)
        times.append(header[4] * 1_000)
        rows.append(
            representation_values(blob, view.encoder, version or "", request.features)
            if live
            else {}
        )
    process_reads().representations(view.encoder, version or "", found, reading.clock())
    return Answer(
        values=[[row.get(name, b"") for row in rows] for name in request.features],
        statuses=[statuses] * len(request.features),
        times=[times] * len(request.features),
    )


async def _rows(stores: Stores, request: Request, reading: Reading) -> Answer:
    table = request.table
    name = view_name(reading.project, table.name)
    generation = await stores.generations.get(name)
    stored = stored_view(name, generation, schema_version(table, reading.versioning))
    every = len(request.features) >= len(table.features)
    outcomes = await stores.feature_rows.read_many(
        stored, request.keys, None if every else request.features
    )
    rows = _whole(outcomes, table.name)
    ttl = table.ttl.total_seconds() if table.ttl else None
    oldest = _oldest(ttl, reading)
    values: list[list[bytes]] = []
    statuses: list[list[int]] = []
    times: list[list[int | None]] = []
    for feature in request.features:
        cells = [row.get(feature) for row in rows]
        found = [
            NOT_FOUND if cell is None else EXPIRED if cell.event_time < oldest else PRESENT
            for cell in cells
        ]
        values.append(
            [
                cell.payload if cell is not None and status == PRESENT else b""
                for cell, status in zip(cells, found, strict=True)
            ]
        )
        statuses.append(found)
        times.append([None if cell is None else cell.event_time for cell in cells])
    return Answer(values, statuses, times)


def _oldest(ttl_seconds: float | None, reading: Reading) -> float:
    """Times (µs) before this one are expired."""
    if not ttl_seconds or not reading.enforce_ttl:
        return float("-inf")
    return reading.now - ttl_seconds * _SECOND_US


def _whole(outcomes: Sequence[T | HeadwaterError], view: str) -> list[T]:
    """The outcomes, if all succeeded: one entity that can't be read is not one without features."""
    found: list[T] = []
    failed: list[HeadwaterError] = []
    for outcome in outcomes:
        if isinstance(outcome, HeadwaterError):
            failed.append(outcome)
        else:
            found.append(outcome)
    if failed:
        raise type(failed[0])(f"{view}: {len(failed)} of {len(outcomes)} entities: {failed[0]}")
    return found
