"""`headwater freshness`: how fresh everything is, for people and for scripts."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import nullcontext, suppress

import click
import msgspec
from rich.live import Live

from streams.commands.freshness_table import freshness_picture
from streams.commands.tables import console
from streams.monitor.conditions import Condition, figures_of, judge, parse_condition
from streams.monitor.once import current_snapshot
from streams.monitor.snapshot import Snapshot
from streams.settings import Settings, load_settings

_FRESHNESS_EXAMPLES = """Examples:

\b
  headwater freshness --watch
  headwater freshness --fail-if "representation.p99 > 5s or representation.staleness > 1m"
  headwater freshness --json | jq .staleness
"""


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
    """Until a condition holds, or Ctrl-C, which is how it is meant to end."""
    pause = settings.monitor.interval_seconds
    live = None if as_json else Live(console=console(), auto_refresh=False, screen=False)
    with suppress(KeyboardInterrupt), live or nullcontext():
        while True:
            snapshot, origin = asyncio.run(current_snapshot(settings))
            if live is None:
                click.echo(msgspec.json.encode(snapshot))
            else:
                live.update(freshness_picture(snapshot, origin), refresh=True)
            if _judged(snapshot, conditions):
                return 1
            time.sleep(pause)
    return 0
