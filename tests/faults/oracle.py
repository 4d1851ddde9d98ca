"""What every sequence must be, recomputed from everything that was produced.

R1 in the words of its definition, without the fold's code: the newest `max_length` distinct events
of the view's types, ordered by (event_time, event_id), no older than `max_age` before the newest of
them, newer than the user's deletion mark.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from streams.events import Event, Forget
from streams.sequences import SequenceView

# event_time, event_id, item, type, surface, value
Kept = tuple[int, str, str, str, str, float | None]


def sequences(
    records: Iterable[Event | Forget], views: Mapping[str, SequenceView]
) -> dict[tuple[str, str], list[Kept]]:
    """Every sequence by (user, view), newest last; also the empty ones."""
    events: dict[str, dict[str, Event]] = defaultdict(dict)
    marks: dict[str, int] = {}
    for record in records:
        mine = events[record.user_id]
        if isinstance(record, Forget):
            marks[record.user_id] = max(record.event_time, marks.get(record.user_id, -1))
        else:
            mine[record.event_id] = record
    return {
        (user, name): _sequence(mine.values(), marks.get(user, -1), view)
        for user, mine in events.items()
        for name, view in views.items()
    }


def _sequence(events: Iterable[Event], mark: int, view: SequenceView) -> list[Kept]:
    wanted = [e for e in events if e.event_type in view.event_types and e.event_time > mark]
    wanted.sort(key=lambda event: (event.event_time, event.event_id))
    kept = wanted[-view.max_length :]
    if view.max_age_ms is not None and kept:
        oldest = kept[-1].event_time - view.max_age_ms
        kept = [event for event in kept if event.event_time >= oldest]
    return [
        (e.event_time, e.event_id, e.item_id, e.event_type, e.surface or "", e.value) for e in kept
    ]


def marks(records: Iterable[Event | Forget]) -> dict[str, int]:
    """The event time of every forgotten user's mark."""
    found: dict[str, int] = {}
    for record in records:
        if isinstance(record, Forget):
            found[record.user_id] = max(record.event_time, found.get(record.user_id, -1))
    return found
