"""What the demo's workers counted, read from their own pages."""

from __future__ import annotations

import urllib.request
from typing import Any

import msgspec

from streams import metrics as catalogue
from streams.freshness import Counts
from streams.metrics import quantile
from streams.monitor.exposition import Exposed, parse
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
    """Ask every worker for its metrics. Raises OSError if one doesn't answer."""
    sums = Sums()
    gauges: dict[str, float] = {}
    for url in urls:
        exposed = _exposed(url)
        sums.add(exposed, None)
        for (name, _), value in exposed.gauges.items():
            gauges[name] = gauges.get(name, 0.0) + value
    return Reading(sums, gauges)


def _exposed(url: str) -> Exposed:
    with urllib.request.urlopen(f"{url}/metrics", timeout=_TIMEOUT_SECONDS) as answer:
        return parse(answer.read().decode())


def freshness(reading: Reading, since: str = "event_time") -> dict[str, dict[str, Any]]:
    """p50 and p99 (seconds) and number of events, by feature; live traffic only."""
    return {
        feature: summary(
            reading.sums.histogram(catalogue.FRESHNESS_SECONDS, feature, since, "live")
        )
        for feature in ("sequence", "representation")
    }


def stages(reading: Reading) -> dict[str, dict[str, Any]]:
    """Like `freshness`, for every stage of an event's way."""
    return {
        stage: summary(reading.sums.histogram(catalogue.STAGE_SECONDS, stage, "live"))
        for stage in catalogue.STAGES
    }


def summary(counts: Counts) -> dict[str, Any]:
    """Count, p50 and p99 of a histogram; None where nothing was counted."""
    total = int(counts.sum())
    if not total:
        return {"p50": None, "p99": None, "events": 0}
    p50, p99 = quantile(counts, 0.5), quantile(counts, 0.99)
    return {"p50": round(p50, 4), "p99": round(p99, 4), "events": total}
