"""How the demo shows its steps: a headline, a line when it is done, the seconds that it took."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from streams.errors import HeadwaterError


class Steps:
    """Numbers the steps and keeps their seconds for the report."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.seconds: dict[str, float] = {}
        self._began = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the demo began, with what lies between the steps."""
        return time.monotonic() - self._began

    @contextmanager
    def step(self, name: str, headline: str) -> Iterator[None]:
        """A step of the demo."""
        number = len(self.seconds) + 1
        self.console.print(f"\n[bold cyan]{number}[/] [bold]{headline}[/]")
        started = time.monotonic()
        self.seconds[name] = 0.0
        yield
        self.seconds[name] = round(time.monotonic() - started, 2)
        self.console.print(f"  [dim]{self.seconds[name]:.1f} s[/]")

    def say(self, text: str) -> None:
        """A line below the current step's headline."""
        self.console.print(f"  {text}")


def headwater(arguments: Sequence[str], environment: Mapping[str, str], cwd: Path) -> None:
    """Run a `headwater` command as a user would, its output in the terminal."""
    command = [sys.executable, "-m", "streams.cli", *arguments]
    done = subprocess.run(command, env=dict(environment), cwd=cwd, check=False)
    if done.returncode != 0:
        shown = " ".join(["headwater", *arguments])
        raise HeadwaterError(f"`{shown}` failed with exit code {done.returncode}, see above")
