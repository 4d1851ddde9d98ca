"""A `headwater worker` as a process whose progress, CPU time and memory are read from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from infra.local.bootstrap import ROOT
from streams.workers.registration import running_workers
from tests.benchmarks.stand import Place

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_POLL_SECONDS = 0.25  # /state costs the worker some milliseconds


class MeasuredWorker:
    """One worker's process; ends with the `with` block."""

    def __init__(self, place: Place, role: str = "sequence", **environ: str) -> None:
        self._place = place
        self._log = (place.home / f"{role}-{time.monotonic_ns()}.log").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "streams.cli", "worker", role],
            env=place.process_environment(**environ), cwd=ROOT,
            stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._url = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(40)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)
        self._log.close()

    def wait_ready(self, seconds: float = 120) -> Self:
        """Return when it takes records."""
        self.wait_for(lambda state: state.get("ready", False), seconds)
        return self

    def wait_for(
        self, holds: Callable[[dict[str, Any]], Any], seconds: float = 1_800
    ) -> dict[str, Any]:
        """The first state for which `holds`."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            state = self.state()
            if state and holds(state):
                return state
            time.sleep(_POLL_SECONDS)
        raise RuntimeError(f"the worker didn't get there in {seconds:g} s:\n{self.output()}")

    def state(self) -> dict[str, Any]:
        """Its /state; empty before it answers. Raises RuntimeError if the process has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the worker ended:\n{self.output()}")
        found: dict[str, Any] = {}
        try:
            found = json.loads(self.get("state"))
        except OSError:
            return {}
        return found

    def get(self, page: str) -> str:
        """A page of its HTTP server. Raises OSError."""
        if not self._url:
            own = [a for a in running_workers(self._place.settings) if a.pid == self._process.pid]
            if not own:
                raise ConnectionError("not registered yet")
            self._url = own[0].url
        with urllib.request.urlopen(f"{self._url}/{page}", timeout=10) as answer:
            text: str = answer.read().decode()
        return text

    def counter(self, name: str, label: str = "") -> float:
        """A counter's sum over its label sets that contain `label`."""
        lines = (line.rpartition(" ") for line in self.get("metrics").splitlines())
        return sum(
            float(value)
            for key, _, value in lines
            if key.partition("{")[0] == name and label in key
        )

    def cpu_seconds(self) -> float:
        """CPU time of the process so far."""
        with open(f"/proc/{self._process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def rss_mb(self) -> float:
        """Resident memory now."""
        with open(f"/proc/{self._process.pid}/statm") as file:
            return int(file.read().split()[1]) * _PAGE / 2**20

    def output(self) -> str:
        """The end of its log."""
        self._log.flush()
        with open(self._log.name) as file:
            return "\n".join(file.read().splitlines()[-20:])


class Sampler(threading.Thread):
    """Calls a function again and again beside what the block does, and keeps its answers."""

    def __init__(self, sample: Callable[[], Any], seconds: float) -> None:
        super().__init__(daemon=True)
        self._sample = sample
        self._seconds = seconds
        self._over = threading.Event()
        self.samples: list[Any] = []

    def run(self) -> None:
        while not self._over.wait(self._seconds):
            self.samples.append(self._sample())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def processed(state: dict[str, Any]) -> int:
    """Records that a worker has handled, over its partitions."""
    return sum(found["processed"] for found in state.get("partitions", {}).values())


def committed(state: dict[str, Any]) -> int:
    """Records that a worker has acknowledged, over its partitions."""
    return sum(found["committed"] or 0 for found in state.get("partitions", {}).values())
