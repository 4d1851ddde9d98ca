"""A chart with its text alternative: ECharts draws it, a table says the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nicegui import ui

from streams.monitor.page.elements import Table, Text, box, set_prop, set_visible


class Chart:
    """A figure: caption, chart, and the chart as a table for who asks for it."""

    def __init__(self, caption: str, classes: str = "") -> None:
        with box(f"chart {classes}", "figure") as self._figure:
            self._caption = Text(caption, "figcaption")
            self._chart = ui.echart({"series": []}, renderer="svg")
            self._chart.props("role=img")
            with box("as-table", "details"):
                Text("As a table", "summary")
                self._holder = box()
        self._columns: list[tuple[str, str, str]] = []
        self._table: Table | None = None

    def hide(self) -> None:
        """There is nothing to draw."""
        set_visible(self._figure, False)

    def show(
        self,
        caption: str,
        options: dict[str, Any],
        columns: Sequence[tuple[str, str, str]],
        rows: Sequence[dict[str, Any]],
        height: int | None = None,
    ) -> None:
        """Draw; `rows` of `columns` say the same in words."""
        set_visible(self._figure, True)
        self._caption.text = caption
        set_prop(self._chart, "aria-label", f"{caption}. The table below says the same.")
        if self._chart.options != options:
            self._chart.options.clear()
            self._chart.options.update(options)
        if height is not None:
            self._chart.style(f"height: {height}px")
        if self._table is None or self._columns != list(columns):
            self._build(caption, columns)
        assert self._table is not None
        self._table.show(rows)

    def _build(self, caption: str, columns: Sequence[tuple[str, str, str]]) -> None:
        self._columns = list(columns)
        self._holder.clear()
        with self._holder:
            self._table = Table(caption, columns, page_size=16)
