"""Elements: the few building blocks that the panels share, on NiceGUI's.

Each takes new values without being made anew, so that focus, scrolling and a screen reader's place
survive an update, and sends nothing where nothing changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement

from streams.monitor.page import words
from streams.monitor.snapshot import State


class Text(TextElement):
    """A text in an HTML element of one's choice."""

    def __init__(self, text: str = "", tag: str = "span", classes: str = "") -> None:
        super().__init__(tag=tag, text=text)
        self.classes(classes)


def set_prop(element: ui.element, name: str, value: Any) -> None:
    """Change a property (an attribute in HTML) if it is another one."""
    if element.props.get(name) != value:
        element.props[name] = value


def box(classes: str = "", tag: str = "div") -> ui.element:
    """A container."""
    return ui.element(tag).classes(classes)


def icon(name: str, classes: str = "") -> ui.icon:
    """A sign that a screen reader leaves out: the words beside it say the same."""
    return ui.icon(name).classes(classes).props("aria-hidden=true")


class Chip:
    """A state as colour, sign and word."""

    def __init__(self, classes: str = "") -> None:
        with box(f"chip {classes}", "span") as self.element:
            self._icon = icon("help")
            self._word = Text()

    def show(self, state: State, word: str = "") -> None:
        usual, sign = words.STATE_WORDS[state]
        set_state(self.element, state)
        set_prop(self._icon, "name", sign)
        self._word.text = word or usual


def set_state(element: ui.element, state: State) -> None:
    """Give an element the colours of a state."""
    new = f"is-{state}"
    if new not in element.classes:
        old = " ".join(name for name in element.classes if name.startswith("is-"))
        element.classes(new, remove=old)


def set_class(element: ui.element, name: str, on: bool) -> None:
    """Have a class or not."""
    if on != (name in element.classes):
        element.classes(add=name if on else None, remove=None if on else name)


def set_visible(element: ui.element, on: bool) -> None:
    """Have it on the page or not."""
    if element.visible != on:
        element.set_visibility(on)


class Panel:
    """A titled section; used as a context manager it takes the content."""

    def __init__(self, title: str, anchor: str, hint: str = "", classes: str = "") -> None:
        with box(f"panel {classes}", "section") as self.element:
            self.element.props(f"id={anchor} aria-labelledby={anchor}-title")
            with box("panel-head"):
                Text(title, "h2").props(f"id={anchor}-title")
                self.hint = Text(hint, "p", "hint")
                self.tools = box("panel-tools")
            self.body = box("panel-body")

    def __enter__(self) -> Panel:
        self.body.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.body.__exit__(*error)


class Problem:
    """A line that says why something can't be told; not there while all is well."""

    def __init__(self) -> None:
        with box("problem is-unknown") as self._box:
            icon("help")
            self._text = Text()
        self._box.set_visibility(False)

    def show(self, problem: str) -> None:
        set_visible(self._box, bool(problem))
        if problem:
            told = problem.startswith(words.CAN_NOT_TELL)
            self._text.text = problem if told else f"Can't tell: {problem}"


class Facts:
    """Names and values, as a description list; names are fixed after the first showing."""

    def __init__(self, classes: str = "") -> None:
        self._list = box(f"facts {classes}", "dl")
        self._names: tuple[str, ...] = ()
        self._values: list[Text] = []

    def show(self, facts: Iterable[tuple[str, str]]) -> None:
        pairs = list(facts)
        names = tuple(name for name, _value in pairs)
        if names != self._names:
            self._build(names)
        for element, (_name, value) in zip(self._values, pairs, strict=True):
            element.text = value

    def _build(self, names: tuple[str, ...]) -> None:
        self._names, self._values = names, []
        self._list.clear()
        with self._list:
            for name in names:
                with box("fact"):
                    Text(name, "dt")
                    self._values.append(Text(tag="dd"))


class Table:
    """Rows of text in Quasar's table: sortable, paged, with a caption for screen readers.

    A cell of the column `state` is a chip: its value is "state|word".
    """

    def __init__(
        self,
        caption: str,
        columns: Sequence[tuple[str, str, str]],
        *,
        page_size: int = 8,
        empty: str = "Nothing to show",
        classes: str = "",
    ) -> None:
        """`columns` are (name, label, options), of number, wide, code, minor, sortable."""
        self._page_size = page_size
        self._table = ui.table(
            rows=[], columns=[_column(*c) for c in columns], row_key="key", pagination=page_size
        )
        self._table.classes(f"table {classes}").props("flat dense")
        self._table.props["no-data-label"] = empty
        self._table.props["aria-label"] = caption
        self._table.props["rows-per-page-options"] = [0]
        self._table.add_slot("body-cell-state", _STATE_CELL)

    def show(self, rows: Sequence[dict[str, Any]], problem: str = "") -> None:
        """`rows` need a unique `key`. With a problem, no rows don't mean that there are none."""
        found = list(rows)
        set_visible(self._table, bool(found) or not problem)
        if self._table.rows != found:
            self._table.rows = found
        set_prop(self._table, "hide-pagination", len(found) <= self._page_size)
        set_prop(self._table, "hide-header", not found)


def state_cell(state: State, word: str = "") -> str:
    """The value of a state column."""
    return f"{state}|{word or words.STATE_WORDS[state][0]}"


def _column(name: str, label: str, options: str = "") -> dict[str, Any]:
    kinds = set(options.split())
    classes = " ".join(sorted(f"col-{kind}" for kind in kinds))
    return {
        "name": name,
        "label": label,
        "field": name,
        "align": "right" if "number" in kinds else "left",
        "sortable": "sortable" in kinds,
        "classes": classes,
        "headerClasses": classes,
    }


_SIGNS = "{" + ", ".join(f"{s.value}: '{sign}'" for s, (_, sign) in words.STATE_WORDS.items()) + "}"
_STATE_CELL = f"""
<q-td :props="props">
  <span :class="['chip', 'is-' + props.value.split('|')[0]]">
    <q-icon :name="({_SIGNS})[props.value.split('|')[0]]" aria-hidden="true"></q-icon>
    <span>{{{{ props.value.split('|')[1] }}}}</span>
  </span>
</q-td>
"""
