"""Answers of the monitor that are asked for one at a time: history and one user's features.

Scope: shapes only, like snapshot.py; they are apart since a snapshot is sent every few seconds and
must stay small.
"""

from __future__ import annotations

from streams.monitor.snapshot import Part


class HistoryPoint(Part, frozen=True, kw_only=True):
    """One step of a series; p50 and p99 are None where nothing was measured in the step.

    `staleness_seconds` is the worst `waiting_seconds` of the step, None for can't tell.
    """

    at: int
    count: int
    p50_seconds: float | None
    p99_seconds: float | None
    staleness_seconds: float | None


class Series(Part, frozen=True, kw_only=True):
    """Freshness over time of one feature, and of one encoder version (from event to readable)."""

    feature: str
    encoder: str
    version: str
    objective_seconds: float
    points: tuple[HistoryPoint, ...]


class History(Part, frozen=True, kw_only=True):
    """The answer of /api/history: at most ~1,500 points per series, whatever the range."""

    at: int
    range_seconds: int
    step_seconds: int
    series: tuple[Series, ...]


class SequenceRead(Part, frozen=True, kw_only=True):
    """A user's sequence in one view, newest last, cut to the newest few for showing."""

    view: str
    length: int
    max_length: int
    age_seconds: float | None
    event_time: tuple[int, ...]
    item_id: tuple[str, ...]
    event_type: tuple[str, ...]
    surface: tuple[str, ...]


class RepresentationRead(Part, frozen=True, kw_only=True):
    """A user's representation in one view; `tier` is where the answer came from."""

    view: str
    status: str  # found | absent | expired | failed
    tier: str
    encoder: str = ""
    version: str = ""
    as_of: int | None = None
    age_seconds: float | None = None
    encoded_at: int | None = None
    position: int | None = None
    is_current: bool | None = None  # reflects the newest stored event
    dimensions: int = 0
    norm: float | None = None
    preview: tuple[float, ...] = ()


class UserLookup(Part, frozen=True, kw_only=True):
    """The answer of /api/users/USER: what a reader gets for this user right now."""

    user_id: str
    at: int
    read_seconds: float
    forgotten_at: int | None = None
    sequences: tuple[SequenceRead, ...] = ()
    representations: tuple[RepresentationRead, ...] = ()
    problem: str = ""
