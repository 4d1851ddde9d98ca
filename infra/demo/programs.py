"""`headwater` commands that run beside the demo: workers and the feature server.

They are services of the local stack like the others: below a warden, with a log and a record, so
that `headwater logs` shows them and `headwater down` ends them.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from collections.abc import Sequence

from infra.local.layout import CHECKOUT
from infra.local.service import Plan, Service

_PROBE_SECONDS = 2.0


class Program(Service):
    """One `headwater` command; ready when a GET of `ready_path` is answered with 200."""

    stop_grace_seconds = 30.0

    def __init__(
        self, plan: Plan, name: str, command: Sequence[str], port: int, ready_path: str
    ) -> None:
        super().__init__(plan)
        self.name = name
        self._command = command
        self._port = port
        self._ready_path = ready_path

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
        }
        return super().environment() | settings

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
