"""How long after an event another process can read its effect, under steady traffic."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from infra.local.bootstrap import ROOT
from tests.benchmarks.stand import Place, Result, Stand, say
from tests.benchmarks.workers import MeasuredWorker

_RATE = 2_000
_USERS = 200_000
# The Java services of a fresh stand compile their hot code meanwhile, which takes a whole core.
_WARM_UP_SECONDS = 30.0


def freshness(stand: Stand, *, encoder: bool) -> Result:
    """2,000 events a second; services, workers, producer and readers share this machine."""
    seconds = _WARM_UP_SECONDS + stand.seconds(120)
    with stand.place() as place, ExitStack() as running:
        if encoder:
            _publish(place)
        roles = ("sequence", "encoder") if encoder else ("sequence",)
        workers = {role: running.enter_context(MeasuredWorker(place, role)) for role in roles}
        for worker in workers.values():
            worker.wait_ready()
        say(f"{_RATE} events/s for {seconds:g} s" + (", with the encoder" if encoder else ""))
        load = _start(place, "load", _RATE, seconds, _USERS)
        assert load.stderr is not None
        while not (line := load.stderr.readline()).startswith("begun "):
            assert line, "the load ended before it began"
        began = float(line.split()[1])
        features = ("sequence", "representation") if encoder else ("sequence",)
        probes = {f: _start(place, "probe", began, seconds, _WARM_UP_SECONDS, f) for f in features}
        found: Result = {f: _result(process) for f, process in probes.items()}
        found["load"] = _result(load)
        found["cpu_seconds"] = {role: worker.cpu_seconds() for role, worker in workers.items()}
        say(json.dumps(found))
    return found


def _publish(place: Place) -> None:
    """A version of the encoder with random weights: as fast as a trained one."""
    checkpoint = place.home / "checkpoint"
    place.run("programs.random_encoder", checkpoint)
    done = subprocess.run(
        [
            sys.executable, "-m", "streams.cli", "export", "--checkpoint", str(checkpoint),
            "--encoder", "user_encoder", "--version", "1", "--load", "--activate",
            "--model-repository", str(_models(place)), "--threads", "1",
        ],
        env=place.process_environment(), cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)


def _models(place: Place) -> Path:
    return place.home.parent.parent / "home" / "models"


def _start(place: Place, program: str, *arguments: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.benchmarks.programs.{program}", *map(str, arguments)],
        env=place.process_environment(PYTHONPATH=str(ROOT)), cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def _result(process: subprocess.Popen[str]) -> Result:
    output, errors = process.communicate(timeout=600)
    if process.returncode:
        raise RuntimeError(errors)
    result: Result = json.loads(output.splitlines()[-1])
    return result
