"""The small process that keeps one service: `python -I -S warden.py ORDER`, ORDER being JSON.

It starts the service in a group of its own, writes the service's output to a capped log, records
pid and exit code, and ends the whole group when it is told to (SIGTERM) or when its parent is
gone, however that happened. If the warden itself is killed, the kernel kills the service
(PR_SET_PDEATHSIG). So nothing of a stack outlives what it belongs to, not even after `kill -9`.

Runs as a file with the standard library alone, so that it starts in some 30 ms and weighs 10 MB.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

PR_SET_PDEATHSIG = 1
TICK_SECONDS = 0.25
_LIBC = ctypes.CDLL(None)


def start_time(pid: int) -> int | None:
    """The process's start in clock ticks since boot; with the pid it names a process for ever.

    None when there is no such process, or only its zombie.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


class CappedLog:
    """Appends to a file; at `max_bytes` the file becomes `<name>.1` and a new one begins."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._file: IO[bytes] = path.open("ab")

    def write(self, data: bytes) -> None:
        """Append; a full disk costs the output, never the service."""
        with contextlib.suppress(OSError):
            self._append(data)

    def _append(self, data: bytes) -> None:
        if self._file.tell() + len(data) > self._max_bytes:
            self._file.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._file = self._path.open("ab")
        self._file.write(data)
        self._file.flush()

    def note(self, text: str) -> None:
        self.write(f"[warden] {time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n".encode())


class Warden:
    def __init__(self, order: dict[str, Any]) -> None:
        self._argv: list[str] = order["argv"]
        self._record = Path(order["record"])
        self._parent: int | None = order["parent"]
        self._grace_seconds: float = order["grace_seconds"]
        self._log = CappedLog(Path(order["log"]), order["max_log_bytes"])
        self._told_to_stop = False

    def run(self) -> int:
        """Keep the service until it ends; returns its exit code (negative: the signal)."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        self._log.note(f"starting {self._argv[0]}")
        try:
            service = self._spawn()
        except OSError as error:
            self._log.note(f"can't start: {error}")
            self._write_record({"exit_code": 127})
            return 127
        self._write_record({"pid": service.pid, "started": start_time(service.pid)})
        code = self._keep(service)
        _signal_group(service.pid, signal.SIGKILL)
        self._log.note(f"ended with exit code {code}")
        self._write_record({"exit_code": code, "asked": self._told_to_stop})
        return code

    def _spawn(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_warden,
        )

    def _keep(self, service: subprocess.Popen[bytes]) -> int:
        assert service.stdout is not None
        os.set_blocking(service.stdout.fileno(), False)
        selector = selectors.DefaultSelector()
        selector.register(service.stdout, selectors.EVENT_READ)
        deadline: float | None = None
        while (code := service.poll()) is None:
            if selector.get_map() and selector.select(TICK_SECONDS):
                if not self._pump(service.stdout):
                    selector.unregister(service.stdout)
            elif not selector.get_map():
                time.sleep(TICK_SECONDS)
            if deadline is None and (self._told_to_stop or self._is_orphan()):
                deadline = time.monotonic() + self._grace_seconds
                _signal_group(service.pid, signal.SIGTERM)
                _signal_group(service.pid, signal.SIGCONT)
            if deadline is not None and time.monotonic() > deadline:
                _signal_group(service.pid, signal.SIGKILL)
        self._pump(service.stdout)
        return code

    def _pump(self, output: IO[bytes]) -> bool:
        """Move what the service has written to the log; False at the end of its output."""
        try:
            data = os.read(output.fileno(), 1 << 16)
        except BlockingIOError:
            return True
        if data:
            self._log.write(data)
        return bool(data)

    def _is_orphan(self) -> bool:
        return self._parent is not None and os.getppid() != self._parent

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._told_to_stop = True

    def _write_record(self, facts: dict[str, Any]) -> None:
        me = {
            "warden": os.getpid(),
            "warden_started": start_time(os.getpid()),
            "attached_to": self._parent,
        }
        draft = self._record.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(me | facts) + "\n", encoding="utf-8")
        draft.replace(self._record)


def _die_with_warden() -> None:
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.exit(Warden(json.loads(sys.argv[1])).run() & 0xFF)
