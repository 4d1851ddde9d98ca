"""Reads the logs below a home, also while they are written and rotated."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from infra.local.layout import Home

_POLL_SECONDS = 0.2
_MAX_TAIL_BYTES = 1 << 20


def log_files(home: Home) -> dict[str, Path]:
    """Every log by its service's name."""
    return {path.stem: path for path in sorted((home.root / "logs").glob("*.log"))}


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a log; looks at its last MiB only."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _MAX_TAIL_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    return text.splitlines()[-count:] if count > 0 else []


def follow(files: Mapping[str, Path]) -> Iterator[tuple[str, str]]:
    """(name, line) of what is written from now on, for ever."""
    tails = {name: Tail(path) for name, path in files.items()}
    while True:
        for name, tail in tails.items():
            for line in tail.new_lines():
                yield name, line
        time.sleep(_POLL_SECONDS)


class Tail:
    """The end of one log; goes on in the new file after a rotation."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] = path.open("rb")
        self._file.seek(0, os.SEEK_END)
        self._rest = b""

    def new_lines(self) -> list[str]:
        """Complete lines that were written since the last call."""
        data = self._rest + self._file.read()
        if self._was_rotated():
            self._file.close()
            self._file = self._path.open("rb")
            data += self._file.read()
        *lines, self._rest = data.split(b"\n")
        return [line.decode("utf-8", errors="replace") for line in lines]

    def _was_rotated(self) -> bool:
        try:
            return self._path.stat().st_ino != os.fstat(self._file.fileno()).st_ino
        except FileNotFoundError:
            return False
