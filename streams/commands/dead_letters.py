"""`headwater dead-letters`: see, repair and replay the records that were no events."""

from __future__ import annotations

import base64
import datetime
import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from streams.commands.tables import console, plain_table
from streams.errors import ConfigError, InvalidRecord
from streams.events import REASONS, decode_record
from streams.kafka import (
    DeadLetter,
    count_dead_letters,
    list_dead_letters,
    purge_dead_letters,
    replay_dead_letters,
    show_dead_letter,
)
from streams.producer import EventProducer
from streams.settings import load_settings


class Coordinates(click.ParamType):
    """`partition:offset`, as `list` prints them."""

    name = "PARTITION:OFFSET"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        partition, _, offset = str(value).partition(":")
        if not (partition.isdigit() and offset.isdigit()):
            self.fail(f"{value!r}: write PARTITION:OFFSET, as `list` shows them", param, ctx)
        return int(partition), int(offset)


@click.group(
    "dead-letters",
    epilog="Examples:\n\n\b\n  headwater dead-letters list\n"
    "  headwater dead-letters show 0:12\n"
    "  headwater dead-letters replay --filter reason=wrong_type --edit 'jq -c .user_id|=tostring'",
)
def dead_letters() -> None:
    """See, repair and replay records that were no events."""


@dead_letters.command("list", epilog="Example:\n\n\b\n  headwater dead-letters list --json | jq .")
@click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most so many."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_(limit: int, as_json: bool) -> None:
    """The newest dead letters, newest first."""
    settings = load_settings().kafka
    letters = list_dead_letters(settings, limit)
    if as_json:
        for letter in letters:
            click.echo(json.dumps(_as_json(letter)))
        return
    table = plain_table("where", "when", "reason", "from", "key", "detail")
    for letter in letters:
        origin = f"{letter.origin_topic}/{letter.origin_partition}:{letter.origin_offset}"
        row = (f"{letter.partition}:{letter.offset}", _time(letter.failed_at), letter.reason)
        rest = (origin, escape(_text(letter.key, 40)), escape(letter.detail[:120]))
        table.add_row(*row, *rest)
    console().print(table)
    total = count_dead_letters(settings)
    if total > len(letters):
        click.echo(f"{len(letters)} of {total}; more with --limit", err=True)
    if not total:
        click.echo("no dead letters", err=True)


@dead_letters.command(epilog="Example:\n\n\b\n  headwater dead-letters show 0:12")
@click.argument("where", type=Coordinates())
@click.option("--raw", is_flag=True, help="Only the record's bytes, as they were.")
def show(where: tuple[int, int], raw: bool) -> None:
    """One dead letter, whole."""
    letter = show_dead_letter(load_settings().kafka, *where)
    if raw:
        click.get_binary_stream("stdout").write(letter.value or b"")
        return
    click.echo(json.dumps(_as_json(letter, whole=True), indent=2))


@dead_letters.command(
    epilog="Examples:\n\n\b\n  headwater dead-letters replay 0:12 --edit 'sed s/x/1/'"
    "\n  headwater dead-letters replay --filter reason=future_event_time --dry-run\n"
    "  headwater dead-letters replay 0:12 --edit '$EDITOR'"
)
@click.argument("where", type=Coordinates(), nargs=-1)
@click.option(
    "--filter", "filters", multiple=True, metavar="FIELD=VALUE",
    help="reason=…, key=…, partition=… or offset=… (of the dead letter); all must hold.",
)  # fmt: skip
@click.option(
    "--edit", metavar="COMMAND",
    help="Filter each record through a command (stdin to stdout), or open it in $EDITOR.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say what would be sent, send nothing.")
