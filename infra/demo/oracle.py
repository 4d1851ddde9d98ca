"""What the sequences must be, recomputed from everything that was produced.

R1 in the words of its definition, without the fold's code: the newest `max_length` distinct events
of the view's types, no older than `max_age` before the newest of them, newer than the deletion.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from streams.events import Event
from streams.sequences import SequenceView

# What of an event a reader gets back: (event_time, event_id is not read) item, type, surface, value
Kept = tuple[int, str, str, str, float | None]


def sequences(events: Iterable[Event], view: SequenceView) -> dict[str, list[Kept]]:
    """Every user's sequence in a view, newest last; users without one are left out."""
    distinct: dict[str, dict[str, Event]] = defaultdict(dict)
    for event in events:
        if event.event_type in view.event_types:
            distinct[event.user_id][event.event_id] = event
    return {user: _newest(list(mine.values()), view) for user, mine in distinct.items()}


def _newest(events: list[Event], view: SequenceView) -> list[Kept]:
    events.sort(key=lambda event: (event.event_time, event.event_id))
    kept = events[-view.max_length :]
    if view.max_age_ms is not None:
        cutoff = kept[-1].event_time - view.max_age_ms
        kept = [event for event in kept if event.event_time >= cutoff]
    return [(e.event_time, e.item_id, e.event_type, e.surface or "", e.value) for e in kept]
