"""What the services of the local stack have in common: start, readiness, stop, and faults.

Each of them is one process group below a warden. Faults (`kill`, `pause`, `resume`) act on the
real process, so that tests can see what happens when a part of the platform goes away.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from infra.local.layout import Cache, Home
from infra.local.processes import (
    Record,
    ask_to_end,
    is_paused,
    kill_group,
    read_record,
    signal_group,
    spawn,
    wait_gone,
)
from streams.errors import HeadwaterError

_POLL_SECONDS = 0.1
_GONE_SECONDS = 10
_LOG_LINES_IN_ERRORS = 12


class ServiceFailed(HeadwaterError):
    """A service of the local stack ended or didn't get ready; the message quotes its log."""


class ServiceState(NamedTuple):
    """One row of `headwater status`: state is ready, starting, paused, exited or stopped."""

    name: str
    pid: int | None
    address: str
    state: str
    detail: str


@dataclass(frozen=True)
class Plan:
    """What a service needs to know about the stack that it belongs to."""

    home: Home
    cache: Cache
    ports: Mapping[str, int]
    attached: bool


class Service(ABC):
    """One service; cheap to make, holds no connection."""

    name: str
    start_timeout_seconds = 120.0
    stop_grace_seconds = 20.0

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._warden: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def address(self) -> str:
        """Where clients connect."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The program and its arguments."""

    @abstractmethod
    def prepare(self) -> None:
        """Write configuration and data folders; called before every start, safe to repeat."""

    @abstractmethod
    def probe(self) -> str:
        """Send one real request; "" when it was answered, else what was wrong."""

    def clean(self) -> None:  # noqa: B027 - most services leave nothing behind
        """Remove what a killed process left outside of its home."""

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    @property
    def record(self) -> Record | None:
        return read_record(self.plan.home.record(self.name))

    @property
    def pid(self) -> int | None:
        """The running process, None when there is none."""
        record = self.record
        return record.pid if record is not None and record.is_alive else None

    @property
    def is_running(self) -> bool:
        return self.pid is not None

    def start(self, *, wait: bool = True) -> None:
        """Start unless it runs already; with `wait`, return when it answers requests."""
        if not self.is_running:
            self.prepare()
            self._warden = spawn(
                self.command(),
                record=self.plan.home.record(self.name),
                log=self.plan.home.log(self.name),
                environment=self.environment(),
                cwd=self.plan.home.data(self.name),
                attached=self.plan.attached,
                grace_seconds=self.stop_grace_seconds,
            )
        if wait:
            self.wait_ready()

    def wait_ready(self, timeout_seconds: float | None = None) -> None:
        """Return once it answers. Raises ServiceFailed with the end of its log."""
        began = time.monotonic()
        while not self.is_ready(time.monotonic() - began, timeout_seconds):
            time.sleep(_POLL_SECONDS)

    def is_ready(self, waited_seconds: float, timeout_seconds: float | None = None) -> bool:
        """One look of whoever waits. Raises ServiceFailed when waiting is of no use any more."""
        timeout_seconds = timeout_seconds or self.start_timeout_seconds
        said = self.probe()
        if said and not self.is_running:
            raise ServiceFailed(self._failure("ended before it was ready"))
        if said and waited_seconds > timeout_seconds:
            raise ServiceFailed(
                self._failure(f"was not ready after {timeout_seconds:.0f} s ({said})")
            )
        return not said

    def stop(self) -> None:
        """End it in good order (SIGTERM, after a grace SIGKILL); no error when it isn't running."""
        self.begin_stop()
        self.finish_stop()

    def begin_stop(self) -> None:
        """Ask it to end; several services then end side by side."""
        if (record := self.record) is not None:
            ask_to_end(record)

    def finish_stop(self) -> None:
        """Return when it has ended."""
        if (record := self.record) is not None:
            wait_gone(record, self.stop_grace_seconds + _GONE_SECONDS)
        self._forget_warden()

    def kill(self) -> None:
        """SIGKILL, as a crash of the machine would look to its clients; returns when it is gone."""
        record = self.record
        if record is not None and (record.is_alive or record.warden_is_alive):
            kill_group(record)
            wait_gone(record, _GONE_SECONDS)
        self._forget_warden()

    def restart(self) -> None:
        """Stop in good order and start again on the same ports; returns when it is ready."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered; returns when it stands still."""
        if (record := self.record) is not None:
            signal_group(record, signal.SIGSTOP)
            while record.is_alive and not is_paused(record):
                time.sleep(_POLL_SECONDS)

    def resume(self) -> None:
        """SIGCONT: undo `pause`."""
        if (record := self.record) is not None:
            signal_group(record, signal.SIGCONT)

    def state(self) -> ServiceState:
        """What it does now, found out by its record and one request."""
        record = self.record
        log = self.plan.home.log(self.name)
        if record is None or (record.asked and not record.is_alive):
            return ServiceState(self.name, None, self.address, "stopped", "start it: headwater up")
        if not record.is_alive:
            code = "killed" if record.exit_code is None else f"exit code {record.exit_code}"
            detail = f"{code}; see {log}"
            return ServiceState(self.name, None, self.address, "exited", detail)
        if is_paused(record):
            detail = f"continue it: kill -CONT -{record.pid}"
            return ServiceState(self.name, record.pid, self.address, "paused", detail)
        said = self.probe()
        state = "starting" if said else "ready"
        return ServiceState(self.name, record.pid, self.address, state, said)

    def _failure(self, what: str) -> str:
        log = self.plan.home.log(self.name)
        lines = (
            log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        )
        end = "\n  ".join(lines[-_LOG_LINES_IN_ERRORS:])
        return f"{self.name} {what}; its log {log} ends with:\n  {end}"

    def _forget_warden(self) -> None:
        if self._warden is not None:
            self._warden.wait()
            self._warden = None
        self.clean()
