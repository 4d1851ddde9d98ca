"""`headwater` commands that run beside the demo: workers, the monitor, the feature server.

They are services of the local stack like the others: below a warden, with a log and a record, so
that `headwater logs` shows them and `headwater down` ends them.
"""

from __future__ import annotations

import shlex
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from infra.local.layout import CHECKOUT, Home
from infra.local.ports import free_port
from infra.local.service import Plan, Service
from infra.local.stack import LocalStack

_PROBE_SECONDS = 2.0


class Program(Service):
    """One `headwater` command; ready when a GET of `ready_path` is answered with 200.

    `settings` are HEADWATER_ variables of its own.
    """

    stop_grace_seconds = 30.0

    def __init__(
        self,
        plan: Plan,
        name: str,
        command: Sequence[str],
        port: int,
        ready_path: str,
        settings: Mapping[str, str],
    ) -> None:
        super().__init__(plan)
        self.name = name
        self._command = command
        self._port = port
        self._ready_path = ready_path
        self._settings = settings

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "streams.cli", *self._command]

    def environment(self) -> dict[str, str]:
        settings = {
            "HEADWATER_HOME": str(self.plan.home.root),
            "HEADWATER_FEATURE_REPO": str(CHECKOUT / "feature_repo"),
            "HEADWATER_SEQUENCE_WORKER__METRICS_PORT": str(self._port),
            "HEADWATER_ENCODER_WORKER__METRICS_PORT": str(self._port),
            "HEADWATER_SERVE__PORT": str(self._port),
            "HEADWATER_MONITOR__PORT": str(self._port),
        }
        return super().environment() | settings | dict(self._settings)

    def prepare(self) -> None:
        self.plan.home.data(self.name).mkdir(parents=True, exist_ok=True)

    def probe(self) -> str:
        try:
            with urllib.request.urlopen(self.address + self._ready_path, timeout=_PROBE_SECONDS):
                return ""
        except urllib.error.HTTPError as error:
            return error.read().decode("utf-8", "replace").strip() or str(error)
        except OSError as error:
            return str(error)


class Programs:
    """The programs of one demo. `attached`: they end with this process."""

    def __init__(
        self, stack: LocalStack, *, attached: bool, on_ready: Callable[[Program], None]
    ) -> None:
        self._plan = Plan(stack.home, stack.cache, {}, attached)
        self._on_ready = on_ready
        self._started: list[Program] = []
        self._num_ready = 0

    def start(
        self,
        name: str,
        command: Sequence[str],
        ready_path: str,
        settings: Mapping[str, str] | None = None,
    ) -> Program:
        """Start one more; `wait_ready` waits until it answers."""
        program = Program(self._plan, name, command, free_port(), ready_path, settings or {})
        self._started.append(program)
        program.start(wait=False)
        return program

    def wait_ready(self) -> None:
        """Wait for those that were started since the last call."""
        for program in self._started[self._num_ready :]:
            program.wait_ready()
            self._on_ready(program)
        self._num_ready = len(self._started)

    def stop(self) -> None:
        """End all, side by side."""
        for program in self._started:
            program.begin_stop()
        for program in self._started:
            program.finish_stop()

    @property
    def workers(self) -> list[str]:
        """The workers' addresses."""
        workers = (one for one in self._started if one.name.startswith("worker-"))
        return [program.address for program in workers]


def say_goodbye(console: Console, home: Path, monitor: str, *, keep: bool) -> None:
    """What is there after the demo, and what to do with it."""
    if not keep:
        console.print(
            f"The monitor's page at {monitor} and the stack end now; `make demo ARGS=--keep` "
            "leaves them running."
        )
        return
    console.print(f"The stack stays up, and so does the monitor's page at [bold]{monitor}[/]. Try:")
    place = home.resolve()
    # Commands find the stack of a default home by themselves.
    at = (
        []
        if Home.from_environment({}).root == place
        else [f"HEADWATER_HOME={shlex.quote(str(place))}"]
    )
    for command in (
        f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH",
        *(f"export {one}" for one in at),
        *("headwater status", "headwater get 1", "headwater dead-letters list"),
        *("headwater freshness --watch", "headwater down"),
    ):
        console.print(f"  {command}", highlight=False, soft_wrap=True)
