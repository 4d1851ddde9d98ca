"""Measures one snapshot without a monitor: every source is asked once."""

from __future__ import annotations

import time

from streams.metrics import Metrics
from streams.monitor.answers import UserLookup
from streams.monitor.collect import Collector
from streams.monitor.snapshot import Canary, Snapshot
from streams.monitor.sources import Sources
from streams.settings import Settings
from streams.stores import store_pool


async def measure(settings: Settings) -> Snapshot:
    """Ask every source once; delays are those that the workers counted since they started."""
    now = time.time
    sources = Sources(settings, store_pool(settings.cassandra), now)
    no_canary = Canary(problem="no monitor runs; start one with `headwater monitor`")

    async def no_lookup(user_id: str) -> UserLookup:
        return UserLookup(user_id=user_id, at=round(now() * 1000), read_seconds=0.0)

    try:
        await sources.ask_once()
        workers = sources.workers.value(now()) or ()
        starts = [
            started
            for reading in workers
            if reading.exposed is not None
            and (started := reading.exposed.process.get("process_start_time_seconds"))
        ]
        collector = Collector(
            settings,
            sources,
            Metrics(),
            now,
            lambda _: no_canary,
            no_lookup,
            counts_from=min(starts, default=now()) - 1,
        )
        collector.on_workers(workers)
        groups = sources.kafka.value(now())
        if groups is not None:
            collector.on_groups(groups)
        return collector.make_snapshot()
    finally:
        await sources.close()
