"""`headwater status`: services, workers, counters and lag, at a glance or for scripts."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from importlib.metadata import entry_points
from typing import Any

import click
from rich.console import Group
from rich.text import Text

from streams.commands.tables import console, plain_table
from streams.errors import HeadwaterError
from streams.kafka import group_offsets
from streams.settings import Settings, load_settings
from streams.workers.registration import WorkerAddress, running_workers

STATUS_GROUP = "headwater.status"
OUTCOMES = ("applied", "duplicate", "too_old", "forgotten", "dead_lettered", "filtered")
_TIMEOUT_SECONDS = 2.0
_GOOD = {"ready": "green", "starting": "yellow", "paused": "yellow"}


@click.command(
    epilog="Examples:\n\n\b\n  headwater status\n  headwater status --json | jq .workers"
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def status(as_json: bool) -> int:
    """Show every service's address, every worker's counters and lag.

    The exit code is 1 if a service or a worker isn't ready.
    """
    settings = load_settings()
    report = read_status(settings)
    if as_json:
        click.echo(json.dumps(report))
    else:
        console().print(_picture(report))
    services = [row["state"] == "ready" for row in report["services"]]
    return 0 if all(services) and all(row["ready"] for row in report["workers"]) else 1


def read_status(settings: Settings) -> dict[str, Any]:
    """What `status --json` prints."""
    return {
        "home": settings.home,
        "services": _services(),
        "workers": [_worker(address) for address in running_workers(settings)],
        "groups": [
            _group(settings, settings.sequence_worker.group, settings.kafka.events_topic),
            _group(settings, settings.encoder_worker.group, settings.kafka.refresh_topic),
        ],
    }


def _services() -> list[dict[str, Any]]:
    """What packages that run services say of them."""
    rows: list[dict[str, Any]] = []
    for point in entry_points(group=STATUS_GROUP):
        states = point.load()()
        rows += [state._asdict() for state in states]
    return rows


def _worker(address: WorkerAddress) -> dict[str, Any]:
    row: dict[str, Any] = {"role": address.role, "pid": address.pid, "url": address.url}
    try:
        with urllib.request.urlopen(f"{address.url}/state", timeout=_TIMEOUT_SECONDS) as answer:
            row |= json.load(answer)
        row |= _readiness(address)
    except (OSError, ValueError) as error:
        row |= {"ready": False, "detail": f"doesn't answer: {error}"}
    return row


def _readiness(address: WorkerAddress) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"{address.url}/ready", timeout=_TIMEOUT_SECONDS):
            return {"ready": True, "detail": ""}
    except urllib.error.HTTPError as error:
        return {"ready": False, "detail": error.read().decode("utf-8", "replace").strip()}


def _group(settings: Settings, group: str, topic: str) -> dict[str, Any]:
    row: dict[str, Any] = {"group": group, "topic": topic}
    try:
        offsets = group_offsets(settings.kafka, group, topic)
    except HeadwaterError as error:
        return row | {"lag": None, "detail": str(error), "partitions": []}
    partitions = [
        {"partition": p.partition, "committed": p.committed, "end": p.end, "lag": p.lag}
        for p in offsets
    ]
    return row | {"lag": sum(p.lag for p in offsets), "detail": "", "partitions": partitions}


def _picture(report: dict[str, Any]) -> Group:
    services = plain_table("service", "state", "address", "pid", "detail")
    for row in report["services"]:
        state = Text(row["state"], style=_GOOD.get(row["state"], "red"))
        pid = "" if row["pid"] is None else str(row["pid"])
        services.add_row(row["name"], state, row["address"], pid, row["detail"])
    workers = plain_table("worker", "pid", "state", "lag", "records")
    for row in report["workers"]:
        state = Text("ready", style="green") if row["ready"] else Text(row["detail"], style="red")
        counters = _counters(row.get("counters"))
        workers.add_row(row["role"], str(row["pid"]), state, _number(row.get("lag")), counters)
    groups = plain_table("backlog of", "topic", "lag", "detail")
    for row in report["groups"]:
        groups.add_row(row["group"], row["topic"], _number(row["lag"]), row["detail"])
    return Group(*_filled(services, workers, groups))


def _counters(counters: dict[str, int] | None) -> str:
    """A worker's counters, zeros left out; a sequence worker's show that none is lost (R4)."""
    if not counters:
        return ""
    names = OUTCOMES if OUTCOMES[0] in counters else [n for n in counters if n != "consumed"]
    parts = [f"{counters[name]:,} {name.replace('_', ' ')}" for name in names if counters[name]]
    if names is OUTCOMES:
        return f"{counters['consumed']:,} consumed = " + (" + ".join(parts) or "0")
    return ", ".join([f"{counters['consumed']:,} consumed", *parts])


def _filled(*tables: Any) -> list[Any]:
    shown: list[Any] = []
    for table in tables:
        if table.row_count:
            shown += [table, Text()]
    return shown[:-1] or [Text("nothing is running here; start it with: headwater up")]


def _number(value: Any) -> str:
    return "" if value is None else f"{value:,}"
