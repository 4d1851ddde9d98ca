"""Workers come, go and come back from the dead, under load: one owner per partition, one truth."""

from __future__ import annotations

import signal

import pytest

from tests.faults.harness import Run
from tests.worker_platform import PARTITIONS, WorkerProcess, wait_until


def _assigned(workers: list[WorkerProcess]) -> list[int]:
    return sorted(int(n) for worker in workers for n in worker.state().get("partitions", {}))


def _settled(workers: list[WorkerProcess]) -> None:
    """Every partition has one owner, and every worker some."""
    wait_until(
        lambda: (
            _assigned(workers) == list(range(PARTITIONS))
            and all(worker.state().get("partitions") for worker in workers)
        ),
        60,
        f"{len(workers)} workers share the partitions",
    )


@pytest.mark.parametrize(
    "cycles", [1, pytest.param(10, marks=[pytest.mark.long, pytest.mark.timeout(1200)])]
)
def test_from_one_to_three_and_back_under_load(run: Run, cycles: int) -> None:
    """Each cycle rebalances at least twice. All end in order: nothing at all is handled twice that
    was acknowledged."""
    first = run.worker()
    with run.load(rate=800):
        first.wait_ready()
        for _ in range(cycles):
            others = [run.worker(), run.worker()]
            _settled([first, *others])
            run.progress(300)
            for other in others:
                run.watcher.look(other)
                other.signal(signal.SIGTERM)
            assert [other.exit_code() for other in others] == [0, 0], others[0].output()
            _settled([first])
            run.progress(300)
    run.check()


@pytest.mark.parametrize(
    "deaths", [1, pytest.param(8, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_a_zombie_harms_nothing(run: Run, deaths: int) -> None:
    """Stopped beyond its session with records in hand, replaced, then continued."""
    run.repeats = True
    zombie = run.worker(max_batch_records=100)
    with run.load(rate=800):
        zombie.wait_ready()
        for _ in range(deaths):
            run.progress(300)
            zombie.signal(signal.SIGSTOP)
            try:
                other = run.worker().wait_ready()
                _settled([other])
                run.progress(500)
            finally:
                zombie.signal(signal.SIGCONT)
            _settled([zombie, other])
            run.progress(300)
            assert zombie.terminate() == 0, zombie.output()
            zombie = other
    run.check()