@click.option("--force", is_flag=True, help="Also send what is still no event.")
def replay(
    where: tuple[tuple[int, int], ...],
    filters: tuple[str, ...],
    edit: str | None,
    dry_run: bool,
    force: bool,
) -> int:
    """Send dead letters to the events topic again: those at WHERE, or those that --filter keeps.

    What is still no event is held back unless --force is given. Replaying twice is harmless, since
    events are distinct by their id; the letters themselves stay until `purge`.
    """
    if not where and not filters:
        raise click.UsageError("say which: PARTITION:OFFSET, or --filter reason=…")
    settings = load_settings()
    keep = _chooser(where, filters)
    held_back: list[str] = []

    def repaired(letter: DeadLetter) -> tuple[bytes | None, bytes | None]:
        value = _edited(edit, letter.value or b"") if edit else letter.value
        try:
            return decode_record(value).user_id.encode(), value
        except InvalidRecord as error:
            if force:
                return letter.key, value
            held_back.append(f"{letter.partition}:{letter.offset} is still no event: {error}")
            return None, None

    if dry_run:
        sent = replay_dead_letters(settings.kafka, lambda *_: None, keep=keep, edit=repaired)
    else:
        with EventProducer(settings) as producer:
            sent = replay_dead_letters(
                settings.kafka, producer.send_raw_blocking, keep=keep, edit=repaired
            )
    for line in held_back:
        click.echo(line, err=True)
    click.echo(f"{'would replay' if dry_run else 'replayed'} {sent}, held back {len(held_back)}")
    return 1 if held_back else 0


@dead_letters.command(epilog="Example:\n\n\b\n  headwater dead-letters purge --yes")
@click.option("--yes", is_flag=True, help="Don't ask.")
def purge(yes: bool) -> None:
    """Delete all dead letters that exist now, for good."""
    settings = load_settings().kafka
    total = count_dead_letters(settings)
    if total and not yes:
        click.confirm(f"delete {total} dead letters for good?", abort=True)
    click.echo(f"deleted {purge_dead_letters(settings)} dead letters")


def _chooser(
    where: tuple[tuple[int, int], ...], filters: tuple[str, ...]
) -> Callable[[DeadLetter], bool]:
    wanted = [_condition(text) for text in filters]

    def keep(letter: DeadLetter) -> bool:
        if where and (letter.partition, letter.offset) not in where:
            return False
        return all(condition(letter) for condition in wanted)

    return keep


def _condition(text: str) -> Callable[[DeadLetter], bool]:
    field, separator, value = text.partition("=")
    readers: dict[str, Callable[[DeadLetter], str]] = {
        "reason": lambda letter: letter.reason,
        "key": lambda letter: (letter.key or b"").decode("utf-8", "replace"),
        "partition": lambda letter: str(letter.partition),
        "offset": lambda letter: str(letter.offset),
    }
    if not separator or field not in readers:
        raise ConfigError(f"--filter {text!r}: write one of {', '.join(readers)}, '=' and a value")
    if field == "reason" and value not in REASONS:
        raise ConfigError(f"no such reason {value!r}; there are: {', '.join(REASONS)}")
    read = readers[field]
    return lambda letter: read(letter) == value


def _edited(command: str, value: bytes) -> bytes:
    if command in ("$EDITOR", "editor"):
        return _in_editor(value)
    done = subprocess.run(shlex.split(command), input=value, capture_output=True, check=False)
    if done.returncode != 0:
        reason = done.stderr.decode("utf-8", "replace").strip()
        raise ConfigError(f"--edit {command!r} failed with {done.returncode}: {reason}")
    return done.stdout.rstrip(b"\n")


def _in_editor(value: bytes) -> bytes:
    editor = os.environ.get("EDITOR")
    if not editor:
        raise ConfigError("EDITOR is not set; set it, or give --edit a command")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record.json"
        path.write_bytes(value)
        subprocess.run([*shlex.split(editor), str(path)], check=True)
        return path.read_bytes().rstrip(b"\n")


def _as_json(letter: DeadLetter, whole: bool = False) -> dict[str, Any]:
    limit = len(letter.value or b"") if whole else 500
    fields: dict[str, Any] = {
        "partition": letter.partition,
        "offset": letter.offset,
        "reason": letter.reason,
        "detail": letter.detail,
        "failed_at": letter.failed_at,
        "origin": {
            "topic": letter.origin_topic,
            "partition": letter.origin_partition,
            "offset": letter.origin_offset,
            "timestamp": letter.origin_timestamp,
        },
        "key": None if letter.key is None else _text(letter.key, 1000),
        "value": None if letter.value is None else _text(letter.value, limit),
        "num_bytes": len(letter.value or b""),
    }
    if whole and letter.value is not None:
        fields["value_base64"] = base64.b64encode(letter.value).decode()
    return fields


def _text(raw: bytes | None, limit: int) -> str:
    text = (raw or b"")[: 4 * limit].decode("utf-8", "backslashreplace")
    return text if len(text) <= limit else text[:limit] + "…"


def _time(milliseconds: int) -> str:
    moment = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%SZ")
