"""Events in: delivery, durable catch-up, what it costs, memory, several workers.

Clocks run between the first handled event and the last one, so that no start-up is counted.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np

from tests.benchmarks.environments import python_of
from tests.benchmarks.inputs import Input, append, delete_topics, fill_topic
from tests.benchmarks.repos import make_repo
from tests.benchmarks.stand import Place, Result, Stand, interleaved, say
from tests.benchmarks.workers import MeasuredWorker, Sampler, committed

# A stock Faust agent and a stock push take so long that fewer events must do; rates are compared.
_FAUST_EVENTS = 100_000
_PUSH_EVENTS = 4_000
_PUSH_BATCH = 1_000


def median_rate(results: list[Result]) -> float:
    """Median of events per second."""
    return float(statistics.median(found["events"] / found["seconds"] for found in results))


@contextmanager
def filled(place: Place, chosen: Input) -> Iterator[str]:
    """A topic with the input, for the time of the block."""
    topic = f"bench-{chosen.name}-{chosen.events}-{chosen.users}"
    say(f"filling {topic}")
    fill_topic(place.settings, topic, chosen)
    try:
        yield topic
    finally:
        delete_topics(place.settings, [topic])


# -- delivery --------------------------------------------------------------------------------------


def delivery(stand: Stand, users: int) -> Result:
    """Decode, validate, fold into memory, beside what others do with the same topic."""
    chosen = Input("zipf", stand.count(1_000_000), users)
    few = stand.count(_FAUST_EVENTS)
    with stand.place() as place, filled(place, chosen) as topic:
        servers = place.settings.kafka.bootstrap_servers

        def other(name: str, environment: str, events: int) -> Callable[[], Result]:
            return lambda: place.run(
                f"competitors.{name}", servers, topic, events, python=python_of(environment)
            )

        results = interleaved(
            stand.rounds,
            {
                "ours": lambda: place.run("programs.fold_delivery", topic, chosen.events),
                "ours_with_rows": lambda: place.run(
                    "programs.fold_delivery", topic, chosen.events, "encode"
                ),
                "faust": other("faust_append", "feast", few),
                "bytewax": other("bytewax_group", "bytewax", chosen.events),
                "pathway": other("pathway_group", "pathway", chosen.events),
                "quixstreams": other("quixstreams_group", "quixstreams", chosen.events),
            },
        )
    rates = {name: round(median_rate(found)) for name, found in results.items()}
    ours = rates["ours"]
    ratios = {f"vs_{name}": round(ours / rate, 2) for name, rate in rates.items() if name != "ours"}
    return ratios | {"events_per_second": rates, "events": chosen.events, "users": users}


# -- durable ---------------------------------------------------------------------------------------


def durable(stand: Stand, users: int) -> Result:
    """Catch-up with every row in Cassandra; the bound writes as many rows of the same size.

    Another one also reads as many users that aren't cached and sends as many refresh requests.
    """
    chosen = Input("zipf", stand.count(1_000_000), users)
    with stand.place() as base, filled(base, chosen) as topic:
        last: Result = {}

        def ours() -> Result:
            with stand.place(topic) as place:
                last.update(catch_up(place, chosen.events))
            return dict(last)

        def bound(*same: str) -> Result:
            with stand.place(topic) as place:
                row_bytes = round(last["bytes"] / last["rows"])
                in_flight = place.settings.sequence_worker.max_writes_in_flight
                more = [last[name] if name in same else 0 for name in ("reads", "requests")]
                return place.run(
                    "programs.bare_writes", topic, chosen.events, last["rows"], row_bytes,
                    in_flight, *more,
                )  # fmt: skip

        # A fresh Cassandra runs at half its speed until its hot code is compiled.
        say(f"warm-up: {json.dumps(ours())}")

        def push() -> Result:
            with stand.place(topic) as place:
                cassandra = place.settings.cassandra
                return place.run(
                    "competitors.feast_push", place.settings.kafka.bootstrap_servers, topic,
                    _PUSH_EVENTS, cassandra.port, cassandra.keyspace, _PUSH_BATCH,
                    python=python_of("feast"),
                )  # fmt: skip

        results = interleaved(
            stand.rounds,
            {
                "ours": ours,
                "bound": bound,
                "bound_with_reads_and_requests": lambda: bound("reads", "requests"),
                "feast_push": push,
            },
        )
    rates = {name: round(median_rate(found)) for name, found in results.items()}
    ratios = {
        f"vs_{name}": round(rates["ours"] / rate, 2)
        for name, rate in rates.items()
        if name != "ours"
    }
    facts = {
        name: last[name] for name in ("rows", "bytes", "reads", "requests", "cpu_seconds", "rss_mb")
    }
    return ratios | {"events_per_second": rates, "events": chosen.events, "users": users} | facts


def catch_up(place: Place, events: int, workers: int = 1) -> Result:
    """Work a backlog off with one or more workers: seconds from the first record to the last
    acknowledgement, CPU seconds, rows and bytes."""
    with MeasuredWorkers(place, workers) as running:
        began = running.wait(lambda states: sum(map(committed, states)) > 0)
        ended = running.wait(lambda states: sum(map(committed, states)) >= events)
        return {"events": events, "seconds": ended - began, **running.facts()}


class MeasuredWorkers:
    """Some sequence workers, watched together."""

    def __init__(self, place: Place, count: int) -> None:
        self._workers = [MeasuredWorker(place) for _ in range(count)]

    def __enter__(self) -> MeasuredWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.__exit__(None, None, None)

    def wait(self, holds: Callable[[list[dict[str, Any]]], bool], seconds: float = 3_600) -> float:
        """When the states first held, on the monotonic clock."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if holds([worker.state() for worker in self._workers]):
                return time.monotonic()
            time.sleep(0.25)
        raise RuntimeError("\n".join(worker.output() for worker in self._workers))

    def facts(self) -> Result:
        """Sums over the workers so far."""
        workers = self._workers
        return {
            "rows": int(sum(w.counter("headwater_rows_written_total") for w in workers)),
            "bytes": int(sum(w.counter("headwater_bytes_written_total") for w in workers)),
            "reads": int(sum(w.counter("headwater_users_loaded_total") for w in workers)),
            "requests": int(sum(w.counter("headwater_refresh_requests_total") for w in workers)),
            "cpu_seconds": round(sum(w.cpu_seconds() for w in workers), 2),
            "rss_mb": round(max(w.rss_mb() for w in workers)),
        }


