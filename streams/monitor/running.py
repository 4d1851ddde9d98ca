"""Where this home's monitor is found while it runs: $HEADWATER_HOME/run/monitor.json."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from streams.settings import Settings


class RunningMonitor(msgspec.Struct, frozen=True):
    """A monitor's address, as a URL, and its process."""

    url: str
    pid: int


def _file(settings: Settings) -> Path:
    return settings.home_path / "run" / "monitor.json"


@contextmanager
def announced(settings: Settings, url: str) -> Iterator[None]:
    """While the block runs, this process is the home's monitor."""
    path = _file(settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_bytes(msgspec.json.encode(RunningMonitor(url, os.getpid())))
    partial.replace(path)
    try:
        yield
    finally:
        found = running_monitor(settings)
        if found is not None and found.pid == os.getpid():
            path.unlink(missing_ok=True)


def running_monitor(settings: Settings) -> RunningMonitor | None:
    """The monitor that was announced last; it may have been killed since."""
    try:
        return msgspec.json.decode(_file(settings).read_bytes(), type=RunningMonitor)
    except (OSError, msgspec.DecodeError):
        return None
