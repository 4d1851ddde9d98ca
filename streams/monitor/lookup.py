"""What a reader gets of a user, through Feast: for canaries and for the page's look-up."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from streams.errors import HeadwaterError
from streams.feast_answers import EXPIRED, NOT_FOUND, PRESENT
from streams.monitor.answers import RepresentationRead, SequenceRead, UserLookup
from streams.monitor.canary import SeenUser
from streams.representations import RepresentationView
from streams.sequence_store import SequenceStore
from streams.sequences import Mark, SequenceView, StoredUser
from streams.views import DeclaredViews

_SHOWN_EVENTS = 50
_SHOWN_DIMENSIONS = 8
_STATUSES = {PRESENT: "found", NOT_FOUND: "absent", EXPIRED: "expired"}
_SEQUENCE = ("event_time", "item_id", "event_type", "surface")
_REPRESENTATION = ("vector", "as_of", "encoder", "version", "encoded_at", "position")
_MAX_USER_ID = 256


class Read(NamedTuple):
    """A feature's value as Feast's protobuf, and its status."""

    value: Any
    status: int


class FeastReader:
    """Reads users with a Feast store (`views.feature_store`), as any reader would."""

    def __init__(
        self,
        feast: Any,
        declared: Callable[[], DeclaredViews],
        sequences: SequenceStore,
        now: Callable[[], float],
        canary_views: tuple[SequenceView, RepresentationView | None],
    ) -> None:
        self._feast = feast
        self._declared = declared
        self._sequences = sequences
        self._now = now
        self._canary_views = canary_views

    async def read(self, user_id: str) -> SeenUser:
        """See `canary.Reader`."""
        sequence, representation = self._canary_views
        wanted = [f"{sequence.name}:item_id"]
        if representation is not None:
            wanted.append(f"{representation.name}:as_of")
        found = await self._ask(user_id, wanted)
        items = found[wanted[0]]
        newest = items.value.string_list_val.val[-1] if items.status == PRESENT else None
        as_of = None
        if representation is not None and found[wanted[1]].status == PRESENT:
            as_of = found[wanted[1]].value.int64_val
        return SeenUser(newest, as_of)

    async def user(self, user_id: str) -> UserLookup:
        """All that a reader gets for a user; what fails is in `problem`."""
        started = self._now()
        if not 0 < len(user_id) <= _MAX_USER_ID:
            problem = f"a user id has 1 to {_MAX_USER_ID} characters"
            return UserLookup(user_id=user_id[:_MAX_USER_ID], at=round(started * 1000),
                              read_seconds=0.0, problem=problem)  # fmt: skip
        declared = self._declared()
        wanted = [f"{name}:{f}" for name in declared.sequences for f in _SEQUENCE]
        wanted += [f"{name}:{f}" for name in declared.representations for f in _REPRESENTATION]
        try:
            found, stored = await asyncio.gather(
                self._ask(user_id, wanted),
                self._sequences.load(user_id, list(declared.sequences)),
            )
        except HeadwaterError as error:
            return UserLookup(user_id=user_id, at=round(started * 1000),
                              read_seconds=self._now() - started, problem=str(error))  # fmt: skip
        now = self._now()
        return UserLookup(
            user_id=user_id,
            at=round(now * 1000),
            read_seconds=now - started,
            forgotten_at=None if stored.mark is None else Mark.decode(stored.mark).forgotten_at,
            sequences=tuple(_sequence(view, found, now) for view in declared.sequences.values()),
            representations=tuple(
                _representation(view, found, stored, now)
                for view in declared.representations.values()
            ),
        )

    async def _ask(self, user_id: str, wanted: list[str]) -> dict[str, Read]:
        response = await self._feast.get_online_features_async(
            features=wanted, entity_rows=[{"user_id": user_id}], full_feature_names=True
        )
        names = response.proto.metadata.feature_names.val
        by_name = {
            name: Read(result.values[0], result.statuses[0])
            for name, result in zip(names, response.proto.results, strict=True)
        }
        return {feature: by_name[feature.replace(":", "__")] for feature in wanted}


def _sequence(view: SequenceView, found: Mapping[str, Read], now: float) -> SequenceRead:
    times, items, types, surfaces = (found[f"{view.name}:{name}"] for name in _SEQUENCE)
    if times.status != PRESENT:
        return SequenceRead(view=view.name, length=0, max_length=view.max_length, age_seconds=None,
                            event_time=(), item_id=(), event_type=(), surface=())  # fmt: skip
    all_times = times.value.int64_list_val.val
    return SequenceRead(
        view=view.name,
        length=len(all_times),
        max_length=view.max_length,
        age_seconds=now - all_times[-1] / 1000,
        event_time=tuple(all_times[-_SHOWN_EVENTS:]),
        item_id=tuple(items.value.string_list_val.val[-_SHOWN_EVENTS:]),
        event_type=tuple(types.value.string_list_val.val[-_SHOWN_EVENTS:]),
        surface=tuple(surfaces.value.string_list_val.val[-_SHOWN_EVENTS:]),
    )


def _representation(
    view: RepresentationView, found: Mapping[str, Read], stored: StoredUser, now: float
) -> RepresentationRead:
    vector, as_of, encoder, version, encoded_at, position = (
        found[f"{view.name}:{name}"] for name in _REPRESENTATION
    )
    status = _STATUSES.get(vector.status, "failed")
    if vector.status != PRESENT:
        return RepresentationRead(view=view.name, status=status, tier="none", encoder=view.encoder)
    values = vector.value.float_list_val.val
    reached = position.value.int64_val
    newest = max((row.position for row in stored.rows if row.view in view.sequences), default=0)
    return RepresentationRead(
        view=view.name,
        status=status,
        tier="precomputed",
        encoder=encoder.value.string_val,
        version=version.value.string_val,
        as_of=as_of.value.int64_val,
        age_seconds=now - as_of.value.int64_val / 1000,
        encoded_at=encoded_at.value.int64_val,
        position=reached,
        is_current=reached >= newest,
        dimensions=len(values),
        norm=math.sqrt(sum(value * value for value in values)),
        preview=tuple(values[:_SHOWN_DIMENSIONS]),
    )
