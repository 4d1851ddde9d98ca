"""`make bench`: every speed and memory claim, beside its competitors, into build/bench/*.json.

    make bench                                   all of it, about 45 minutes on two cores
    make bench ARGS="fetch freshness"            some parts
    make bench ARGS="--scale 0.05 --rounds 1"    a quick look, whose numbers mean little

`report.md` beside the JSON says setup, versions, commands and every figure; a report worth keeping
goes to tests/benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks import environments, fetch, freshness, ingest, overhead
from tests.benchmarks.inputs import BUILD
from tests.benchmarks.report import describe_machine, write_report
from tests.benchmarks.stand import Result, Stand, say, stand

# file → (part of it, how it is measured)
PARTS: dict[str, dict[str, Callable[[Stand], Result]]] = {
    "ingest": {
        "delivery": lambda s: ingest.delivery(s, 200_000),
        "durable": lambda s: ingest.durable(s, 200_000),
        "metrics_overhead": overhead.metrics_overhead,
    },
    "ingest_10k_users": {
        "delivery": lambda s: ingest.delivery(s, 10_000),
        "durable": lambda s: ingest.durable(s, 10_000),
    },
    "cost": {"length": ingest.cost_length, "users": ingest.cost_users},
    "memory": {"memory": ingest.memory},
    "scale": {"scale": ingest.scale},
    "fetch": {"fetch": fetch.fetch},
    "freshness": {
        "sequence": lambda s: freshness.freshness(s, encoder=False),
        "with_encoder": lambda s: freshness.freshness(s, encoder=True),
    },
}


def main() -> int:
    """Run what was asked for; parts that fail are told at the end, the others' results stay."""
    arguments = _arguments()
    # Unwinds, as Ctrl-C does: workers and services end with their blocks.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    missing = environments.install()
    for name, why in missing.items():
        say(f"competitor {name} can't be installed: {why}")
    failed = []
    for name in arguments.parts or PARTS:
        services = (
            ("kafka", "cassandra", "triton") if name == "freshness" else ("kafka", "cassandra")
        )
        found: Result = {}
        began = time.monotonic()
        with stand(services, arguments.rounds, arguments.scale) as made:
            for part, measure in PARTS[name].items():
                say(f"{name}.{part}")
                try:
                    found[part] = measure(made)
                except (RuntimeError, AssertionError, OSError) as error:
                    failed.append(f"{name}.{part}")
                    found[part] = {"failed": str(error)}
                    say(f"{name}.{part} failed: {error}")
        _relate_metrics(found)
        _write(
            BUILD / f"{name}.json",
            {
                **(found[name] if list(found) == [name] else found),
                "run": {
                    "rounds": arguments.rounds,
                    "scale": arguments.scale,
                    "seconds": round(time.monotonic() - began),
                    **describe_machine(),
                },
            },
        )
    write_report(BUILD, BUILD / "report.md")
    print(BUILD / "report.md")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _relate_metrics(found: Result) -> None:
    """What the metrics take per event, as a share of what the durable catch-up takes."""
    overhead, durable = found.get("metrics_overhead", {}), found.get("durable", {})
    if "us_per_event" in overhead and "cpu_seconds" in durable:
        whole = durable["cpu_seconds"] / durable["events"] * 1e6
        overhead["share_of_worker"] = round(overhead["us_per_event"] / whole, 4)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=3, help="interleaved runs (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the events (default 1)")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.parts) - PARTS.keys())
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are: {', '.join(PARTS)}")
    return arguments


def _write(path: Path, found: Result) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
