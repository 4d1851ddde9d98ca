"""The jar lock file: every jar of Kafka and Cassandra by Maven coordinates and SHA-256.

A line is `group:artifact[:classifier]:version sha256 services`. `make lock` writes it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

LOCK_FILE = Path(__file__).with_name("jars.lock")


@dataclass(frozen=True)
class Jar:
    """One jar; `services` are those whose class path has it."""

    group: str
    artifact: str
    classifier: str
    version: str
    sha256: str
    services: tuple[str, ...]

    @property
    def coordinates(self) -> str:
        parts = (self.group, self.artifact, self.classifier, self.version)
        return ":".join(part for part in parts if part)

    @property
    def path(self) -> Path:
        """Where it lies below a repository folder (Maven's layout)."""
        suffix = f"-{self.classifier}" if self.classifier else ""
        folder = Path(*self.group.split("."), self.artifact, self.version)
        return folder / f"{self.artifact}-{self.version}{suffix}.jar"

    @property
    def line(self) -> str:
        return f"{self.coordinates} {self.sha256} {','.join(self.services)}"


def parse_line(line: str) -> Jar:
    """A line of the lock file, read back."""
    coordinates, sha256, services = line.split()
    group, artifact, *classifier, version = coordinates.split(":")
    return Jar(group, artifact, "".join(classifier), version, sha256, tuple(services.split(",")))


def read_lock(path: Path = LOCK_FILE) -> list[Jar]:
    """All jars of the lock file, in its order."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [parse_line(line) for line in lines if line and not line.startswith("#")]


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
