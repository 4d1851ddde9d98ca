"""What the metrics cost: the worker's own counting as a share of its work per batch."""

from __future__ import annotations

import statistics

from tests.benchmarks.ingest import filled
from tests.benchmarks.inputs import Input
from tests.benchmarks.stand import Result, Stand, interleaved


def metrics_overhead(stand: Stand) -> Result:
    """CPU of the sequence worker's arrow over a store in memory, with its report and without."""
    chosen = Input("zipf", stand.count(300_000), 200_000)
    with stand.place() as place, filled(place, chosen) as topic:
        results = interleaved(
            stand.rounds,
            {
                how: lambda how=how: place.run(  # type: ignore[misc]
                    "programs.worker_in_memory", topic, chosen.events, how
                )
                for how in ("with_metrics", "without_metrics")
            },
        )
    cpu = {
        how: statistics.median(found["cpu_seconds"] for found in rounds)
        for how, rounds in results.items()
    }
    share = cpu["with_metrics"] / cpu["without_metrics"] - 1
    counted = statistics.median(r["report_share"] for r in results["with_metrics"])
    return {
        # The report's own time, measured within the run: of the arrow without a store, and what it
        # takes per event, to be held against the worker's whole CPU time of the durable catch-up.
        "share_without_store": round(counted, 4),
        "us_per_event": round(counted * cpu["with_metrics"] / chosen.events * 1e6, 3),
        "difference": round(share, 4),  # between runs with and without it, noise included
        "cpu_seconds": cpu,
    }
