"""`headwater trace`: one event's way, with times."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Sequence

import click
import msgspec
from rich.markup import escape
from rich.table import Table

from streams.commands.tables import console, plain_table
from streams.errors import HeadwaterError
from streams.monitor.durations import duration
from streams.monitor.trace import Step
from streams.monitor.tracing import trace_event
from streams.settings import load_settings


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
        console().print(_table(steps))


def _table(steps: Sequence[Step]) -> Table:
    """An event's way: when, and how long after the step before."""
    table = plain_table("step", "at", "after", "")
    before: int | None = None
    for step in steps:
        at, after = "can't tell", ""
        if step.at is not None:
            at = datetime.datetime.fromtimestamp(step.at / 1000, datetime.UTC).isoformat(
                sep=" ", timespec="milliseconds"
            )
            after = "" if before is None else duration((step.at - before) / 1000)
            before = step.at
        table.add_row(step.name, at, after, escape(step.text))
    return table
