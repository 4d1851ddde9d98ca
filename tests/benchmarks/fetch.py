"""Features out: 1, 10 and 100 users, two views of 256 events and one representation each."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd

from infra.local.bootstrap import ROOT
from infra.local.ports import free_port
from streams.cassandra import Session
from streams.events import Event
from streams.online import OnlineFeatures, SequenceBatch
from streams.representation_store import RepresentationStore
from streams.representations import EncoderVersion, Representation, VersionState
from streams.sequence_store import SequenceStore
from streams.sequences import StoredUser, UserState, log_position
from streams.views import declared_views, feature_store
from streams.workers.declarations import read_views
from tests.benchmarks.competitors.latency import SIZES
from tests.benchmarks.environments import python_of
from tests.benchmarks.inputs import FIRST_TIME
from tests.benchmarks.repos import make_repo
from tests.benchmarks.stand import Place, Result, Stand, interleaved, say

_VIEWS = {"engagement": 256, "history": 256}
_EVENTS = 300
_DIMENSIONS = 64


def fetch(stand: Stand) -> Result:
    """Every reader once a round; competitor ÷ ours where larger is better, ours ÷ bound."""
    num_users, repeats = min(1_000, stand.count(1_000)), stand.count(20_000) // 50
    repo = make_repo(stand.stack.home.root.parent / "repos" / "fetch", _VIEWS, representation=True)
    with stand.place(repo=repo) as place:
        users = [f"user-{number:05d}" for number in range(max(200, num_users))]
        users_file = place.home / "users.json"
        users_file.write_text(json.dumps(users))
        say(f"filling {len(users)} users")
        asyncio.run(_fill(place, users))
        folder = place.home / "values"
        _write_values(place, users, folder)
        cassandra = place.settings.cassandra
        stock = (folder, cassandra.port, cassandra.keyspace, repeats)
        python = python_of("feast")
        say("filling stock Feast")
        place.run("competitors.feast_reads", "fill", *stock, python=python)
        with _feature_server(place) as url:

            def ours(how: str, *more: str) -> Result:
                return place.run("programs.fetch", how, users_file, repeats, *more)

            # Until its hot code is compiled and what was filled is compacted, Cassandra is slow.
            say(f"warm-up: {json.dumps(ours('bound'))}")
            results = interleaved(
                stand.rounds,
                {
                    "get": lambda: ours("get"),
                    "get_async": lambda: ours("get_async"),
                    "sdk": lambda: ours("sdk"),
                    "http": lambda: ours("http", url),
                    "bound": lambda: ours("bound"),
                    "feast_cassandra": lambda: place.run(
                        "competitors.feast_reads", "read", *stock, python=python
                    ),
                },
            )
    return _figures(results) | {"users": len(users), "repeats": repeats}


def _figures(results: dict[str, list[Result]]) -> Result:
    ms = {
        name: {
            quantile: {
                str(size): statistics.median(found[quantile][str(size)] for found in rounds)
                for size in SIZES
            }
            for quantile in ("p50_ms", "p99_ms")
        }
        for name, rounds in results.items()
    }

    def ratio(above: str, below: str, quantile: str) -> dict[str, float]:
        top, bottom = ms[above][quantile], ms[below][quantile]
        return {size: round(top[size] / bottom[size], 2) for size in top}

    figures: Result = {"ms": ms, "vs_bound": {"p50": ratio("get", "bound", "p50_ms")}}
    if "feast_cassandra" in ms:
        for field, name in (("vs_feast_cassandra", "get"), ("sdk_vs_feast_cassandra", "sdk")):
            figures[field] = {
                "p50": ratio("feast_cassandra", name, "p50_ms"),
                "p99": ratio("feast_cassandra", name, "p99_ms"),
            }
    return figures


async def _fill(place: Place, users: list[str]) -> None:
    """Sequences by the fold, as the worker would; random vectors of unit length."""
    session = Session(place.settings.cassandra)
    views = read_views(place.settings)
    sequences, representations = SequenceStore(session), RepresentationStore(session)
    random = np.random.default_rng(5)
    slots = asyncio.Semaphore(64)

    async def fill(number: int, user: str) -> None:
        state = UserState(user, views.set, StoredUser())
        for index in range(_EVENTS):
            event = Event(
                f"{number:x}-{index:x}", user, f"item-{random.integers(100_000)}",
                ("impression", "view", "click", "like")[index % 4], FIRST_TIME + index * 60_000,
                "feed", round(float(random.random()), 3) if index % 5 == 0 else None,
            )  # fmt: skip
            state.apply(event, log_position(1, number * _EVENTS + index), views.set)
            if index % 100 == 99:  # batches as they come: several chunks
                flush = state.flush()
                assert flush is not None
                async with slots:
                    await sequences.write(flush)

    try:
        await asyncio.gather(*(fill(number, user) for number, user in enumerate(users)))
        (view,) = views.representations
        encoder = view.encoder
        vectors = random.normal(size=(len(users), _DIMENSIONS)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        now = int(time.time() * 1000)
        await representations.add_version(EncoderVersion(encoder, "1", VersionState.READY, now, {}))
        await representations.activate(encoder, "1")
        await representations.write_many(
            encoder,
            "1",
            [
                (
                    user,
                    Representation(
                        vector, FIRST_TIME + (_EVENTS - 1) * 60_000,
                        log_position(1, (number + 1) * _EVENTS), now,
                    ),
                )
                for number, (user, vector) in enumerate(zip(users, vectors, strict=True))
            ],
        )  # fmt: skip
    finally:
        await session.close()


def _write_values(place: Place, users: list[str], folder: Path) -> None:
    """What the platform serves, one Parquet file per view, for stock Feast's store."""
    folder.mkdir()
    online = OnlineFeatures(place.settings, views=declared_views(feature_store(place.settings)))
    batch = online.get(users)
    for name, found in batch.sequences.items():
        assert all(len(column) == _VIEWS[name] for column in _lists(found)["event_time"])
        _frame(users, _lists(found)).to_parquet(folder / f"{name}.parquet")
    for name, made in batch.representations.items():
        columns = {
            "vector": list(made.vector),
            "version": [made.version] * len(users),
            "as_of": made.as_of,
            "encoded_at": made.encoded_at,
        }
        _frame(users, columns).to_parquet(folder / f"{name}.parquet")


def _lists(found: SequenceBatch) -> dict[str, list[list[object]]]:
    rows = [found.of(index) for index in range(len(found.outcome))]
    lists = {name: [row[name] for row in rows] for name in rows[0]}
    lists["value"] = [[np.nan if v is None else v for v in row] for row in lists["value"]]
    return lists


def _frame(users: list[str], columns: Mapping[str, object]) -> pd.DataFrame:
    at = pd.Timestamp.now(tz="UTC")
    return pd.DataFrame({"user_id": users, **columns, "event_timestamp": at})


@contextmanager
def _feature_server(place: Place) -> Iterator[str]:
    """`headwater serve`, for the time of the block."""
    port = free_port()
    with (place.home / "serve.log").open("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "streams.cli", "serve"],
            env=place.process_environment(HEADWATER_SERVE__PORT=str(port)),
            cwd=ROOT, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        url = f"http://127.0.0.1:{port}"
        try:
            deadline = time.monotonic() + 90
            while not _answers(url):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the feature server doesn't start: see {log.name}")
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            process.wait(30)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2):
            return True
    except OSError:
        return False
