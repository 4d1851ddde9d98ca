"""What the demo's workers and its monitor counted, read from their own pages."""

from __future__ import annotations

import urllib.request
from typing import Any

import msgspec
import numpy as np

from streams import metrics as catalogue
from streams.errors import HeadwaterError
from streams.freshness import Counts
from streams.metrics import quantile
from streams.monitor.conditions import figures_of
from streams.monitor.exposition import Exposed, parse
from streams.monitor.snapshot import Snapshot
from streams.monitor.totals import Sums

OUTCOMES = ("applied", "duplicate", "dead_lettered", "too_old", "forgotten", "filtered")
_TIMEOUT_SECONDS = 5.0


class Reading(msgspec.Struct):
    """All workers' counts at one moment."""

    sums: Sums
    gauges: dict[str, float]

    def outcomes(self) -> dict[str, int]:
        """Records of the events topic by outcome (R4)."""
        by_outcome = self.sums.by_label(catalogue.RECORDS, 1)
        return {name: int(by_outcome.get(name, 0)) for name in OUTCOMES}

    @property
    def consumed(self) -> int:
        return int(self.sums.number(catalogue.RECORDS_CONSUMED))

    @property
    def encoded(self) -> int:
        return int(self.sums.by_label(catalogue.ENCODER_USERS, 0).get("encoded", 0))


def read(urls: list[str]) -> Reading:
    """Ask every process for its metrics. Raises HeadwaterError if one doesn't answer."""
    sums = Sums()
    gauges: dict[str, float] = {}
    for url in urls:
        exposed = _exposed(url)
        sums.add(exposed, None)
        for (name, _), value in exposed.gauges.items():
            gauges[name] = gauges.get(name, 0.0) + value
    return Reading(sums, gauges)


def snapshot(monitor: str) -> Snapshot:
    """The newest of the monitor at this URL. Raises HeadwaterError if it doesn't answer."""
    return msgspec.json.decode(_get(f"{monitor}/api/snapshot"), type=Snapshot)


def _exposed(url: str) -> Exposed:
    return parse(_get(f"{url}/metrics").decode())


def _get(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:
            found: bytes = answer.read()
    except OSError as error:
        raise HeadwaterError(f"{url} doesn't answer ({error}); see: headwater logs") from error
    return found


def freshness(reading: Reading, since: str = "event_time") -> dict[str, dict[str, Any]]:
    """p50 and p99 (seconds) and number of events, by feature; live traffic only."""
    return {
        feature: summary(
            reading.sums.histogram(catalogue.FRESHNESS_SECONDS, feature, since, "live")
        )
        for feature in ("sequence", "representation")
    }


def stages(*sums: Sums) -> dict[str, dict[str, Any]]:
    """Like `freshness`, for every stage of an event's way, over all who measured a part of it."""
    found = {}
    for stage in catalogue.STAGES:
        counts = [one.histogram(catalogue.STAGE_SECONDS, stage, "live") for one in sums]
        found[stage] = summary(np.sum(counts, axis=0))
    return found


def monitored(seen: Snapshot) -> dict[str, Any]:
    """The monitor's figures for the report, by the names of `headwater freshness --fail-if`."""
    figures = figures_of(seen)
    unknown = {name: figure.problem for name, figure in figures.items() if figure.problem}
    return {
        "headline": seen.headline.text,
        "window_seconds": round(seen.window_seconds, 1),
        "figures": {name: _rounded(figure.value) for name, figure in figures.items()},
        "cannot_tell": {name: why for name, why in unknown.items() if figures[name].value is None},
        "canaries": msgspec.to_builtins(seen.canary),
    }


def summary(counts: Counts) -> dict[str, Any]:
    """Count, p50 and p99 of a histogram; None where nothing was counted."""
    total = int(counts.sum())
    if not total:
        return {"p50": None, "p99": None, "events": 0}
    p50, p99 = quantile(counts, 0.5), quantile(counts, 0.99)
    return {"p50": round(p50, 4), "p99": round(p99, 4), "events": total}


def _rounded(value: float | None) -> float | None:
    return round(value, 4) if isinstance(value, float) else value
