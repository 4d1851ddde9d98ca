"""The report of a run in Markdown: setup, versions, commands, every figure beside its target."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

# (file, path of a figure, what it says, target, whether larger is better)
TARGETS: list[tuple[str, str, str, float, bool]] = [
    ("ingest", "delivery.vs_faust", "fold ÷ stock Faust agent", 15, True),
    ("ingest", "delivery.vs_bytewax", "fold ÷ bytewax", 1.0, True),
    ("ingest", "delivery.vs_pathway", "fold ÷ pathway", 1.0, True),
    ("ingest", "delivery.vs_quixstreams", "fold ÷ quixstreams", 1.7, True),
    ("ingest", "durable.vs_bound", "catch-up ÷ bare loop, same rows", 0.8, True),
    ("ingest", "durable.vs_feast_push", "catch-up ÷ Faust and Feast's push", 50, True),
    ("ingest", "metrics_overhead.share_of_worker", "metrics, of the worker's CPU", 0.02, False),
    ("cost", "length.ratio", "cost per event, sequences of 4,096 ÷ 160", 1.2, False),
    ("cost", "users.ratios.cpu_us_per_event", "CPU per event, 1 M known users ÷ 10 k", 1.3, False),
    ("memory", "rss_mb", "worker's memory over 5 M events, MB", 700, False),
    ("memory", "rss_slope", "its growth, MB per million events", 5, False),
    *(
        ("fetch", f"{field}.p99.{size}", f"{what}, {size} users, p99", target, True)
        for field, what, target in (
            ("vs_feast_cassandra", "stock Feast ÷ OnlineFeatures", 5.0),
            ("sdk_vs_feast_cassandra", "stock Feast ÷ Feast SDK on our store", 2.0),
        )
        for size in ("1", "10", "100")
    ),
    *(
        (
            "fetch",
            f"vs_bound.p50.{size}",
            f"OnlineFeatures ÷ bare read, {size} users, p50",
            1.5,
            False,
        )
        for size in ("1", "10", "100")
    ),
    ("freshness", "sequence.sequence.p50", "event → readable elsewhere, s, p50", 0.1, False),
    ("freshness", "sequence.sequence.p99", "event → readable elsewhere, s, p99", 0.5, False),
]
_LIBRARIES = (
    "confluent-kafka", "faust-streaming", "aiokafka", "feast", "cassandra-driver", "acsylla",
    "msgspec", "numpy", "torch",
)  # fmt: skip


def describe_machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = ""
    with open("/proc/cpuinfo") as file:
        model = next((line.partition(":")[2].strip() for line in file if "model name" in line), "")
    with open("/proc/meminfo") as file:
        memory = int(file.readline().split()[1]) // 2**20
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": memory,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in _LIBRARIES},
    }


def figure(found: Any, path: str) -> float | None:
    """The number at a dotted path; None if it isn't there."""
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, int | float) else None


def write_report(folder: Path, target: Path) -> None:
    """Put all results of a folder into one page."""
    found = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.json"))
    }
    runs = [part["run"] for part in found.values()]
    if not runs:
        return
    newest = runs[-1]
    lines = [
        "# Benchmarks",
        "",
        (
            f"Machine: {newest['cpu']}, {newest['cores']} cores, {newest['memory_gib']} GiB; "
            f"Python {newest['python']}. Services, workers, competitors and readers share it."
        ),
        "",
        "Command: `make bench`. Rounds are interleaved, figures are medians: "
        + ", ".join(f"{name} {part['run']['rounds']}" for name, part in found.items())
        + " rounds; share of the events "
        + ", ".join(f"{name} {part['run']['scale']:g}" for name, part in found.items())
        + ".",
        "",
        "Versions: " + ", ".join(f"{name} {one}" for name, one in newest["versions"].items()) + ".",
        "",
        "| figure | what | measured | target | |",
        "|---|---|---|---|---|",
    ]
    for name, path, what, wanted, more in TARGETS:
        number = figure(found.get(name), path)
        if number is None:
            lines.append(f"| `{name}.{path}` | {what} | not measured | | |")
            continue
        reached = number >= wanted if more else number <= wanted
        sign, verdict = "≥" if more else "≤", "" if reached else "**missed**"
        lines.append(f"| `{name}.{path}` | {what} | {number:g} | {sign} {wanted:g} | {verdict} |")
    for name, part in found.items():
        shown = {key: value for key, value in part.items() if key != "run"}
        lines += ["", f"## {name}", "", "```json", json.dumps(shown, indent=1), "```"]
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
