"""How charts look: fonts and colours, which are the style sheet's variables. Pure."""

from __future__ import annotations

from typing import Any

Options = dict[str, Any]
TEXT, MUTED, GRID = "var(--text)", "var(--muted)", "var(--hairline)"
FONT = "Roboto, system-ui, sans-serif"


def base() -> Options:
    """What every chart has; its text alternative is a table, hence no aria of its own."""
    return {
        "animation": False,
        "textStyle": {"fontFamily": FONT, "color": TEXT},
        "aria": {"enabled": False},
    }


def legend() -> Options:
    """Names above the chart."""
    return {
        "type": "scroll",
        "left": 0,
        "top": 0,
        "icon": "roundRect",
        "itemWidth": 14,
        "itemHeight": 4,
        "itemGap": 18,
        "textStyle": {"color": MUTED, "fontFamily": FONT, "fontSize": 12},
        "inactiveColor": GRID,
    }


def tooltip() -> Options:
    """Under the pointer."""
    return {
        "confine": True,
        "backgroundColor": "var(--surface)",
        "borderColor": "var(--line)",
        "textStyle": {"color": TEXT, "fontFamily": FONT, "fontSize": 12},
    }


def axis(**options: Any) -> Options:
    """An axis that stays in the background."""
    return {
        "axisLine": {"show": False},
        "axisTick": {"show": False},
        "axisLabel": {"color": MUTED, "fontFamily": FONT, "fontSize": 11, "hideOverlap": True},
        "splitLine": {"lineStyle": {"color": GRID}},
    } | options
