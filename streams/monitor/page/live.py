"""One reader's page: its panels in the order of a person's questions, shown anew by a timer."""

from __future__ import annotations

from collections.abc import Callable

from nicegui import ui

from streams.monitor.page.coverage import CoveragePanel, ReadsAndCost
from streams.monitor.page.details import CanaryPanel, ClocksPanel, SourcesPanel, VersionsPanel
from streams.monitor.page.elements import Chip, Text, box, icon, set_class, set_prop
from streams.monitor.page.feed import KeptHistory, SnapshotSource
from streams.monitor.page.freshness import FreshnessOverTime
from streams.monitor.page.headline import FeatureCard, Verdict
from streams.monitor.page.load import DeadLettersPanel, PartitionsPanel, WorkersPanel
from streams.monitor.page.lookup import LookupPanel
from streams.monitor.page.view import Panel, View, good_for_seconds
from streams.monitor.page.way import Way

_LOOK_SECONDS = 0.5
_LINKS = (
    ("way", "Way"),
    ("freshness", "Freshness"),
    ("coverage", "Coverage"),
    ("cost", "Cost"),
    ("partitions", "Partitions"),
    ("dead-letters", "Dead letters"),
    ("lookup", "Look-up"),
    ("versions", "Versions"),
    ("canaries", "Canaries"),
)


class LivePage:
    """Built once per tab; then only what changed is sent."""

    def __init__(
        self,
        source: SnapshotSource,
        history: KeptHistory,
        now: Callable[[], float],
        note: str,
    ) -> None:
        self._source = source
        self._now = now
        self._shown: tuple[int, bool] | None = None
        self._bar = TopBar()
        with box("page") as self._main:
            if note:
                with box("note", "p"):
                    icon("science")
                    Text(note)
            build_lost_note()
            self._panels = build_panels(source, history)
        ui.skip_link("Skip to the verdict", target=self._main)

    def start(self) -> None:
        """Show what is there, and look for news from now on."""
        self.look()
        ui.timer(_LOOK_SECONDS, self.look)

    def look(self) -> None:
        """Show the newest snapshot, unless it is what is shown."""
        snapshot = self._source.snapshot()
        if snapshot is None:
            return
        view = View(snapshot, round(self._now() * 1000))
        seen = (snapshot.number, view.is_outdated)
        if seen == self._shown and not view.is_outdated:
            return
        self._shown = seen
        set_class(self._main, "is-outdated", view.is_outdated)
        self._bar.show(view)
        for panel in self._panels:
            panel.show(view)


def build_lost_note() -> None:
    """The verdict of a page that hears nothing; the browser shows it, see page.js."""
    with box("verdict lost-note is-unknown").props("role=alert"):
        icon("cloud_off", "verdict-icon")
        with box("verdict-text"):
            Text("Is it fresh?", "p", "eyebrow")
            Text("Can't tell", "p", "verdict-word")
            Text("", "p", "verdict-sentence").props("id=lost")


def build_panels(source: SnapshotSource, history: KeptHistory) -> list[Panel]:
    """All panels, top to bottom."""
    with box("hero"):
        panels: list[Panel] = [
            Verdict(),
            FeatureCard("sequence", "Sequences"),
            FeatureCard("representation", "Representations"),
        ]
    panels += [Way(), FreshnessOverTime(history), CoveragePanel(), ReadsAndCost()]
    with box("columns"):
        panels += [PartitionsPanel(), WorkersPanel()]
    panels.append(DeadLettersPanel())
    LookupPanel(source)
    with box("columns"):
        panels += [VersionsPanel(), CanaryPanel(), ClocksPanel(), SourcesPanel()]
    return panels


class TopBar:
    """The name, the verdict's word, links to the sections, how recent it is, light or dark."""

    def __init__(self) -> None:
        with ui.header(wrap=False).classes("topbar"), box("topbar-inner"):
            with box("brand"):
                icon("water", "brand-icon")
                Text("Headwater")
            self._chip = Chip()
            with box("links", "nav").props('aria-label="Sections"'):
                for anchor, label in _LINKS:
                    Text(label, "a").props(f'href="#{anchor}"')
            with box("pulse").props("id=pulse") as self._pulse:
                box("pulse-dot").props("aria-hidden=true")
                self._updated = Text("connecting", "span").props("id=updated")
            theme = ui.button(icon="brightness_auto", color=None).props("flat round dense id=theme")
            theme.props('aria-label="Theme: follows the system"')
            theme.on("click", js_handler="() => window.headwater.nextTheme()")

    def show(self, view: View) -> None:
        headline = view.headline
        self._chip.show(headline.state, "fresh" if headline.state == "ok" else "")
        set_class(self._pulse, "is-stopped", view.is_outdated)
        set_prop(self._pulse, "data-at", view.snapshot.at)
        set_prop(self._pulse, "data-number", f"{view.snapshot.number}/{view.is_outdated}")
        set_prop(self._pulse, "data-good-for", good_for_seconds(view.snapshot))