def scale(stand: Stand) -> Result:
    """Two workers beside one, on the cores of this machine."""
    chosen = Input("zipf", stand.count(1_000_000), 200_000)
    with stand.place() as base, filled(base, chosen) as topic:

        def run(workers: int) -> Result:
            with stand.place(topic) as place:
                return catch_up(place, chosen.events, workers)

        say(f"warm-up: {json.dumps(run(1))}")
        results = interleaved(stand.rounds, {"one": lambda: run(1), "two": lambda: run(2)})
    rates = {name: round(median_rate(found)) for name, found in results.items()}
    return {"workers": round(rates["two"] / rates["one"], 2), "events_per_second": rates}


# -- cost ------------------------------------------------------------------------------------------


def cost_length(stand: Stand) -> Result:
    """Full sequences of 4,096 events beside full ones of 160: CPU and bytes per event."""
    users = 400
    segment = stand.count(200_000)

    def run(length: int) -> Result:
        per_user = length + length // 16
        first = Input("visits", users * per_user, users, per_visit=64, seed=21)
        more = [
            Input(
                "visits", segment, users, seed=31 + number,
                first_time=first.last_time + 2 * segment * number,
            )
            for number in range(stand.rounds)
        ]  # fmt: skip
        return _segments(stand, length, first, more)

    return _cost(run(160), run(4_096))


