"""Look-up: what a reader gets for one user at this moment, and where it came from."""

from __future__ import annotations

import asyncio

from nicegui import ui

from streams.monitor.answers import RepresentationRead, SequenceRead, UserLookup
from streams.monitor.page import words
from streams.monitor.page.elements import Facts, Panel, Table, Text, box
from streams.monitor.page.feed import SnapshotSource
from streams.monitor.snapshot import State

MAX_USER_ID = 256
_TIMEOUT_SECONDS = 10.0
_READ_STATES = {
    "found": State.OK,
    "absent": State.IDLE,
    "expired": State.BEHIND,
    "failed": State.DOWN,
}


class LookupPanel:
    """A form and its answer; the answer stands until the next one."""

    def __init__(self, source: SnapshotSource) -> None:
        self._source = source
        self._asked = 0
        panel = Panel("Look up a user", "lookup", "What a reader gets for this user right now")
        with panel:
            with box("lookup-form", "form").props("role=search") as form:
                self._input = ui.input("User id").props("outlined dense clearable color=chosen")
                self._input.props(f"maxlength={MAX_USER_ID} autocomplete=off input-id=lookup-user")
                ui.button("Look up", icon="search", color=None).props(
                    "type=submit unelevated no-caps"
                )
                form.on("submit.prevent", self.look_up)
                # Without this the button takes the focus, and the next name needs a click.
                self._input.on("keydown.enter.prevent", self.look_up)
            self._status = Text("", "p", "hint").props("role=status")
            self._answer = box("lookup-answer")

    async def look_up(self) -> None:
        """Ask for the user in the field; an older question's answer is dropped."""
        user_id = (self._input.value or "").strip()
        if not user_id:
            self._status.text = "Write a user id first."
            return
        self._asked += 1
        asked = self._asked
        self._status.text = f"Reading {words.short(user_id, 60)} …"
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                found = await self._source.user(user_id)
        except TimeoutError:
            found = UserLookup(
                user_id=user_id,
                at=0,
                read_seconds=_TIMEOUT_SECONDS,
                problem=f"no answer within {_TIMEOUT_SECONDS:g} s",
            )
        if asked == self._asked:
            self._show(found)

    def _show(self, found: UserLookup) -> None:
        self._status.text = status_sentence(found)
        self._answer.clear()
        with self._answer:
            for representation in found.representations:
                _representation(representation)
            for sequence in sorted(found.sequences, key=lambda s: not s.length):
                _sequence(sequence)


def status_sentence(found: UserLookup) -> str:
    """How the read went, in one sentence."""
    name = words.short(found.user_id, 60)
    if found.problem:
        return f"Can't tell for {name}: {found.problem}"
    parts = [f"{name}, read in {words.duration(found.read_seconds)}"]
    if found.forgotten_at is not None:
        parts.append(f"forgotten at {words.moment(found.forgotten_at)}")
    is_empty = not any(s.length for s in found.sequences) and not any(
        r.status == "found" for r in found.representations
    )
    if is_empty:
        parts.append("nothing is stored for this user")
    return "; ".join(parts) + "."


def _representation(found: RepresentationRead) -> None:
    state = _READ_STATES.get(found.status, State.UNKNOWN)
    with box("card", "section"):
        with box("card-head"):
            Text(found.view, "h3")
            with box(f"chip is-{state}", "span"):
                ui.icon(words.STATE_WORDS[state][1]).props("aria-hidden=true")
                Text(found.status)
        Facts("facts-wide").show(representation_facts(found))


def representation_facts(found: RepresentationRead) -> list[tuple[str, str]]:
    """The facts of a representation as names and texts."""
    facts = [("Came from", found.tier or words.DASH)]
    if found.encoder:
        version = f"version {found.version}" if found.version else "no active version"
        facts.append(("Encoder, version", f"{found.encoder}, {version}"))
    if found.as_of is not None:
        facts.append(("As of", words.moment(found.as_of)))
        facts.append(("Age", words.duration(found.age_seconds)))
        facts.append(("Encoded at", words.moment(found.encoded_at)))
    if found.position is not None:
        epoch, offset = found.position >> 52, (found.position >> 8) & ((1 << 44) - 1)
        facts.append(("Log position", f"epoch {epoch}, offset {offset:,}"))
    if found.is_current is not None:
        facts.append(("Up to date", "yes" if found.is_current else "no: a newer event is stored"))
    if found.dimensions:
        preview = ", ".join(f"{value:.3g}" for value in found.preview)
        norm = "" if found.norm is None else f", norm {found.norm:.4g}"
        facts.append(("Vector", f"{found.dimensions} dimensions{norm}: {preview} …"))
    return facts


def _sequence(found: SequenceRead) -> None:
    with box("card", "section"):
        with box("card-head"):
            Text(found.view, "h3")
            Text(sequence_sentence(found), "p", "hint")
        if found.length:
            table = Table(f"Newest events of {found.view}", _EVENT_COLUMNS, page_size=8)
            table.show(event_rows(found))


def sequence_sentence(found: SequenceRead) -> str:
    """Length and age of a sequence in words."""
    if not found.length:
        return f"empty (at most {found.max_length:,} events)"
    return (
        f"{found.length:,} of at most {found.max_length:,} events, the newest "
        f"{words.duration(found.age_seconds)} old"
    )


def event_rows(found: SequenceRead) -> list[dict[str, str]]:
    """The events that were sent along, newest first."""
    rows = [
        {"key": f"{place}", "time": words.moment(at), "item": item, "type": kind, "surface": where}
        for place, (at, item, kind, where) in enumerate(
            zip(found.event_time, found.item_id, found.event_type, found.surface, strict=True)
        )
    ]
    return rows[::-1]


_EVENT_COLUMNS = (
    ("time", "Event time", ""),
    ("item", "Item", ""),
    ("type", "Type", ""),
    ("surface", "Surface", ""),
)
