"""The demo's serving log: what a ranker would have read just before each of the later events.

A sample is a later `view` event; its label is whether the user liked the item. Fresh features are
read while the stream runs, shortly before the event is sent; stale ones once, before the stream.
Nothing of the event itself, or of what comes after it, can be in them.
"""

from __future__ import annotations

import asyncio
import random

import msgspec

from encoders.downstream import Served
from infra.demo.movielens import LIKED
from streams.events import Event
from streams.online import FeatureBatch, OnlineFeatures, ReadOutcome
from streams.settings import Settings

MAX_SAMPLES = 6_000
_AHEAD_SECONDS = 0.4


class Sample(msgspec.Struct):
    """One question to the ranker, in the order of the stream."""

    event: Event
    at: float
    fresh: Served | None = None
    stale: Served | None = None

    @property
    def is_liked(self) -> bool:
        return (self.event.value or 0.0) >= LIKED


class ServingLog:
    """Reads features ahead of the events and keeps them; belongs to one event loop."""

    def __init__(self, settings: Settings, later: list[Event], pace: float, seed: int) -> None:
        views = [place for place, event in enumerate(later) if event.event_type == "view"]
        chosen = random.Random(seed).sample(views, min(MAX_SAMPLES, len(views)))
        self.samples = [Sample(later[place], place / pace) for place in sorted(chosen)]
        self._settings = settings
        self._next = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._online: OnlineFeatures | None = None

    async def open(self) -> None:
        """Connect, and read the stale features: those of the end of the earlier part."""
        online = self._online = OnlineFeatures(self._settings)
        users = sorted({sample.event.user_id for sample in self.samples})
        batch = await online.get_async(users)
        stale = {user: _served(batch, index) for index, user in enumerate(users)}
        for sample in self.samples:
            sample.stale = stale[sample.event.user_id]

    def before(self, at: float) -> None:
        """The stream is about to send what is due `at` seconds: read what comes next."""
        if self._next < len(self.samples) and self.samples[self._next].at <= at + 0.05:
            first = self._next
            while (
                self._next < len(self.samples)
                and self.samples[self._next].at <= at + _AHEAD_SECONDS
            ):
                self._next += 1
            ahead = self.samples[first : self._next]
            self._tasks.append(asyncio.create_task(self._read(ahead)))

    async def finish(self) -> None:
        """Wait for all reads, close the connection. Raises what a read raised."""
        await asyncio.gather(*self._tasks)
        self.samples = [sample for sample in self.samples if sample.fresh is not None]
        await self.close()

    async def close(self) -> None:
        """Close the connection; reads that are under way are given up."""
        for task in self._tasks:
            task.cancel()
        if self._online is not None:
            await self._online.aclose()
            self._online = None

    async def _read(self, samples: list[Sample]) -> None:
        assert self._online is not None
        batch = await self._online.get_async([sample.event.user_id for sample in samples])
        for index, sample in enumerate(samples):
            sample.fresh = _served(batch, index)


def _served(batch: FeatureBatch, index: int) -> Served:
    error = batch.errors.get(index)
    if error is not None:
        raise error
    (representation,) = batch.representations.values()
    there = representation.outcome[index] == ReadOutcome.FOUND
    columns = batch.sequences["engagement"].columns
    part = slice(int(columns.offsets[index]), int(columns.offsets[index + 1]))
    vector = representation.vector[index].copy() if there else None
    return Served(vector, columns.item_hash[part].copy(), columns.value[part].copy())
