"""One snapshot for a command: from the running monitor, or measured here and now without one."""

from __future__ import annotations

import importlib
import time
from collections.abc import Awaitable, Callable

import aiohttp
import msgspec

from streams.monitor.durations import duration
from streams.monitor.running import running_monitor
from streams.monitor.snapshot import Snapshot
from streams.settings import Settings

_HTTP_SECONDS = 3.0


async def current_snapshot(settings: Settings) -> tuple[Snapshot, str]:
    """The snapshot, and where it comes from. Never fails: what can't be told is in it."""
    running = running_monitor(settings)
    if running is not None:
        snapshot = await _ask(settings, running.url)
        if snapshot is not None:
            window = duration(snapshot.window_seconds)
            return snapshot, f"the monitor at {running.url}, over the last {window}"
    # Feast takes seconds to import, which a probe that finds a monitor needn't wait for.
    module = importlib.import_module("streams.monitor.measure")
    measure: Callable[[Settings], Awaitable[Snapshot]] = module.measure
    return await measure(settings), "measured now; delays are those since the workers started"


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