def cost_users(stand: Stand) -> Result:
    """A million known users beside ten thousand, the same events per user and batch."""
    segment = stand.count(200_000)

    def run(users: int) -> Result:
        first = Input("visits", users, users, per_visit=1, seed=41)
        more = [
            Input(
                "visits", segment, users, seed=51 + number,
                first_time=first.last_time + 2 * segment * number,
                first_visit=number * segment // 4,
            )
            for number in range(stand.rounds)
        ]  # fmt: skip
        return _segments(stand, 256, first, more)

    return _cost(run(10_000), run(stand.count(1_000_000)))


def _cost(small: Result, large: Result) -> Result:
    ratios = {
        name: round(large[name] / small[name], 3)
        for name in ("cpu_us_per_event", "bytes_per_event")
    }
    return {"ratio": max(ratios.values()), "ratios": ratios, "small": small, "large": large}


def _segments(stand: Stand, length: int, first: Input, more: list[Input]) -> Result:
    """Fill the sequences, then measure one segment of events after the other."""
    repo = make_repo(
        stand.stack.home.root.parent / "repos" / f"{length}-{first.users}-{first.seed}",
        {"engagement": length},
        representation=False,
    )
    with stand.place(repo=repo) as place:
        topic = place.settings.kafka.events_topic
        total = first.events
        append(place.settings, topic, first)
        with MeasuredWorker(place) as worker:
            worker.wait_for(partial(_has_committed, total), 3_600)
            costs = []
            for segment in more:
                cpu, size = worker.cpu_seconds(), worker.counter("headwater_bytes_written_total")
                rows = worker.counter("headwater_rows_written_total")
                append(place.settings, topic, segment)
                total += segment.events
                worker.wait_for(partial(_has_committed, total), 3_600)
                cost = {
                    "cpu_us_per_event": (worker.cpu_seconds() - cpu) / segment.events * 1e6,
                    "bytes_per_event": (worker.counter("headwater_bytes_written_total") - size)
                    / segment.events,
                    "rows_per_event": (worker.counter("headwater_rows_written_total") - rows)
                    / segment.events,
                }
                say(f"length {length}, {first.users} users: {cost}")
                costs.append(cost)
    return {
        "users": first.users,
        "max_length": length,
        **{name: round(statistics.median(c[name] for c in costs), 3) for name in costs[0]},
    }


def _has_committed(events: int, state: dict[str, Any]) -> bool:
    return committed(state) >= events


# -- memory ----------------------------------------------------------------------------------------


def memory(stand: Stand) -> Result:
    """A worker's memory over five million events, with its cache full from the first fifth on."""
    chosen = Input("zipf", stand.count(5_000_000), 200_000, seed=9)
    with (
        stand.place() as base,
        filled(base, chosen) as topic,
        stand.place(topic) as place,
        MeasuredWorker(place) as worker,
    ):
        worker.wait_for(partial(_has_committed, 1))

        def sample() -> tuple[int, float, int]:
            with suppress(OSError):
                state = worker.state()
                return committed(state), worker.rss_mb(), state.get("cached_users", 0)
            return -1, 0.0, 0

        with Sampler(sample, 1.0) as sampler:
            worker.wait_for(partial(_has_committed, chosen.events), 3_600)
        bound = place.settings.sequence_worker.max_cached_users
    samples = np.array([found for found in sampler.samples if found[0] > 0])
    steady = samples[samples[:, 0] > chosen.events / 2]
    slope = np.polyfit(steady[:, 0] / 1e6, steady[:, 1], 1)[0] if len(steady) > 2 else np.nan
    return {
        "rss_mb": round(float(samples[:, 1].max())),
        "rss_slope": round(float(slope), 2),  # MB per million events, second half
        "events": chosen.events,
        "cached_users": int(samples[:, 2].max()),
        "max_cached_users": bound,
        "curve": [
            [int(n), round(m)] for n, m, _ in samples[:: max(1, len(samples) // 40)].tolist()
        ],
    }
