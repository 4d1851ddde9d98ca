"""What a change of the declarations means for what is stored. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from streams.sequences import SequenceView
from streams.views import DeclaredViews


def changes_between(before: DeclaredViews, after: DeclaredViews) -> Iterator[str]:
    """One sentence for each change: what holds at once, and what needs a command."""
    for name, view in after.sequences.items():
        old = before.sequences.get(name)
        if old is None:
            if before.sequences:
                yield f"{name} is new: for events that are in the log already, {_fill(name)}"
        elif old != view:
            yield from _sequence_changes(old, view)
    for name in before.sequences.keys() - after.sequences.keys():
        yield f"{name} is gone: it is no longer read or written; its rows stay in the store"
    for name, found in after.representations.items():
        previous = before.representations.get(name)
        if previous is not None and previous != found:
            yield f"{name}: users get it in its new form with their next event"


def _sequence_changes(old: SequenceView, new: SequenceView) -> Iterator[str]:
    name = new.name
    if new.max_length < old.max_length:
        yield f"{name}: max_length {old.max_length} → {new.max_length} holds for readers at once"
    if new.max_length > old.max_length:
        yield (
            f"{name}: max_length {old.max_length} → {new.max_length} holds for new events; for "
            f"those that were pushed out, {_fill(name)}"
        )
    if new.max_age_ms != old.max_age_ms:
        wider = new.max_age_ms is None or (old.max_age_ms or new.max_age_ms) < new.max_age_ms
        yield (
            f"{name}: max_age holds for new events; for those that were too old, {_fill(name)}"
            if wider
            else f"{name}: the smaller max_age holds for readers at once"
        )
    added = set(new.event_types) - set(old.event_types)
    if added:
        yield f"{name}: {_names(added)} from now on; for those in the log, {_fill(name)}"
    removed = set(old.event_types) - set(new.event_types)
    if removed:
        yield (
            f"{name}: no {_names(removed)} from now on; stored ones stay until they are pushed "
            "out; for a clean start give the view another name"
        )
    if new.ttl_seconds != old.ttl_seconds:
        yield f"{name}: the new ttl holds for readers at once"


def _fill(name: str) -> str:
    return f"run: headwater rebuild --view {name}"


def _names(event_types: set[str]) -> str:
    return ", ".join(sorted(event_types))
