"""The look of the commands' tables."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

_PIPE_WIDTH = 240


def console() -> Console:
    """Standard output; a pipe is as wide as a row needs, so that scripts see one line each."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def plain_table(*columns: str) -> Table:
    """A table without lines, as wide as its content."""
    return Table(*columns, box=None, header_style="dim", pad_edge=False)
