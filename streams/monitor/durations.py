"""Durations, as a person reads them."""

from __future__ import annotations


def duration(seconds: float | None) -> str:
    """A duration to read."""
    if seconds is None:
        return "?"
    if abs(seconds) < 1:
        return f"{seconds * 1000:.0f} ms"
    if abs(seconds) < 120:
        return f"{seconds:.1f} s"
    if abs(seconds) < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
