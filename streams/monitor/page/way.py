"""The way of an event as a live picture: boxes, and arrows with rate and delay.

It is text in lists, placed by a grid (a row per topic on a wide screen, a column on a phone), so
that it is legible at each size and a screen reader follows the way from box to box.
"""

from __future__ import annotations

import msgspec

from streams.monitor.page import words
from streams.monitor.page.elements import (
    Chip,
    Panel,
    Text,
    box,
    icon,
    set_class,
    set_prop,
    set_state,
)
from streams.monitor.page.view import View
from streams.monitor.snapshot import Arrow, Box, State


class Lane(msgspec.Struct, frozen=True):
    """A row of the picture: what keeps one feature fresh; boxes and arrows take turns."""

    title: str
    parts: tuple[str, ...]


LANES = (
    Lane(
        "Sequences",
        (
            *("producers", "produced_to_broker", "events", "broker_to_folded"),
            *("sequence_worker", "folded_to_stored", "sequences"),
        ),
    ),
    Lane(
        "Representations",
        (
            *("refresh_requests", "requested_to_encoded", "encoder_worker"),
            *("encoded_to_stored", "representations", "stored_to_read", "readers"),
        ),
    ),
)
# The arrow from the first lane to the second.
BETWEEN = "stored_to_requested"
# A box that hangs below another one, which asks it.
ASIDE = {"encoder_worker": "encoder"}
_BOXES = {part for lane in LANES for part in lane.parts[::2]} | set(ASIDE.values())

_ICONS = {
    "producers": "sensors",
    "topic": "view_stream",
    "worker": "memory",
    "store": "storage",
    "encoder": "hub",
    "readers": "visibility",
}


class Way:
    """The panel with the picture."""

    def __init__(self) -> None:
        self._boxes: dict[str, BoxCard] = {}
        self._arrows: dict[str, ArrowLine] = {}
        self._panel = Panel("The way of an event", "way", classes="way-panel")
        with self._panel, box("way"):
            self._lane(LANES[0], 1)
            with box("between"):
                self._arrows[BETWEEN] = ArrowLine()
            self._lane(LANES[1], 2)

    def show(self, view: View) -> None:
        snapshot = view.snapshot
        self._panel.hint.text = (
            f"Live traffic of the last {words.duration(snapshot.window_seconds)}: "
            "records per second, and how long each step takes"
        )
        for part in snapshot.boxes:
            if card := self._boxes.get(part.id):
                card.show(part, is_stuck=part.id == snapshot.headline.box)
        for arrow in snapshot.arrows:
            if line := self._arrows.get(arrow.stage):
                line.show(arrow, is_slowest=arrow.stage == snapshot.slowest_stage)

    def _lane(self, lane: Lane, number: int) -> None:
        with box(f"lane lane-{number}"):
            Text(lane.title, "h3", "lane-title")
            with box("lane-parts", "ol").props(f'aria-label="{lane.title}"'):
                for part in lane.parts:
                    with box("part" if part in _BOXES else "part part-arrow", "li"):
                        self._part(part)

    def _part(self, name: str) -> None:
        if name not in _BOXES:
            self._arrows[name] = ArrowLine()
            return
        self._boxes[name] = BoxCard()
        if aside := ASIDE.get(name):
            with box("aside"):
                box("aside-line").props("aria-hidden=true")
                self._boxes[aside] = BoxCard("node-small")


class BoxCard:
    """A process, topic or store with its state."""

    def __init__(self, classes: str = "") -> None:
        with box(f"node is-unknown {classes}") as self.element:
            with box("node-head"):
                self._icon = icon("help", "node-icon")
                self._label = Text("", "h4", "node-label")
                self._count = Text("", "span", "node-count")
            self._chip = Chip()
            self._detail = Text("", "p", "node-detail")
            self._facts = Text("", "p", "node-facts")

    def show(self, part: Box, *, is_stuck: bool) -> None:
        set_state(self.element, part.state)
        set_prop(self.element, "data-box", part.id)
        set_class(self.element, "is-stuck", is_stuck)
        set_prop(self._icon, "name", _ICONS.get(part.kind, "widgets"))
        self._label.text = part.label
        self._chip.show(part.state)
        self._detail.text = part.detail
        set_prop(self._detail, "title", part.detail)
        self._count.text = "" if part.num_instances is None else f"× {part.num_instances}"
        self._facts.text = " · ".join(f"{name} {text}" for name, text in part.facts)


class ArrowLine:
    """One stage: its name, rate and delay along an arrow."""

    def __init__(self) -> None:
        with box("arrow is-unknown") as self.element:
            with box("arrow-head"):
                self._label = Text("", "span", "arrow-label")
                self._badge = Text("slowest", "span", "badge")
            with box("arrow-line").props("aria-hidden=true"):
                box("arrow-dot")
            with box("arrow-figures"):
                self._rate = Text("", "span", "arrow-rate")
                self._delay = Text("", "span", "arrow-delay")
                self._note = Text("", "span", "arrow-note")
        self._badge.set_visibility(False)

    def show(self, arrow: Arrow, *, is_slowest: bool) -> None:
        set_state(self.element, arrow.state)
        set_prop(self.element, "data-stage", arrow.stage)
        moves = bool(arrow.rate) and arrow.state in (State.OK, State.BEHIND)
        set_class(self.element, "is-moving", moves)
        set_class(self.element, "is-slowest", is_slowest)
        self._badge.set_visibility(is_slowest)
        self._label.text = arrow.label
        self._rate.text = words.rate(arrow.rate, "rate unknown")
        self._delay.text = delay_text(arrow)
        self._note.text = note_text(arrow)


def delay_text(arrow: Arrow) -> str:
    """p50 and p99, or that there are none."""
    if arrow.p50_seconds is None and arrow.p99_seconds is None:
        return ""
    return f"p50 {words.duration(arrow.p50_seconds)} · p99 {words.duration(arrow.p99_seconds)}"


def note_text(arrow: Arrow) -> str:
    """What a person should know besides: the problem, the state, what is being caught up."""
    if arrow.problem:
        return arrow.problem
    if arrow.state not in (State.OK, State.IDLE):
        return words.STATE_WORDS[arrow.state][0]
    if arrow.catch_up_rate:
        return f"and {words.rate(arrow.catch_up_rate)} caught up"
    return "idle" if arrow.state == State.IDLE else ""
