"""The competitors' own environments, one per lock file, below `.headwater-cache/bench`.

A competitor that can't be installed is reported as such; the others still run.
"""

from __future__ import annotations

import fcntl
import sys
from pathlib import Path

from infra.local.bootstrap import CACHE, LOCKS, SetupError, Step, environment, say

NAMES = ("feast", "bytewax", "pathway", "quixstreams")


def python_of(name: str) -> Path:
    """The interpreter of an environment; `main` is the platform's own."""
    if name == "main":
        return Path(sys.executable)
    return CACHE / "bench" / name / "bin" / "python"


def install(names: tuple[str, ...] = NAMES) -> dict[str, str]:
    """Install what isn't there; answers the environments that can't be installed, and why."""
    (CACHE / "bench").mkdir(parents=True, exist_ok=True)
    (CACHE / "stamps").mkdir(parents=True, exist_ok=True)
    missing: dict[str, str] = {}
    with (CACHE / "bench" / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for step in (_step(name) for name in names):
            if step.is_done():
                continue
            say(f"{step.name} …")
            step.stamp.unlink(missing_ok=True)
            try:
                step.run()
            except SetupError as error:
                missing[step.name.removeprefix("benchmark environment ")] = str(error)
            else:
                step.stamp.write_text(step.fingerprint(), encoding="utf-8")
    return missing


def _step(name: str) -> Step:
    lock, folder = LOCKS / f"bench-{name}.lock", CACHE / "bench" / name
    return Step(
        f"benchmark environment {name}",
        (lock,),
        python_of(name),
        lambda: environment(folder, lock),
    )
