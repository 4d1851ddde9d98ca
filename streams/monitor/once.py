"""One snapshot for a command: from the running monitor, or measured here and now without one."""

from __future__ import annotations

import time

import aiohttp
import msgspec

from streams.metrics import Metrics
from streams.monitor.answers import UserLookup
from streams.monitor.collect import Collector
from streams.monitor.service import RunningMonitor, monitor_file
from streams.monitor.snapshot import Canary, Snapshot
from streams.monitor.sources import Sources
from streams.settings import Settings
from streams.stores import store_pool

_HTTP_SECONDS = 3.0


async def current_snapshot(settings: Settings) -> tuple[Snapshot, str]:
    """The snapshot, and where it comes from. Never fails: what can't be told is in it."""
    running = _running(settings)
    if running is not None:
        snapshot = await _ask(settings, running.url)
        if snapshot is not None:
            return snapshot, f"the monitor at {running.url}, over the last minute"
    return await measure(settings), "measured now, delays since the workers started"


def _running(settings: Settings) -> RunningMonitor | None:
    try:
        return msgspec.json.decode(monitor_file(settings).read_bytes(), type=RunningMonitor)
    except (OSError, msgspec.DecodeError):
        return None


async def _ask(settings: Settings, url: str) -> Snapshot | None:
    """None if it doesn't answer with a recent snapshot: one that hangs is as good as none."""
    own = settings.monitor
    headers = {"Authorization": f"Bearer {own.token}"} if own.token else {}
    timeout = aiohttp.ClientTimeout(total=_HTTP_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as http,
            http.get(f"{url}/api/snapshot") as answer,
        ):
            answer.raise_for_status()
            snapshot = msgspec.json.decode(await answer.read(), type=Snapshot)
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError):
        return None
    too_old = time.time() - snapshot.at / 1000 > 5 * snapshot.interval_seconds + _HTTP_SECONDS
    return None if too_old else snapshot


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
