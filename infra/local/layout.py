"""Where everything of the local stack lies: one home per stack, one cache per checkout.

Only paths; creates nothing but what `Home.create` says.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from streams.settings import project_root

CHECKOUT = Path(__file__).resolve().parents[2]
SERVICES = ("kafka", "cassandra", "triton")


@dataclass(frozen=True)
class Home:
    """One stack's folder (HEADWATER_HOME): all its data, logs, pids and addresses."""

    root: Path

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> Home:
        """The home that every `headwater` command means: HEADWATER_HOME, else `.headwater`."""
        environ = os.environ if environ is None else environ
        root = project_root((cwd or Path.cwd()).resolve())
        return cls((root / (environ.get("HEADWATER_HOME") or ".headwater")).resolve())

    @property
    def stack_file(self) -> Path:
        return self.root / "stack.toml"

    @property
    def ports_file(self) -> Path:
        return self.root / "run" / "ports.json"

    @property
    def lock_file(self) -> Path:
        return self.root / "run" / "lock"

    @property
    def models(self) -> Path:
        """Triton's model repository."""
        return self.root / "models"

    def data(self, service: str) -> Path:
        return self.root / "data" / service

    def config(self, service: str) -> Path:
        return self.root / "config" / service

    def log(self, service: str) -> Path:
        return self.root / "logs" / f"{service}.log"

    @property
    def records(self) -> Path:
        """The folder of the services' records; nobody else writes there."""
        return self.root / "run" / "services"

    def record(self, service: str) -> Path:
        """The file that names the service's running process."""
        return self.records / f"{service}.json"

    def create(self) -> None:
        folders = (self.root / name for name in ("data", "config", "logs", "models"))
        for folder in (*folders, self.records):
            folder.mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True)
class Cache:
    """What `make setup` fetched; shared by every stack of a checkout."""

    root: Path = CHECKOUT / ".headwater-cache"

    @property
    def jars(self) -> Path:
        return self.root / "jars"

    @property
    def triton_env(self) -> Path:
        return self.root / "triton"
