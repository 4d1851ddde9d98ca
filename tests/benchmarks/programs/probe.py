"""Waits for the probes of `load` and tells how old they were when they could be read.

    BEGAN SECONDS WARM_UP_SECONDS FEATURE

Reads by `OnlineFeatures`, as any Python reader would. BEGAN is when the load began, seconds since
the epoch; FEATURE is sequence or representation. Probes of the warm-up are told apart.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import numpy as np

from streams.online import FeatureBatch, OnlineFeatures, ReadOutcome
from streams.settings import load_settings
from tests.benchmarks.programs.load import PROBE_SECONDS

_POLL_SECONDS = 0.004
# Asked for at once, the oldest first: a late probe must not make the readers the load.
_MAX_WAITING = 8
_LAST_SECONDS = 20.0


def _times(batch: FeatureBatch) -> dict[str, int]:
    """ms of the newest reflected event by user, for the users that are there."""
    found = {}
    for sequence in batch.sequences.values():
        columns = sequence.columns
        for index in np.flatnonzero(sequence.outcome == ReadOutcome.FOUND):
            found[batch.user_ids[index]] = int(columns.event_time[columns.offsets[index + 1] - 1])
    for made in batch.representations.values():
        for index in np.flatnonzero(made.outcome == ReadOutcome.FOUND):
            found[batch.user_ids[index]] = int(made.as_of[index])
    return found


async def _watch(began: float, seconds: float, warm_up: float, view: str) -> dict[str, Any]:
    next_probe = 0
    waiting: list[str] = []
    delays: list[float] = []
    warming: list[float] = []
    async with OnlineFeatures(load_settings()) as online:
        while True:
            elapsed = time.time() - began
            while next_probe < min(elapsed, seconds) / PROBE_SECONDS:
                waiting.append(f"probe-{next_probe}")
                next_probe += 1
            if elapsed > seconds and (not waiting or elapsed > seconds + _LAST_SECONDS):
                break
            found = _times(await online.get_async(waiting[:_MAX_WAITING], [view]))
            now = time.time() * 1000
            for user, event_time in found.items():
                waiting.remove(user)
                is_warm = int(user.partition("-")[2]) * PROBE_SECONDS >= warm_up
                (delays if is_warm else warming).append((now - event_time) / 1000)
            await asyncio.sleep(_POLL_SECONDS)
    return {**_summary(delays), "lost": len(waiting), "warm_up": _summary(warming)}


def _summary(delays: list[float]) -> dict[str, float]:
    if not delays:
        return {"probes": 0}
    p50, p99 = np.quantile(delays, [0.5, 0.99])
    return {
        "p50": round(float(p50), 4), "p99": round(float(p99), 4), "max": round(max(delays), 4),
        "probes": len(delays),
    }  # fmt: skip


def main() -> None:
    """Watch for a time."""
    began, seconds, warm_up = map(float, sys.argv[1:4])
    view = {"sequence": "engagement", "representation": "user_representation"}[sys.argv[4]]
    print(json.dumps(asyncio.run(_watch(began, seconds, warm_up, view))), flush=True)


if __name__ == "__main__":
    main()
