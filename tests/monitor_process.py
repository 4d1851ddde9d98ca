"""The monitor as a process of a test, asked over HTTP like anyone asks it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import msgspec

from streams.monitor.running import running_monitor
from streams.monitor.snapshot import Snapshot
from tests.worker_platform import ROOT, Platform, wait_until

# Quick enough for a test: a window that forgets in seconds.
QUICK = {
    "HEADWATER_MONITOR__PORT": "0",
    "HEADWATER_MONITOR__INTERVAL_SECONDS": "0.5",
    "HEADWATER_MONITOR__WINDOW_SECONDS": "6",
    "HEADWATER_MONITOR__STALL_SECONDS": "5",
    "HEADWATER_MONITOR__CANARY_USERS": "0",
    "HEADWATER_MONITOR__SAMPLE_INTERVAL_SECONDS": "2",
}


class MonitorProcess:
    """`headwater monitor` on a platform; `environ` has more variables."""

    def __init__(self, platform: Platform, **environ: str) -> None:
        self._platform = platform
        self._log = platform.home / "monitor.log"
        self.environ = dict(os.environ) | platform.environ | QUICK | environ
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "streams.cli", "monitor"],
                env=self.environ, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            self.url: str = wait_until(self._address, 90.0, "the monitor listens")
            wait_until(self.is_current, 60.0, "the monitor makes snapshots")
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def _address(self) -> str:
        assert self._process.poll() is None, self.output()
        found = running_monitor(self._platform.settings)
        return found.url if found is not None and found.pid == self._process.pid else ""

    def output(self) -> str:
        return self._log.read_text()

    def is_current(self) -> bool:
        return self.get("/healthz")[0] == 200

    def get(self, path: str) -> tuple[int, bytes]:
        """(status, body); status 0 without an answer."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as answer:
                return int(answer.status), answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError:
            return 0, b""

    def json(self, path: str) -> Any:
        status, body = self.get(path)
        assert status == 200, (path, status, body[:500])
        return json.loads(body)

    def snapshot(self) -> Snapshot:
        status, body = self.get("/api/snapshot")
        assert status == 200, (status, body[:500])
        return msgspec.json.decode(body, type=Snapshot)

    def num_measured(self, feature: str) -> int:
        """Live events of a feature whose delay the monitor has taken in since it started."""
        name = f'headwater_objective_events_total{{feature="{feature}"}} '
        lines = self.get("/metrics")[1].decode().splitlines()
        return int(sum(float(line.removeprefix(name)) for line in lines if line.startswith(name)))

    def wait(self, holds: Callable[[Snapshot], object], seconds: float, what: str) -> Snapshot:
        """The first snapshot for which `holds(snapshot)`."""
        last: list[Snapshot] = []

        def ask() -> Snapshot | None:
            last[:] = [self.snapshot()]
            return last[0] if holds(last[0]) else None

        try:
            found: Snapshot = wait_until(ask, seconds, what)
        except AssertionError as error:
            headline = last[0].headline.text if last else "no snapshot"
            raise AssertionError(f"{error}; the monitor says: {headline}") from error
        return found

    def cli(self, *arguments: str) -> tuple[int, str, str]:
        """A command beside it: (exit code, output, errors)."""
        done = subprocess.run(
            [sys.executable, "-m", "streams.cli", *arguments],
            env=self.environ, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(5)
