"""compose.yaml as read, for the tests that look at it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from streams.settings import Settings, load_settings

ROOT = Path(__file__).parents[2]


def read_yaml(path: str) -> dict[str, Any]:
    """A YAML file of the project."""
    content: dict[str, Any] = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
    return content


COMPOSE = read_yaml("compose.yaml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name for name, one in SERVICES.items() if one["image"].startswith("headwater:")}
GIB = 1 << 30
_UNITS = {"M": 1 << 20, "G": GIB}


def size(text: str) -> int:
    """Bytes of a size such as 512M or 256m."""
    return int(text[:-1]) * _UNITS[text[-1].upper()]


def memory_limit(name: str) -> int:
    """Bytes that the service's container may use."""
    return size(SERVICES[name]["deploy"]["resources"]["limits"]["memory"])


def environment(name: str) -> dict[str, str]:
    """The service's variables."""
    found: dict[str, str] = SERVICES[name].get("environment", {})
    return found


def settings_of(name: str) -> Settings:
    """The settings that the service's process would have."""
    return load_settings(None, environment(name), Path("/nonexistent"))


def mounts(name: str) -> Iterator[tuple[str, str, str]]:
    """(source, target, mode) of each volume."""
    for volume in SERVICES[name].get("volumes", ()):
        source, target, *mode = volume.split(":")
        yield source, target, "".join(mode)
