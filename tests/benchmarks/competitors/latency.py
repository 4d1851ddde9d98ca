"""Times calls for some users at a time, the same for every reader. Standard library only."""

from __future__ import annotations

import gc
import json
import random
import time
from collections.abc import Callable
from typing import Any

SIZES = (1, 10, 100)


def measure(
    call: Callable[[list[str]], Any], users: list[str], repeats: int, **more: object
) -> None:
    """Print p50 and p99 in ms by number of users; every call is for other users.

    As a server does after its start, what is loaded by then is taken out of the collector's sight:
    a full collection over Feast's modules takes 0.1 s.
    """
    chosen = random.Random(11)
    result: dict[str, Any] = {"p50_ms": {}, "p99_ms": {}, "repeats": repeats}
    for size in SIZES:
        for _ in range(30):
            call(chosen.sample(users, size))
        gc.freeze()
        times = []
        for _ in range(repeats):
            asked = chosen.sample(users, size)
            began = time.perf_counter()
            call(asked)
            times.append((time.perf_counter() - began) * 1000)
        times.sort()
        result["p50_ms"][str(size)] = round(times[len(times) // 2], 3)
        result["p99_ms"][str(size)] = round(times[int(len(times) * 0.99)], 3)
    print(json.dumps(result | more), flush=True)
