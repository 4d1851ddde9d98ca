"""The look of the commands' tables."""

from __future__ import annotations

from rich.table import Table


def plain_table(*columns: str) -> Table:
    """A table without lines, as wide as its content."""
    return Table(*columns, box=None, header_style="dim", pad_edge=False)
