"""Starts wardens and finds, signals and ends the services that they keep.

A service is named by its record file (`run/services/<service>.json`), so that any process can act
on a stack that another one started. Stale records are recognised by the process's start time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.local.warden import start_time
from streams.errors import HeadwaterError

_WARDEN = Path(__file__).with_name("warden.py")
_MAX_LOG_BYTES = 16 << 20  # and as much again in `<name>.log.1`
_START_SECONDS = 30.0
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Record:
    """What a warden wrote about its service."""

    warden: int
    warden_started: int | None
    attached_to: int | None
    pid: int | None = None
    started: int | None = None
    exit_code: int | None = None
    asked: bool = False

    @property
    def is_alive(self) -> bool:
        return self.pid is not None and _is_same(self.pid, self.started)

    @property
    def warden_is_alive(self) -> bool:
        return _is_same(self.warden, self.warden_started)


def read_record(path: Path) -> Record | None:
    """The record in the file; None when there is none."""
    try:
        return Record(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise HeadwaterError(f"{path} is damaged ({error}); delete it, then try again") from error


def spawn(
    argv: Sequence[str],
    *,
    record: Path,
    log: Path,
    environment: Mapping[str, str],
    cwd: Path,
    attached: bool,
    grace_seconds: float,
) -> subprocess.Popen[bytes]:
    """Start a warden with its service. `attached`: it ends when this process ends.

    Returns the warden once it has written the record of this start.
    """
    order = {
        "argv": list(argv),
        "record": str(record),
        "log": str(log),
        "parent": os.getpid() if attached else None,
        "grace_seconds": grace_seconds,
        "max_log_bytes": _MAX_LOG_BYTES,
    }
    warden = subprocess.Popen(
        [sys.executable, "-I", "-S", str(_WARDEN), json.dumps(order)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(environment),
        cwd=cwd,
        start_new_session=True,
    )
    deadline = time.monotonic() + _START_SECONDS
    while (found := read_record(record)) is None or found.warden != warden.pid:
        if warden.poll() is not None or time.monotonic() > deadline:
            raise HeadwaterError(f"the process that keeps {record.stem} didn't start; see {log}")
        time.sleep(_POLL_SECONDS / 5)
    return warden


def ask_to_end(record: Record) -> None:
    """Tell the warden to end its service in good order; it kills when that takes too long."""
    if record.warden_is_alive:
        _signal(record.warden, signal.SIGTERM)
    else:
        kill_group(record)


def wait_gone(record: Record, timeout_seconds: float) -> None:
    """Return when the service and its warden have ended."""
    deadline = time.monotonic() + timeout_seconds
    while record.is_alive or record.warden_is_alive:
        if time.monotonic() > deadline:
            raise HeadwaterError(
                f"process {record.pid} did not end within {timeout_seconds:.0f} s; "
                f"end it with: kill -9 {record.pid}"
            )
        time.sleep(_POLL_SECONDS)


def kill_group(record: Record) -> None:
    """SIGKILL to the service and all that it started."""
    signal_group(record, signal.SIGKILL)


def signal_group(record: Record, number: signal.Signals) -> None:
    """Send a signal to the service's process group; nothing happens when it is gone."""
    if record.is_alive and record.pid is not None:
        try:
            os.killpg(record.pid, number)
        except ProcessLookupError:
            return


def is_paused(record: Record) -> bool:
    """Whether the service was stopped with SIGSTOP."""
    try:
        stat = Path(f"/proc/{record.pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] == "T"


def _is_same(pid: int, started: int | None) -> bool:
    return started is not None and start_time(pid) == started


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
