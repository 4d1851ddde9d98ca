"""Words: numbers, times and states as a person reads them. Pure.

A figure that isn't known (None) reads "can't tell" or a dash, never zero; a negative time, which is
clocks that differ, keeps its sign.
"""

from __future__ import annotations

import datetime

from streams.monitor.snapshot import State

DASH = "–"
CAN_NOT_TELL = "can't tell"

# What a state is called, and its sign in the icon font; its colour is the class `is-<state>`.
STATE_WORDS = {
    State.OK: ("ok", "check_circle"),
    State.BEHIND: ("behind", "schedule"),
    State.IDLE: ("idle", "pause_circle"),
    State.DOWN: ("down", "error"),
    State.UNKNOWN: (CAN_NOT_TELL, "help"),
}
# The verdict's word: what the whole is called, in one or two words.
VERDICT_WORDS = {
    State.OK: "Fresh",
    State.BEHIND: "Behind",
    State.IDLE: "Idle",
    State.DOWN: "Stuck",
    State.UNKNOWN: "Can't tell",
}

_LONG_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def duration(seconds: float | None, unknown: str = DASH) -> str:
    """A time span: 4.2 ms, 236 ms, 1.24 s, 42 s, 2 min 5 s, 3 h 4 min, 9 d 2 h."""
    if seconds is None:
        return unknown
    if seconds < 0:
        return f"−{duration(-seconds)}"
    if seconds < 60 and float(seconds).is_integer():
        return f"{seconds:.0f} s"
    for limit, factor, digits, unit in (
        (0.00995, 1e3, 1, "ms"),
        (0.9995, 1e3, 0, "ms"),
        (9.995, 1, 2, "s"),
        (59.5, 1, 0, "s"),
    ):
        if seconds < limit:
            return f"{seconds * factor:.{digits}f} {unit}"
    return _long_duration(round(seconds))


def _long_duration(seconds: int) -> str:
    place = next(i for i, (size, _unit) in enumerate(_LONG_UNITS) if seconds >= size)
    size, unit = _LONG_UNITS[place]
    text = f"{seconds // size} {unit}"
    smaller, smaller_unit = _LONG_UNITS[place + 1]
    rest = seconds % size // smaller
    return f"{text} {rest} {smaller_unit}" if rest else text


def ago(at: int | None, now_ms: int) -> str:
    """How long ago a moment (ms) was: "31 s ago"; "in 3 s" where clocks differ."""
    if at is None:
        return "never"
    seconds = (now_ms - at) / 1000
    if abs(seconds) < 1:
        return "just now"
    text = duration(float(round(abs(seconds))))
    return f"{text} ago" if seconds > 0 else f"in {text}"


def number(value: float | None, unknown: str = DASH) -> str:
    """A count: 18,204; up to three digits after the point for what isn't whole."""
    if value is None:
        return unknown
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def rate(value: float | None, unknown: str = DASH) -> str:
    """Something per second: 512/s, 12.3 k/s."""
    if value is None:
        return unknown
    if value >= 10_000:
        return f"{value / 1000:,.1f} k/s"
    return f"{number(round(value, 2 if value < 10 else 0))}/s"


def share(value: float | None, unknown: str = DASH) -> str:
    """A share 0..1 in per cent; never rounded up to 100 % or down to 0 %."""
    if value is None:
        return unknown
    if 0 < value < 0.0001:
        return "< 0.01 %"
    percent = value * 100
    if abs(percent - round(percent)) < 1e-9:
        return f"{percent:.0f} %"
    digits = 2 if percent < 1 or percent > 99 else 1
    text = f"{percent:.{digits}f}"
    return f"{'> 99.99' if text == '100.00' else text} %"


def size(value: float | None, unknown: str = DASH) -> str:
    """Bytes: 293 B, 180 MiB."""
    if value is None:
        return unknown
    for factor, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= factor:
            return f"{value / factor:,.3g} {unit}"
    return f"{value:,.0f} B"


def signed(seconds: float | None, unknown: str = CAN_NOT_TELL) -> str:
    """A clock's offset: "+4.98 s ahead", "−1.1 ms behind"."""
    if seconds is None:
        return unknown
    if abs(seconds) < 0.0005:
        return "0 ms"
    sign, word = ("+", "ahead") if seconds > 0 else ("−", "behind")
    return f"{sign}{duration(abs(seconds))} {word}"


def moment(at: int | None, unknown: str = DASH) -> str:
    """A moment (ms) in UTC, to the second."""
    if at is None:
        return unknown
    try:
        found = datetime.datetime.fromtimestamp(at / 1000, datetime.UTC)
    except (OverflowError, OSError, ValueError):
        return f"{at} ms"
    return f"{found:%Y-%m-%d %H:%M:%S} UTC"


def short(text: str, length: int = 120) -> str:
    """The beginning of a text that may be of any length."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def plural(count: int, one: str, many: str | None = None) -> str:
    """ "1 worker", "2 workers"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
