"""`headwater monitor`, `freshness` and `trace`: how fresh everything is, and one event's way."""

from __future__ import annotations

import asyncio
import logging
import sys
import time

import click
import msgspec
from rich.console import Group
from rich.live import Live

from streams.commands.freshness_table import freshness_picture, trace_table
from streams.commands.tables import console
from streams.errors import HeadwaterError
from streams.monitor.conditions import Condition, figures_of, judge, parse_condition
from streams.monitor.once import current_snapshot
from streams.monitor.page.mount import add_page
from streams.monitor.service import serve
from streams.monitor.snapshot import Snapshot
from streams.monitor.tracing import trace_event
from streams.settings import Settings, load_settings

_MONITOR_EXAMPLES = """Examples:

\b
  headwater monitor
  HEADWATER_MONITOR__HOST=0.0.0.0 HEADWATER_MONITOR__TOKEN=$(cat token) headwater monitor
"""
_FRESHNESS_EXAMPLES = """Examples:

\b
  headwater freshness --watch
  headwater freshness --fail-if "representation.p99 > 5s or representation.staleness > 1m"
  headwater freshness --json | jq .staleness
"""


@click.command(epilog=_MONITOR_EXAMPLES)
@click.option("--host", help="Where to listen; other than loopback needs monitor.token.")
@click.option("--port", type=click.IntRange(0, 65535), help="0 takes a free one.")
def monitor(host: str | None, port: int | None) -> None:
    """Watch everything: web page, canaries, /metrics for Prometheus, /api/snapshot for scripts.

    It reads workers, Kafka, Cassandra and Triton, and changes nothing but the rows of its own
    canary users (setting monitor.canary_users, 0 sends none).
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    settings = load_settings()
    changes = {"host": host, "port": port}
    own = msgspec.structs.replace(
        settings.monitor, **{key: value for key, value in changes.items() if value is not None}
    )
    settings = msgspec.structs.replace(settings, monitor=own)
    asyncio.run(serve(settings, add_page, lambda url: click.echo(f"monitor at {url}")))


@click.command(epilog=_FRESHNESS_EXAMPLES)
@click.option("--watch", is_flag=True, help="Go on until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="The whole snapshot as one JSON object.")
@click.option(
    "--fail-if", "conditions", multiple=True, metavar="CONDITION",
    help="Exit with 1 if it holds, or if it can't be told. May be given several times.",
)  # fmt: skip
def freshness(watch: bool, as_json: bool, conditions: tuple[str, ...]) -> int:
    """Show how fresh everything is: stages, staleness, objectives, clocks.

    Asks the running monitor, or measures by itself if there is none. A condition compares figures
    such as sequence.p99, representation.staleness, coverage, dead_letters.share or
    stage.broker_to_folded.p99 with a number and a unit (ms s m h d %), joined by and, or.
    """
    parsed = [parse_condition(text) for text in conditions]
    settings = load_settings()
    if watch:
        return _watch(settings, parsed, as_json)
    snapshot, origin = asyncio.run(current_snapshot(settings))
    if as_json:
        click.echo(msgspec.json.encode(snapshot))
    elif not parsed or sys.stdout.isatty():
        console().print(freshness_picture(snapshot, origin))
    return _judged(snapshot, parsed)


def _judged(snapshot: Snapshot, conditions: list[Condition]) -> int:
    figures = figures_of(snapshot)
    verdicts = [judge(condition, figures) for condition in conditions]
    for verdict in verdicts:
        for reason in verdict.reasons:
            click.secho(reason, fg="red", err=True)
    return 1 if any(verdict.holds for verdict in verdicts) else 0


def _watch(settings: Settings, conditions: list[Condition], as_json: bool) -> int:
    """Until a condition holds or Ctrl-C."""
    pause = settings.monitor.interval_seconds
    with Live(Group(), console=console(), auto_refresh=False, screen=False) as live:
        while True:
            snapshot, origin = asyncio.run(current_snapshot(settings))
            if as_json:
                click.echo(msgspec.json.encode(snapshot))
            else:
                live.update(freshness_picture(snapshot, origin), refresh=True)
            if _judged(snapshot, conditions):
                return 1
            time.sleep(pause)


@click.command(epilog="Example:\n\n\b\n  headwater trace 4f1c0a --user alice")
@click.argument("event_id")
@click.option("--user", "user_id", help="Whose event it is: one partition is searched, not all.")
@click.option(
    "--last", "max_records", type=click.IntRange(min=1), default=200_000, show_default=True,
    help="How many of the newest records per partition are searched.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object per step.")
def trace(event_id: str, user_id: str | None, max_records: int, as_json: bool) -> None:
    """Print an event's way, with times: produced, broker, folded, stored, queued, encoded.

    Nothing is kept per event: what can't be told afterwards is said to be so.
    """
    steps = asyncio.run(trace_event(load_settings(), event_id, user_id, max_records))
    if steps is None:
        where = f"of {user_id} " if user_id else ""
        raise HeadwaterError(
            f"event {event_id} {where}isn't among the newest {max_records:,} records per "
            "partition; search more with --last"
        )
    if as_json:
        for step in steps:
            click.echo(msgspec.json.encode(step))
    else:
        console().print(trace_table(steps))
