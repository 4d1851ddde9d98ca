"""Fault points: named steps at which a test may kill or delay a worker. Off unless asked for.

A testing seam, read from the variable HEADWATER_FAULT by the worker's entry point:

    kill:after_fold:3            SIGKILL itself at the third pass of the step
    delay:before_refresh:500     wait 500 ms at every pass, so that the delay shows in one stage
    kill:mid_writes:1,delay:before_fold:20

A kill can't be caught, so that what it leaves behind is what a power cut would leave.
"""

from __future__ import annotations

import asyncio
import os
import signal

from streams.errors import ConfigError

VARIABLE = "HEADWATER_FAULT"
STEPS = (
    "before_fold",
    "after_fold",
    "mid_writes",
    "after_writes",
    "before_refresh",
    "before_commit",
    "before_encode",
    "after_encode",
    "before_read",  # of the monitor's canaries
)


class FaultPoints:
    """What is to happen at which step. Raises ConfigError for a specification it can't read."""

    def __init__(self, specification: str = "") -> None:
        self._kill_at: dict[str, int] = {}
        self._delay_ms: dict[str, int] = {}
        self._passes: dict[str, int] = {}
        for part in filter(None, specification.split(",")):
            action, _, rest = part.partition(":")
            step, _, number = rest.partition(":")
            if action not in ("kill", "delay") or step not in STEPS or not number.isdigit():
                raise ConfigError(
                    f"{VARIABLE}={part!r}: write kill:STEP:PASS or delay:STEP:MILLISECONDS, "
                    f"STEP one of {', '.join(STEPS)}"
                )
            (self._kill_at if action == "kill" else self._delay_ms)[step] = int(number)
        # Whether anything is to happen at all; worth a look before a step that each row passes.
        self.armed = bool(self._kill_at or self._delay_ms)

    async def reach(self, step: str) -> None:
        """The worker is at this step."""
        if not self.armed:
            return
        self._passes[step] = self._passes.get(step, 0) + 1
        if self._passes[step] == self._kill_at.get(step):
            os.kill(os.getpid(), signal.SIGKILL)
        if step in self._delay_ms:
            await asyncio.sleep(self._delay_ms[step] / 1000)
