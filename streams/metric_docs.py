"""docs/metrics.md out of the catalogue: `python -m streams.metric_docs > docs/metrics.md`."""

from __future__ import annotations

import sys

from streams.metrics import BOUNDS, CATALOGUE, STAGES, Metric

_HEAD = """# Metrics

Generated from the catalogue in `streams/metrics.py` by `python -m streams.metric_docs`; a test
compares the two.

Every process exposes its part at `/metrics`, in Prometheus' text format: workers, `headwater
serve`, `headwater produce` and `headwater rebuild` on their metrics port, the monitor on its own. A
program that uses `EventProducer` or `OnlineFeatures` exposes them with `expose_sends` and
`expose_reads` of `streams.workers.exposing`. Labels are bounded: never a user, an item or an event.
Beside these, each process has prometheus-client's `process_*` metrics.
"""

_TAIL = """
## Buckets

All histograms have the same {count} buckets: bounds from {low:g} ms to {high:.0f} min, each
{step:.0f} % above the one before, so that a quantile is right to a tenth. The first bucket ends at
0: delays below it are a clock's, not a delay's.

They are classic histograms with fixed bounds, not Prometheus' native ones: those have no place in
the text format, which the monitor, `curl` and every version of Prometheus read. The same bounds
everywhere also let the monitor add up processes and tell a quantile from counts alone.

## Stages

`stage` is one of

{stages}

A stage ends where the next one begins. `stored_to_read` is timed by the monitor's canaries, since
real readers come whenever they like; how long representations wait for those is
`headwater_first_read_seconds`, timed by each process that reads. `traffic` is `live`, or `catch_up`
for records that were older than the catch-up threshold when a worker read them; only `live` counts
for the objectives.
"""


_COLUMNS = "| name | labels | unit | meaning |\n|---|---|---|---|\n"


def markdown() -> str:
    """The page."""
    parts = [_HEAD]
    for kind in ("counter", "gauge", "histogram"):
        found = sorted((m for m in CATALOGUE if m.kind == kind), key=lambda metric: metric.name)
        parts.append(
            f"\n## {kind.capitalize()}s\n\n| name | labels | unit | meaning |\n|---|---|---|---|\n"
        )
        parts.extend(_row(metric) for metric in found)
    stages = "\n".join(f"- `{stage}`" for stage in STAGES)
    parts.append(
        _TAIL.format(
            count=len(BOUNDS), low=BOUNDS[1] * 1000, high=BOUNDS[-1] / 60,
            step=(BOUNDS[2] / BOUNDS[1] - 1) * 100, stages=stages,
        )
    )  # fmt: skip
    return "".join(parts)


def _row(metric: Metric) -> str:
    suffix = "_total" if metric.kind == "counter" else ""
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}{suffix}` | {labels} | {metric.unit} | {metric.meaning} |\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
