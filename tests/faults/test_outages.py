"""Services that restart, hang, die or refuse: workers wait, say so, stay small, and go on (R6)."""

from __future__ import annotations

import time

import pytest

from infra.local.stack import LocalStack
from tests.faults.harness import Run, report, rss_mb
from tests.faults.refusing import SENTENCES, refuse
from tests.worker_platform import WorkerProcess, wait_until

# What may pile up in a worker while it waits: bounded by its settings, far below this.
MAX_GROWTH_MB = 150


def _says(worker: WorkerProcess, word: str) -> None:
    """Not ready, and why; alive all the same, since a restart wouldn't help."""
    wait_until(lambda: word in worker.get("ready")[1], 40, f"its readiness says {word!r}")
    assert worker.get("ready")[0] == 503
    assert worker.get("live")[0] == 200


def _recovers(worker: WorkerProcess) -> None:
    wait_until(lambda: worker.get("ready")[0] == 200, 60, "it is ready again")


@pytest.mark.parametrize(
    ("rounds", "hard"),
    [
        (1, False),
        pytest.param(5, False, marks=[pytest.mark.long, pytest.mark.timeout(900)]),
        pytest.param(5, True, marks=[pytest.mark.long, pytest.mark.timeout(900)]),
    ],
)
def test_the_broker_restarts_under_load(
    run: Run, lazy_stack: LocalStack, rounds: int, hard: bool
) -> None:
    run.repeats = True  # a producer's retry, or a commit that was lost
    worker = run.worker()
    with run.load(rate=500):
        worker.wait_ready()
        for _ in range(rounds):
            run.progress(300)
            if hard:
                lazy_stack.kafka.kill()
                lazy_stack.kafka.start()
            else:
                lazy_stack.kafka.restart()
            run.progress(300)
    _recovers(worker)
    run.check()
    assert worker.terminate() == 0


@pytest.mark.parametrize(
    "seconds", [4, pytest.param(30, marks=[pytest.mark.long, pytest.mark.timeout(600)])]
)
def test_cassandra_hangs_under_load(run: Run, lazy_stack: LocalStack, seconds: int) -> None:
    worker = run.worker(
        HEADWATER_CASSANDRA__REQUEST_TIMEOUT_SECONDS=0.5,
        HEADWATER_KAFKA__MAX_POLL_INTERVAL_SECONDS=5,
    )
    with run.load(rate=500):
        worker.wait_ready()
        run.progress(300)
        before = rss_mb(worker.pid)
        held = set(worker.state()["partitions"])
        lazy_stack.cassandra.pause()
        began = time.monotonic()
        _says(worker, "Cassandra")
        wait_until(lambda: time.monotonic() - began > seconds, seconds + 5, "the outage is over")
        assert set(worker.state()["partitions"]) == held
        assert worker.get("live")[0] == 200
        assert rss_mb(worker.pid) - before < MAX_GROWTH_MB
        lazy_stack.cassandra.resume()
        _recovers(worker)
        run.progress(300)
    run.check()
    report(f"cassandra_hung_{seconds}s", rss_mb=[before, rss_mb(worker.pid)])


@pytest.mark.parametrize(
    "rounds", [1, pytest.param(4, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_cassandra_is_killed_and_restarted(run: Run, lazy_stack: LocalStack, rounds: int) -> None:
    """Nothing that was acknowledged is lost by the node's end: its commit log was synced."""
    worker = run.worker()
    with run.load(rate=500):
        worker.wait_ready()
        for _ in range(rounds):
            run.progress(300)
            lazy_stack.cassandra.kill()
            _says(worker, "Cassandra")
            lazy_stack.cassandra.start()
            _recovers(worker)
            run.progress(300)
    run.check()


@pytest.mark.parametrize("kind", sorted(SENTENCES))
def test_a_store_that_refuses_is_waited_for(run: Run, kind: str) -> None:
    """A full disk or a read-only table ends when someone acts; until then nothing is lost."""
    worker = run.worker("refusing").wait_ready()
    run.produce_next(500)
    run.catch_up()
    with refuse(run.platform.home, kind):
        run.produce_next(2_000)
        _says(worker, SENTENCES[kind])
        assert run.offsets.lag() > 0
    _recovers(worker)
    run.check()
    assert worker.state()["counters"]["consumed"] == len(run.produced)


@pytest.mark.parametrize("service", ["kafka", "cassandra"])
def test_sigterm_ends_in_time_while_a_service_hangs(
    run: Run, lazy_stack: LocalStack, service: str
) -> None:
    """Exit code 1 tells that something is unfinished; the next worker finishes it."""
    run.repeats = True
    worker = run.worker(drain_seconds=2, HEADWATER_KAFKA__COMMIT_INTERVAL_SECONDS=60).wait_ready()
    run.produce_next(500)
    wait_until(lambda: _processed(worker) >= 500, 60, "they are stored, not committed")
    getattr(lazy_stack, service).pause()
    if service == "cassandra":
        run.produce_next(500)
        _says(worker, "Cassandra")
    began = time.monotonic()
    assert worker.terminate(40) == 1, worker.output()
    took = time.monotonic() - began
    getattr(lazy_stack, service).resume()
    run.gone(worker)
    run.worker()
    run.check()
    report(f"sigterm_without_{service}", seconds=round(took, 1))


def _processed(worker: WorkerProcess) -> int:
    return sum(found["processed"] for found in worker.state().get("partitions", {}).values())


@pytest.mark.parametrize("service", ["kafka", "cassandra"])
def test_sigterm_ends_a_start_that_waits(run: Run, lazy_stack: LocalStack, service: str) -> None:
    """A worker that can't start yet says why, and goes when asked to."""
    getattr(lazy_stack, service).pause()
    worker = run.worker()
    wait_until(lambda: worker.get("ready")[0] == 503, 40, "it waits")
    assert worker.get("live")[0] == 200
    assert worker.terminate(40) in (0, 1)
    getattr(lazy_stack, service).resume()


def test_workers_that_are_started_before_the_broker_wait_for_it(
    run: Run, lazy_stack: LocalStack
) -> None:
    """They say what for, and start by themselves once it is there."""
    run.produce_next(200)
    lazy_stack.kafka.stop()
    sequence, encoder = run.worker(), run.worker("encoder")
    for worker in (sequence, encoder):
        _says(worker, "no Kafka broker answers")
    lazy_stack.kafka.start()
    _recovers(sequence)
    wait_until(lambda: "no Kafka broker" not in encoder.get("ready")[1], 60, "the encoder goes on")
    assert encoder.terminate(40) in (0, 1), encoder.output()
    run.check()


def test_sigterm_under_load_drains(run: Run) -> None:
    """Exit code 0: all that was begun is acknowledged, nothing of it is handled again."""
    with run.load(rate=2_000):
        worker = run.worker(max_batch_records=200)
        run.progress(1_000)
        run.watcher.look(worker)
        assert worker.terminate() == 0, worker.output()
        run.worker()
        run.progress(500)
    run.check()
