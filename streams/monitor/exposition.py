"""What a worker exposes, read back: our own part of Prometheus' text format.

Only series of the catalogue are kept. prometheus-client's own parser takes ten times as long, and
the monitor reads every worker every two seconds.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

import numpy as np

from streams.freshness import Counts
from streams.metrics import BOUNDS, CATALOGUE

Key = tuple[str, tuple[str, ...]]  # metric, label values in the catalogue's order

_SERIES = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?$")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)",?')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
_ESCAPE = re.compile(r"\\[\\\"n]")
_BOUND_OF = {f"{bound:.6g}": index for index, bound in enumerate(BOUNDS)} | {"+Inf": len(BOUNDS)}
_PROCESS = {"process_resident_memory_bytes", "process_start_time_seconds"}


class Exposed(NamedTuple):
    """One process's values: counters, gauges, and histograms as counts per bucket and sums."""

    counters: dict[Key, float]
    gauges: dict[Key, float]
    histograms: dict[Key, Counts]
    sums: dict[Key, float]
    process: dict[str, float]


def parse(text: str) -> Exposed:
    """Raises ValueError for what isn't Prometheus' text format, or has other buckets than ours."""
    exposed = Exposed({}, {}, {}, {}, {})
    for line in text.split("\n"):
        if line.startswith("headwater_"):
            _take(line, exposed)
        elif line.startswith("process_"):
            name, _, value = line.partition(" ")
            if name in _PROCESS:
                exposed.process[name] = float(value)
    for key, cumulative in exposed.histograms.items():
        exposed.histograms[key] = np.diff(cumulative, prepend=0)
    return exposed


_BY_NAME = {
    **{f"{m.name}_total": (m.name, "counter", m.labels) for m in CATALOGUE if m.kind == "counter"},
    **{m.name: (m.name, "gauge", m.labels) for m in CATALOGUE if m.kind == "gauge"},
    **{
        f"{m.name}_{part}": (m.name, part, m.labels)
        for m in CATALOGUE
        if m.kind == "histogram"
        for part in ("bucket", "sum")
    },
}


def _take(line: str, exposed: Exposed) -> None:
    series, _, number = line.rpartition(" ")
    known = _understood(series)
    if known is None:
        return
    kind, key, place = known
    value = float(number)
    if kind == "bucket":
        counts = exposed.histograms.get(key)
        if counts is None:
            counts = exposed.histograms[key] = np.zeros(len(BOUNDS) + 1, np.int64)
        counts[place] = int(value)
    elif kind == "counter":
        exposed.counters[key] = value
    elif kind == "gauge":
        exposed.gauges[key] = value
    else:
        exposed.sums[key] = value


# The same series come again with every reading.
@functools.lru_cache(maxsize=100_000)
def _understood(series: str) -> tuple[str, Key, int] | None:
    """(kind, key, bucket) of a series; None for what isn't ours or isn't needed, such as a newer
    worker's metric or a histogram's count."""
    found = _SERIES.match(series)
    if found is None:
        raise ValueError(f"not Prometheus' text format: {series[:80]!r}")
    known = _BY_NAME.get(found[1])
    if known is None:
        return None
    name, kind, wanted = known
    labels = {label: _unescaped(value) for label, value in _LABEL.findall(found[2] or "")}
    key = (name, tuple(labels.get(label, "") for label in wanted))
    if kind != "bucket":
        return kind, key, 0
    place = _BOUND_OF.get(labels.get("le", ""))
    if place is None:
        raise ValueError(f"{name} has a bucket {labels.get('le')!r} that isn't known here")
    return kind, key, place


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPES[found[0]], text) if "\\" in text else text
