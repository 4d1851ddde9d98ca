"""The verdict and the two figures behind it: what is read in the first five seconds."""

from __future__ import annotations

from streams.monitor.page import words
from streams.monitor.page.elements import Chip, Text, box, icon, set_prop, set_state
from streams.monitor.page.view import View
from streams.monitor.snapshot import Objective, Staleness, State


class Verdict:
    """Is it fresh, and if not, where is it stuck?

    The live region repeats it for a screen reader when the state or the place changes, not each
    time that a number in the sentence does.
    """

    def __init__(self) -> None:
        with box("verdict is-unknown", "section") as self.element:
            self.element.props("aria-labelledby=verdict-word id=verdict")
            self._icon = icon("help", "verdict-icon")
            with box("verdict-text"):
                Text("Is it fresh?", "p", "eyebrow")
                self._word = Text("Can't tell", "h1", "verdict-word").props("id=verdict-word")
                self._sentence = Text("Waiting for the first measurement.", "p", "verdict-sentence")
                self._sentence.props("id=verdict-sentence")
            self._spoken = Text("", "p", "sr-only").props("role=status")
        self._place: tuple[State, str | None, str | None] | None = None

    def show(self, view: View) -> None:
        headline = view.headline
        set_state(self.element, headline.state)
        set_prop(self._icon, "name", words.STATE_WORDS[headline.state][1])
        word = words.VERDICT_WORDS[headline.state]
        self._word.text = word
        self._sentence.text = headline.text
        place = (headline.state, headline.stage, headline.box)
        if place != self._place:
            self._place = place
            self._spoken.text = f"{word}. {headline.text}"


class FeatureCard:
    """One feature: how long the oldest event waits now, and how long events took."""

    def __init__(self, feature: str, title: str) -> None:
        self._feature = feature
        anchor = f"feature-{feature}"
        with box("feature", "section").props(f"id={anchor} aria-labelledby={anchor}-title"):
            with box("feature-head"):
                with box(tag="div"):
                    Text(title, "h2").props(f"id={anchor}-title")
                    self._version = Text("", "p", "hint")
                self._chip = Chip()
            with box("figures", "dl"):
                self._waiting, self._waiting_note = _figure("Oldest event waits")
                self._took, self._took_note = _figure("Events took, p99")
            self._within = Text("", "p", "feature-foot")

    def show(self, view: View) -> None:
        self._show_staleness(view)
        self._show_freshness(view)
        self._show_objective(view)

    def _show_staleness(self, view: View) -> None:
        found = view.staleness(self._feature)
        if found is None or view.is_outdated:
            self._chip.show(State.UNKNOWN)
            self._waiting.text, self._waiting_note.text = words.DASH, "not measured"
            return
        self._chip.show(found.state, state_word(found, view.objective(self._feature)))
        self._waiting.text = words.duration(found.waiting_seconds, "?")
        lag = found.lag_records
        self._waiting_note.text = (
            found.problem
            if found.problem
            else "nothing is open"
            if found.state == State.IDLE
            else f"{words.plural(lag, 'record')} open"
            if lag is not None
            else ""
        )

    def _show_freshness(self, view: View) -> None:
        found = view.freshness(self._feature)
        self._version.text = (
            "from event to stored sequence"
            if found is None or not found.encoder
            else f"{found.encoder}, version {found.version}"
        )
        if found is None or found.problem:
            self._took.text = words.duration(found.p99_seconds if found else None, "?")
            self._took_note.text = found.problem if found else "not measured"
            return
        self._took.text = words.duration(found.p99_seconds)
        self._took_note.text = (
            f"p50 {words.duration(found.p50_seconds)}"
            if found.count
            else f"no event in {words.duration(view.snapshot.window_seconds)}"
        )

    def _show_objective(self, view: View) -> None:
        found = view.objective(self._feature)
        if found is None:
            self._within.text = ""
            return
        aim = f"{words.share(found.target)} within {words.duration(found.seconds)}"
        good = words.share(found.good_share, words.CAN_NOT_TELL)
        self._within.text = f"Objective: {aim}. Now: {good}."


def state_word(found: Staleness, objective: Objective | None) -> str:
    """What a feature's state is called; "" for the state's own word.

    Fresh is what waits no longer than the objective. What waits for its offset's commit on top of
    it may be readable already: it isn't behind, and nobody can call it fresh.
    """
    if found.state != State.OK or found.waiting_seconds is None or objective is None:
        return ""
    return "fresh" if found.waiting_seconds <= objective.seconds else ""


def _figure(label: str) -> tuple[Text, Text]:
    with box("figure"):
        Text(label, "dt")
        with box(tag="dd"):
            value = Text(words.DASH, "span", "figure-value")
            note = Text("", "span", "figure-note")
    return value, note
