"""Times reads of the platform's features: two views of 256 events and a representation.

    HOW USERS_FILE REPEATS [URL]

HOW is `get`, `get_async` (OnlineFeatures), `sdk` (plain get_online_features on our store), `http`
(Feast's feature server at URL), or `bound`: the same rows by acsylla alone, not looked at.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import acsylla

from streams.online import OnlineFeatures, ReadOutcome
from streams.settings import Settings, load_settings
from streams.views import (
    REPRESENTATION_FEATURES,
    SEQUENCE_FEATURES,
    DeclaredViews,
    declared_views,
    feature_store,
)
from tests.benchmarks.competitors.latency import measure

Call = Callable[[list[str]], Any]


def _feature_names(views: DeclaredViews) -> list[str]:
    return [f"{v}:{f}" for v in views.sequences for f in SEQUENCE_FEATURES] + [
        f"{v}:{f}" for v in views.representations for f in REPRESENTATION_FEATURES
    ]


def _get(settings: Settings) -> Call:
    online = OnlineFeatures(settings)

    def call(users: list[str]) -> None:
        batch = online.get(users)
        outcomes = [found.outcome for found in batch.sequences.values()]
        outcomes += [found.outcome for found in batch.representations.values()]
        assert all((outcome == ReadOutcome.FOUND).all() for outcome in outcomes)

    return call


def _get_async(settings: Settings) -> Call:
    online, loop = OnlineFeatures(settings), asyncio.new_event_loop()
    return lambda users: loop.run_until_complete(online.get_async(users))


def _sdk(settings: Settings) -> Call:
    store = feature_store(settings)
    names = _feature_names(declared_views(store))
    return lambda users: store.get_online_features(
        names, [{"user_id": user} for user in users], full_feature_names=True
    )


def _http(settings: Settings, url: str) -> Call:
    names = _feature_names(declared_views(feature_store(settings)))
    address = urlsplit(url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)

    def call(users: list[str]) -> None:
        question = {"features": names, "entities": {"user_id": users}, "full_feature_names": True}
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/get-online-features", json.dumps(question), headers)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body[:500]

    return call


def _bound(settings: Settings) -> Call:
    loop = asyncio.new_event_loop()
    cassandra, views = settings.cassandra, declared_views(feature_store(settings))
    names = list(views.sequences)

    async def connect() -> tuple[Any, Any, Any]:
        cluster = acsylla.create_cluster(list(cassandra.contact_points), port=cassandra.port)
        session = await cluster.create_session(keyspace=cassandra.keyspace)
        sequences = await session.create_prepared(
            "SELECT feature_view, chunk, value FROM user_sequence "
            "WHERE user_id = ? AND feature_view IN ?"
        )
        representations = await session.create_prepared(
            "SELECT value FROM representation WHERE encoder = ? AND version = ? AND user_id = ?"
        )
        return session, sequences, representations

    session, sequences, representations = loop.run_until_complete(connect())
    encoder = next(iter(views.representations.values())).encoder

    async def read(users: list[str]) -> None:
        statements = []
        for user in users:
            statements += [
                sequences.bind([user, names]),
                representations.bind([encoder, "1", user]),
            ]
        results = await asyncio.gather(*(session.execute(one) for one in statements))
        rows = [row.as_list() for result in results for row in result]
        assert len(rows) >= len(users)

    return lambda users: loop.run_until_complete(read(users))


def main() -> None:
    """Measure one way of reading."""
    how, users_file, repeats, *url = sys.argv[1:]
    users = json.loads(Path(users_file).read_text())
    settings = load_settings()
    if how == "http":
        call = _http(settings, url[0])
    else:
        call = {"get": _get, "get_async": _get_async, "sdk": _sdk, "bound": _bound}[how](settings)
    measure(call, users, int(repeats))


if __name__ == "__main__":
    main()
