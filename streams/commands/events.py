"""`headwater produce` and `headwater forget`: records into the events topic."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import IO

import click
import msgspec
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from streams.commands.exposed import exposed
from streams.errors import ConfigError, RecordTooLarge
from streams.event_files import (
    FORMATS,
    TIME_UNITS,
    ColumnMap,
    FileRecord,
    format_of,
    read_records,
)
from streams.events import Forget
from streams.kafka import topic_identity
from streams.producer import EventProducer
from streams.settings import Settings, load_settings
from streams.workers.exposing import expose_sends

_PRODUCE_EXAMPLES = """Examples:

\b
  headwater produce events.jsonl
  cat events.jsonl | headwater produce - --rate 500
  headwater produce ratings.csv --map user_id=user --map item_id=movie \\
      --map value=rating --map event_time=timestamp --time-unit s \\
      --set event_type=view --ids content
"""


def _pairs(
    _ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    pairs = {}
    for value in values:
        field, separator, right = value.partition("=")
        if not separator or not right:
            raise click.BadParameter(f"{value!r}: write field=something", param=parameter)
        pairs[field] = right
    return pairs


@click.command(epilog=_PRODUCE_EXAMPLES)
@click.argument("source")
@click.option("--format", "file_format", type=click.Choice(FORMATS), help="Default: by the ending.")
@click.option("--map", "columns", multiple=True, callback=_pairs, metavar="FIELD=COLUMN")
@click.option("--set", "constants", multiple=True, callback=_pairs, metavar="FIELD=VALUE")
@click.option(
    "--time-unit", type=click.Choice(list(TIME_UNITS)), default="ms", show_default=True,
    help="Unit of a numeric event_time column; ISO 8601 texts are taken too.",
)  # fmt: skip
@click.option(
    "--ids", type=click.Choice(["column", "row", "content"]), default="column", show_default=True,
    help="Where event_id comes from; row keeps copies distinct, content lets them collide.",
)  # fmt: skip
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Events per second.")
@click.option("--strict", is_flag=True, help="Refuse what is no event, and exit with 1.")
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535),
    help="Where /metrics is. Default: the setting producer.metrics_port; 0 takes a free one.",
)  # fmt: skip
def produce(
    source: str,
    file_format: str | None,
    columns: dict[str, str],
    constants: dict[str, str],
    time_unit: str,
    ids: str,
    rate: float | None,
    strict: bool,
    metrics_port: int | None,
) -> int:
    """Send the events of SOURCE, a JSON-lines, CSV or Parquet file, or - for stdin.

    Returns once the brokers have confirmed every record. What is no event is sent as it is and
    ends in the dead letters, with its reason; --strict refuses it instead. A record that is larger
    than the topic takes is refused in any case.
    """
    column_map = ColumnMap(columns=columns, constants=constants, time_unit=time_unit, ids=ids)
    chosen = file_format or ("jsonl" if source == "-" else format_of(source))
    settings = load_settings()
    if metrics_port is not None:
        own = msgspec.structs.replace(settings.producer, metrics_port=metrics_port)
        settings = msgspec.structs.replace(settings, producer=own)
    with _open(source) as handle:
        topic_identity(settings.kafka, settings.kafka.events_topic)  # or say at once what is amiss
        records = read_records(handle, source, chosen, column_map)
        sent, invalid, refused = asyncio.run(_send_all(settings, records, rate, strict))
    click.echo(f"produced {sent:,} events" + (f", {invalid:,} of them invalid" if invalid else ""))
    if invalid:
        click.echo("see them with: headwater dead-letters list", err=True)
    if refused:
        click.secho(f"refused {refused:,} records, see above", fg="red", err=True)
    return 1 if refused else 0


def _open(source: str) -> IO[bytes]:
    if source == "-":
        return sys.stdin.buffer
    path = Path(source)
    if not path.is_file():
        raise ConfigError(f"{source} is no file; name a file, or - for stdin")
    try:
        return path.open("rb")
    except OSError as error:
        raise ConfigError(f"{source} can't be read: {error.strerror}") from error


async def _send_all(
    settings: Settings, records: Iterator[FileRecord], rate: float | None, strict: bool
) -> tuple[int, int, int]:
    sent = invalid = refused = 0
    started = time.monotonic()
    columns = (SpinnerColumn(), TextColumn("producing"), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    with progress if sys.stderr.isatty() else nullcontext():
        task = progress.add_task("producing", total=None)
        async with EventProducer(settings) as producer:
            exposed(lambda: expose_sends(producer.counts, settings, time.time))
            for record in records:
                if rate is not None:
                    await asyncio.sleep(max(0.0, started + sent / rate - time.monotonic()))
                if strict and record.problem is not None:
                    click.echo(f"line {record.number}: {record.problem}", err=True)
                    refused += 1
                    continue
                try:
                    await producer.send_raw(record.key, record.value)
                except RecordTooLarge as error:
                    click.echo(f"line {record.number}: {error}", err=True)
                    refused += 1
                    continue
                sent += 1
                invalid += record.problem is not None
                progress.update(task, completed=sent)
    return sent, invalid, refused


@click.command(epilog="Example:\n\n\b\n  headwater forget alice bob")
@click.argument("users", nargs=-1, required=True, metavar="USER...")
@click.option(
    "--up-to", type=int, metavar="MS",
    help="Delete events up to this event time (ms since the epoch). Default: now.",
)  # fmt: skip
def forget(users: tuple[str, ...], up_to: int | None) -> None:
    """Delete users: sequences, representations, and what may still arrive late.

    The deletion takes its place in the log like any event; a mark stays, and events not newer than
    it never come back. Events newer than the mark start a new sequence.
    """
    event_time = int(time.time() * 1000) if up_to is None else up_to
    settings = load_settings()
    topic_identity(settings.kafka, settings.kafka.events_topic)  # or say at once what is amiss
    asyncio.run(_forget(settings, users, event_time))
    for user in users:
        click.echo(f"{user}\tforgotten up to {event_time}")


async def _forget(settings: Settings, users: tuple[str, ...], event_time: int) -> None:
    async with EventProducer(settings) as producer:
        for user in users:
            await producer.send(Forget(user, uuid.uuid4().hex, event_time))
