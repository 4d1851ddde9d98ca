"""Where running workers are found: one small file each under `$HEADWATER_HOME/run/workers`."""

from __future__ import annotations

import json
import os
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from streams.settings import Settings

READER, PRODUCER = "reader", "producer"


class WorkerAddress(msgspec.Struct, frozen=True):
    """A worker's file. `started` is the kernel's start time of the process, so that another
    process with the same id isn't taken for it."""

    role: str
    pid: int
    started: str
    group: str
    url: str


def _folder(settings: Settings) -> Path:
    return settings.home_path / "run" / "workers"


def _started(pid: int) -> str:
    """Start time of a process in the kernel's ticks; "" where there is no /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def register(settings: Settings, role: str, group: str, url: str) -> Path:
    """Write this process's file; answers its path, for `unregister`.

    A worker that was killed leaves its file behind, which tells that it is missing until another
    one of its role takes its place.
    """
    pid = os.getpid()
    folder = _folder(settings)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{role}-*.json"):
        with suppress(OSError, msgspec.DecodeError):
            if not _runs(msgspec.json.decode(old.read_bytes(), type=WorkerAddress)):
                unregister(old)
    path = folder / f"{role}-{pid}.json"
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.json.encode(WorkerAddress(role, pid, _started(pid), group, url)))
    partial.replace(path)
    return path


def unregister(path: Path) -> None:
    """At a clean end."""
    path.unlink(missing_ok=True)


def registered_workers(settings: Settings) -> list[tuple[WorkerAddress, bool]]:
    """Every worker with a file, and whether its process runs.

    Producers come and go: one that was killed isn't missing.
    """
    found = []
    for path in sorted(_folder(settings).glob("*.json")):
        with suppress(OSError, msgspec.DecodeError):
            address = msgspec.json.decode(path.read_bytes(), type=WorkerAddress)
            runs = _runs(address)
            if runs or address.role != PRODUCER:
                found.append((address, runs))
    return found


def running_workers(settings: Settings) -> list[WorkerAddress]:
    """The workers that run now."""
    return [address for address, runs in registered_workers(settings) if runs]


def read_state(address: WorkerAddress, seconds: float) -> dict[str, Any]:
    """A worker's /state. Raises OSError or ValueError if it doesn't answer within this time."""
    with urllib.request.urlopen(f"{address.url}/state", timeout=seconds) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def _runs(address: WorkerAddress) -> bool:
    try:
        os.kill(address.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _started(address.pid) == address.started
