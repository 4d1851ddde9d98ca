"""`headwater status`: services, workers, counters and lag, at a glance or for scripts."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from typing import Any

import click
from rich.console import Group
from rich.text import Text

from streams.commands.tables import console, plain_table
from streams.errors import HeadwaterError
from streams.kafka import group_offsets
from streams.monitor.running import running_monitor
from streams.settings import Settings, load_settings
from streams.workers.registration import READER, WorkerAddress, read_state, registered_workers

STATUS_GROUP = "headwater.status"
OUTCOMES = ("applied", "duplicate", "too_old", "forgotten", "dead_lettered", "filtered")
_TIMEOUT_SECONDS = 2.0
_GOOD = {"ready": "green", "starting": "yellow", "paused": "yellow"}


@click.command(
    epilog="Examples:\n\n\b\n  headwater status\n  headwater status --json | jq .workers"
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def status(as_json: bool) -> int:
    """Show every service's address, every worker's counters and lag, the monitor's page.

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
    services = _services()
    return {
        "home": settings.home,
        "services": services,
        "workers": [_worker(address, runs) for address, runs in registered_workers(settings)],
        "monitor": _monitor(settings),
        "groups": _groups(settings, services),
    }


def _services() -> list[dict[str, Any]]:
    """What packages that run services say of them."""
    rows: list[dict[str, Any]] = []
    for point in entry_points(group=STATUS_GROUP):
        states = point.load()()
        rows += [state._asdict() for state in states]
    return rows


def _worker(address: WorkerAddress, runs: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"role": address.role, "pid": address.pid, "url": address.url}
    if not runs:
        command = "serve" if address.role == READER else f"worker {address.role}"
        detail = f"was killed and not replaced; start another: headwater {command}"
        return row | {"ready": False, "detail": detail}
    try:
        row |= read_state(address, _TIMEOUT_SECONDS)
        row |= _readiness(f"{address.url}/ready")
    except (OSError, ValueError) as error:
        row |= {"ready": False, "detail": f"doesn't answer: {error}"}
    return row


def _monitor(settings: Settings) -> dict[str, Any] | None:
    """The monitor of this home, None if there is none; one that was killed doesn't answer."""
    found = running_monitor(settings)
    if found is None:
        return None
    row: dict[str, Any] = {"pid": found.pid, "url": found.url}
    try:
        return row | _readiness(f"{found.url}/healthz")
    except OSError as error:
        return row | {"ready": False, "detail": f"doesn't answer: {error}"}


def _readiness(url: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS):
            return {"ready": True, "detail": ""}
    except urllib.error.HTTPError as error:
        return {"ready": False, "detail": error.read().decode("utf-8", "replace").strip()}


def _groups(settings: Settings, services: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kafka = settings.kafka
    wanted = (
        (settings.sequence_worker.group, kafka.events_topic),
        (settings.encoder_worker.group, kafka.refresh_topic),
    )
    for row in services:  # no waiting for what is known to be down
        if row["address"] == kafka.bootstrap_servers and row["pid"] is None:
            detail = f"{row['name']} is {row['state']}"
            return [_unread(group, topic, detail) for group, topic in wanted]
    with ThreadPoolExecutor(len(wanted)) as pool:
        return list(pool.map(lambda pair: _group(settings, *pair), wanted))


def _unread(group: str, topic: str, detail: str) -> dict[str, Any]:
    return {"group": group, "topic": topic, "lag": None, "detail": detail, "partitions": []}


def _group(settings: Settings, group: str, topic: str) -> dict[str, Any]:
    row: dict[str, Any] = {"group": group, "topic": topic}
    try:
        offsets = group_offsets(settings.kafka, group, topic)
    except HeadwaterError as error:
        return _unread(group, topic, str(error))
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
        counters = _counters(row.get("counters"))
        facts = (_number(row.get("lag")), counters)
        workers.add_row(row["role"], str(row["pid"]), _readiness_text(row), *facts)
    monitor = plain_table("monitor", "pid", "state")
    if (row := report["monitor"]) is not None:
        monitor.add_row(row["url"], str(row["pid"]), _readiness_text(row))
    groups = plain_table("backlog of", "topic", "lag", "detail")
    for row in report["groups"]:
        groups.add_row(row["group"], row["topic"], _number(row["lag"]), row["detail"])
    return Group(*_filled(services, workers, monitor, groups))


def _readiness_text(row: dict[str, Any]) -> Text:
    return Text("ready", style="green") if row["ready"] else Text(row["detail"], style="red")


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
