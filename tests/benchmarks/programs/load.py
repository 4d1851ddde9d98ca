"""Live traffic for `freshness`: a steady rate of events, and one probe event every 50 ms.

    RATE SECONDS USERS

A probe's user is new, `probe-NUMBER`; the reader, another process, waits for it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import numpy as np

from streams.events import Event
from streams.producer import EventProducer
from streams.settings import load_settings
from tests.benchmarks.inputs import zipf_users

PROBE_SECONDS = 0.05
_STEP_SECONDS = 0.01


async def _send(rate: int, seconds: float, users: int) -> dict[str, float]:
    chosen = zipf_users(int(rate * seconds) + 1, users, np.random.default_rng(3)).tolist()
    sent = probes = 0
    async with EventProducer(load_settings()) as producer:
        began = time.monotonic()
        print(f"begun {time.time()}", file=sys.stderr, flush=True)
        while (elapsed := time.monotonic() - began) < seconds:
            while sent < min(elapsed * rate, len(chosen)):
                user, item = f"u{chosen[sent]:07d}", f"i{sent % 100_000}"
                await producer.send(_event(user, item, f"load-{sent}"))
                sent += 1
            while probes < elapsed / PROBE_SECONDS:
                await producer.send(_event(f"probe-{probes}", "i1", f"probe-{probes}"))
                probes += 1
            await asyncio.sleep(_STEP_SECONDS)
    return {"events": sent, "probes": probes, "seconds": time.monotonic() - began}


def _event(user: str, item: str, event_id: str) -> Event:
    return Event(event_id, user, item, "view", int(time.time() * 1000), "feed")


def main() -> None:
    """Send for a time."""
    rate, seconds, users = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    print(json.dumps(asyncio.run(_send(rate, seconds, users))), flush=True)


if __name__ == "__main__":
    main()
