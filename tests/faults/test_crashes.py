"""kill -9 at any moment and at every named step: nothing lost, nothing doubled (R1-R4)."""

from __future__ import annotations

import random
import signal

import pytest

from tests.faults.harness import Run
from tests.worker_platform import wait_until

STEPS = ("after_fold", "mid_writes", "after_writes", "before_refresh", "before_commit")


@pytest.mark.parametrize(
    "kills",
    [3, pytest.param(50, marks=[pytest.mark.long, pytest.mark.timeout(1800)])],
)
def test_killed_at_random_moments(run: Run, kills: int) -> None:
    chance = random.Random(kills)
    with run.load(rate=600):
        for _ in range(kills):
            worker = run.worker(max_batch_records=200)
            run.progress(chance.randrange(1, 800))
            # Anywhere in a batch's way: the moment is to be arbitrary, no condition is awaited.
            worker.ends_within(chance.random() * 0.1)
            run.kill(worker)
        run.worker()
        run.progress(500)
    run.check()


@pytest.mark.parametrize(
    "rounds", [1, pytest.param(5, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_killed_at_every_step(run: Run, rounds: int) -> None:
    chance = random.Random(rounds)
    with run.load(rate=600):
        for _ in range(rounds):
            for step in STEPS:
                passes = (
                    chance.randrange(10, 60) if step == "mid_writes" else chance.randrange(1, 5)
                )
                worker = run.worker(max_batch_records=100, HEADWATER_FAULT=f"kill:{step}:{passes}")
                assert worker.exit_code(60) == -signal.SIGKILL, worker.output()
                run.gone(worker)
        run.worker()
        run.progress(500)
    run.check()


@pytest.mark.parametrize(
    "kills", [1, pytest.param(15, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_one_of_two_is_killed(run: Run, kills: int) -> None:
    """The other one takes over when the session is over, and isn't disturbed before."""
    other = run.worker().wait_ready()
    with run.load(rate=600):
        for _ in range(kills):
            worker = run.worker(max_batch_records=200).wait_ready()
            wait_until(lambda: len(other.state().get("partitions", {})) == 2, 60, "they share")
            run.progress(200)
            worker.kill()
            run.repeats = True
            wait_until(lambda: len(other.state().get("partitions", {})) == 4, 60, "it took over")
    run.check()
