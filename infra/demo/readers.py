"""Reading features in the three ways that users have, for comparison with each other."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from infra.demo import oracle
from infra.demo.oracle import Kept
from streams.events import Event
from streams.online import FeatureBatch, OnlineFeatures, ReadOutcome
from streams.settings import Settings
from streams.views import (
    REPRESENTATION_FEATURES,
    SEQUENCE_FEATURES,
    DeclaredViews,
    declared_views,
    feature_store,
)

_TIMEOUT_SECONDS = 30.0
_USERS_AT_ONCE = 200
_READ_USERS = 24


class Features(msgspec.Struct, frozen=True):
    """One user's features in plain values, the same whoever read them."""

    sequences: dict[str, list[Kept]]
    vectors: dict[str, list[float]]
    versions: dict[str, str | None]
    as_of: dict[str, int | None]


Answers = dict[str, Features]


class Checked(msgspec.Struct, frozen=True):
    """Whether some users' features are the same in all three ways, and everybody's sequences
    those of the recomputation; a line for each that isn't."""

    num_users: int
    reads_equal: bool
    differences: list[str]


def check(settings: Settings, url: str, events: list[Event]) -> Checked:
    """Read what is served after these events; `url` is the feature server's."""
    store = feature_store(settings)
    views = declared_views(store).sequences.values()
    expected = {view.name: oracle.sequences(events, view) for view in views}
    users = sorted({event.user_id for event in events})
    equal = all_equal(three_ways(settings, store, url, users[:_READ_USERS]))
    served = online_sequences(settings, users)
    return Checked(len(users), equal, differences(served, expected, users))


def three_ways(settings: Settings, store: Any, url: str, users: list[str]) -> dict[str, Answers]:
    """The users' features by OnlineFeatures, the Feast SDK and the HTTP feature server."""
    online = OnlineFeatures(settings)
    names = _feature_names(online.views)
    by_sdk = store.get_online_features(
        features=names, entity_rows=[{"user_id": user} for user in users], full_feature_names=True
    ).to_dict()
    return {
        "OnlineFeatures": _from_batch(online.get(users)),
        "Feast SDK": _from_columns(by_sdk, users, online.views),
        "HTTP feature server": _from_columns(_ask(url, names, users), users, online.views),
    }


def all_equal(answers: dict[str, Answers]) -> bool:
    """Whether everybody got the same values."""
    first, *others = answers.values()
    return all(other == first for other in others)


def online_sequences(settings: Settings, users: list[str]) -> dict[str, dict[str, list[Kept]]]:
    """Every user's sequences by view, by OnlineFeatures."""
    return asyncio.run(_online_sequences(settings, users))


async def _online_sequences(
    settings: Settings, users: list[str]
) -> dict[str, dict[str, list[Kept]]]:
    found: dict[str, dict[str, list[Kept]]] = {}
    async with OnlineFeatures(settings) as online:
        for start in range(0, len(users), _USERS_AT_ONCE):
            batch = await online.get_async(
                users[start : start + _USERS_AT_ONCE], list(online.views.sequences)
            )
            for user, features in _from_batch(batch).items():
                found[user] = features.sequences
    return found


def differences(
    served: dict[str, dict[str, list[Kept]]],
    expected: dict[str, dict[str, list[Kept]]],
    users: Iterable[str],
) -> list[str]:
    """One line for every user and view whose served sequence isn't the expected one."""
    lines = []
    for user in users:
        for view, sequences in expected.items():
            wanted, got = sequences.get(user, []), served[user][view]
            if wanted != got:
                lines.append(
                    f"user {user}, {view}: {len(got)} events served, {len(wanted)} expected; "
                    f"newest {got[-1:]} against {wanted[-1:]}"
                )
    return lines


def _feature_names(views: DeclaredViews) -> list[str]:
    names = [f"{view}:{name}" for view in views.sequences for name in SEQUENCE_FEATURES]
    return names + [
        f"{view}:{name}" for view in views.representations for name in REPRESENTATION_FEATURES
    ]


def _ask(url: str, names: list[str], users: list[str]) -> dict[str, list[Any]]:
    """What the feature server says, as columns."""
    question = {"features": names, "entities": {"user_id": users}, "full_feature_names": True}
    request = urllib.request.Request(
        f"{url}/get-online-features",
        json.dumps(question).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:
        answer = json.load(response)
    return {
        name: result["values"]
        for name, result in zip(answer["metadata"]["feature_names"], answer["results"], strict=True)
    }


def _from_columns(columns: dict[str, list[Any]], users: list[str], views: DeclaredViews) -> Answers:
    return {
        user: Features(
            {view: _kept(columns, view, row) for view in views.sequences},
            {view: _vector(columns[f"{view}__vector"][row]) for view in views.representations},
            {view: columns[f"{view}__version"][row] for view in views.representations},
            {view: columns[f"{view}__as_of"][row] for view in views.representations},
        )
        for row, user in enumerate(users)
    }


def _kept(columns: dict[str, list[Any]], view: str, row: int) -> list[Kept]:
    lists = [columns[f"{view}__{name}"][row] or [] for name in SEQUENCE_FEATURES]
    return [
        (time, item, event_type, surface, _number(value))
        for time, item, event_type, surface, value in zip(*lists, strict=True)
    ]


def _number(value: Any) -> float | None:
    """NaN is what a missing value is in Feast's floats, null in JSON, "NaN" in protobuf's JSON.

    Others as the shortest text of a float32 gives them: some readers get that, some the float.
    """
    number = np.float32("nan" if value is None else value)
    return None if np.isnan(number) else float(str(number))


def _vector(values: Any) -> list[float]:
    return [float(number) for number in np.asarray([] if values is None else values, np.float32)]


def _from_batch(batch: FeatureBatch) -> Answers:
    answers = {}
    for index, user in enumerate(batch.user_ids):
        sequences = {}
        for view, found in batch.sequences.items():
            lists = found.of(index)
            surfaces = [surface or "" for surface in lists["surface"]]
            columns = (lists["event_time"], lists["item_id"], lists["event_type"], surfaces)
            sequences[view] = list(zip(*columns, lists["value"], strict=True))
        there = {
            view: found.outcome[index] == ReadOutcome.FOUND
            for view, found in batch.representations.items()
        }
        made = batch.representations
        answers[user] = Features(
            sequences,
            {view: _vector(made[view].vector[index]) if there[view] else [] for view in made},
            {view: made[view].version if there[view] else None for view in made},
            {view: int(made[view].as_of[index]) if there[view] else None for view in made},
        )
    return answers
