"""What a panel is shown: one snapshot and the moment it is looked at, and choices made from both.

Pure.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from streams.monitor.snapshot import (
    Freshness,
    Headline,
    Objective,
    Snapshot,
    Staleness,
    State,
)

# A snapshot is good for this many intervals, and a little; then nobody can tell any more.
_GOOD_FOR = 3
_GRACE_SECONDS = 2.0


class View(msgspec.Struct, frozen=True):
    """A snapshot, seen at `now_ms`."""

    snapshot: Snapshot
    now_ms: int

    @property
    def is_outdated(self) -> bool:
        """Whether the collector has stopped: its last snapshot is too old to be believed."""
        return self.now_ms - self.snapshot.at > 1000 * good_for_seconds(self.snapshot)

    @property
    def headline(self) -> Headline:
        """The verdict; can't tell where there is no recent snapshot, whatever the last one said."""
        if not self.is_outdated:
            return self.snapshot.headline
        seconds = (self.now_ms - self.snapshot.at) / 1000
        return Headline(
            state=State.UNKNOWN,
            text=f"The monitor has measured nothing for {seconds:.0f} s; "
            "what is below is older than that.",
        )

    @property
    def active_versions(self) -> set[tuple[str, str]]:
        """(encoder, version) of what readers get."""
        return {(v.encoder, v.version) for v in self.snapshot.versions if v.state == "active"}

    def staleness(self, feature: str) -> Staleness | None:
        return next((s for s in self.snapshot.staleness if s.feature == feature), None)

    def objective(self, feature: str) -> Objective | None:
        return next((o for o in self.snapshot.objectives if o.feature == feature), None)

    def freshness(self, feature: str, since: str = "event_time") -> Freshness | None:
        """A feature's freshness: of the active version, else of the one with the most events."""
        rows = [f for f in self.snapshot.freshness if f.feature == feature and f.since == since]
        active = self.active_versions
        return max(
            rows, key=lambda f: ((f.encoder, f.version) in active, f.count or 0), default=None
        )


class Panel(Protocol):
    """A part of the page."""

    def show(self, view: View) -> None:
        """Show this; called every few seconds."""
        ...


def good_for_seconds(snapshot: Snapshot) -> float:
    """How long a snapshot may be believed."""
    return _GOOD_FOR * snapshot.interval_seconds + _GRACE_SECONDS
