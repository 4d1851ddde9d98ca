"""`headwater views`, `get` and `serve`: reading features."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Group
from rich.text import Text

from streams.commands.exposed import exposed
from streams.commands.tables import console, plain_table
from streams.online import FeatureBatch, OnlineFeatures, ReadOutcome, RepresentationBatch
from streams.reads import when_serving
from streams.representations import RepresentationView
from streams.sequences import Mark, SequenceView
from streams.settings import Settings, load_settings
from streams.views import (
    DeclaredViews,
    declared_views,
    feature_store,
    serve_features,
)
from streams.workers.exposing import expose_reads

_SHOWN_EVENTS = 8


@click.command(
    epilog="Examples:\n\n\b\n  headwater views\n  headwater views --json | jq .sequences"
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def views(as_json: bool) -> None:
    """List the declared sequence and representation views."""
    declared = declared_views(feature_store(load_settings()))
    if as_json:
        click.echo(json.dumps(_as_json(declared)))
        return
    sequences = plain_table("sequence view", "event types", "max length", "max age", "ttl")
    for view in declared.sequences.values():
        age = None if view.max_age_ms is None else view.max_age_ms / 1000
        types = ", ".join(view.event_types)
        row = (view.name, types, f"{view.max_length:,}", _duration(age))
        sequences.add_row(*row, _duration(view.ttl_seconds))
    table = plain_table("representation view", "encoder", "width", "from", "max length", "ttl")
    for found in declared.representations.values():
        row = (found.name, found.encoder, str(found.dimensions), ", ".join(found.sequences))
        table.add_row(*row, f"{found.max_length:,}", _duration(found.ttl_seconds))
    out = console()
    out.print(sequences)
    out.print()
    out.print(table)


def _as_json(declared: DeclaredViews) -> dict[str, list[dict[str, Any]]]:
    return {
        "sequences": [_sequence_json(view) for view in declared.sequences.values()],
        "representations": [
            _representation_json(view) for view in declared.representations.values()
        ],
    }


def _sequence_json(view: SequenceView) -> dict[str, Any]:
    return {
        "name": view.name,
        "event_types": list(view.event_types),
        "max_length": view.max_length,
        "max_age": None if view.max_age_ms is None else view.max_age_ms / 1000,
        "ttl": view.ttl_seconds,
    }


def _representation_json(view: RepresentationView) -> dict[str, Any]:
    return {
        "name": view.name,
        "encoder": view.encoder,
        "dimensions": view.dimensions,
        "sequences": list(view.sequences),
        "max_length": view.max_length,
        "ttl": view.ttl_seconds,
    }


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "any"
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{round(seconds / size, 1):g} {unit}"
    return f"{seconds:g} s"


@click.command(
    epilog="Examples:\n\n\b\n  headwater get alice bob\n"
    "  headwater get alice --json | jq .sequences.engagement.item_id"
)
@click.argument("users", nargs=-1, required=True, metavar="USER...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per user and line.")
@click.option("--view", "chosen", multiple=True, metavar="VIEW", help="Only these views.")
def get(users: tuple[str, ...], as_json: bool, chosen: tuple[str, ...]) -> int:
    """Read the features of users: sequences, representation, its age and version.

    The exit code is 1 if a user couldn't be read.
    """
    answers, failed = asyncio.run(_read(load_settings(), users, chosen or None))
    for answer in answers:
        if as_json:
            click.echo(json.dumps(answer))
        else:
            console().print(_picture(answer, time.time()))
    for message in failed:
        click.secho(f"Error: {message}", fg="red", err=True)
    return 1 if failed else 0


async def _read(
    settings: Settings, users: tuple[str, ...], chosen: tuple[str, ...] | None
) -> tuple[list[dict[str, Any]], list[str]]:
    async with OnlineFeatures(settings) as online:
        batch = await online.get_async(users, chosen)
        answers = [
            _answer(batch, index, await online.forgotten_async(user))
            for index, user in enumerate(users)
        ]
    return answers, [f"{users[index]}: {error}" for index, error in sorted(batch.errors.items())]


def _answer(batch: FeatureBatch, index: int, mark: Mark | None) -> dict[str, Any]:
    return {
        "user_id": batch.user_ids[index],
        "forgotten_at": None if mark is None else mark.forgotten_at,
        "sequences": {name: found.of(index) for name, found in batch.sequences.items()},
        "representations": {
            name: _representation_answer(found, index)
            for name, found in batch.representations.items()
        },
    }


def _representation_answer(found: RepresentationBatch, index: int) -> dict[str, Any]:
    status = ReadOutcome(int(found.outcome[index]))
    there = status is ReadOutcome.FOUND
    return {
        "encoder": found.view.encoder,
        "version": found.version,
        "as_of": int(found.as_of[index]) if there else None,
        "encoded_at": int(found.encoded_at[index]) if there else None,
        "vector": found.vector[index].tolist() if there else None,
        "status": status.name.lower(),
    }


def _picture(answer: dict[str, Any], now: float) -> Group:
    lines: list[Any] = [Text(answer["user_id"], style="bold")]
    if answer["forgotten_at"] is not None:
        moment = datetime.fromtimestamp(answer["forgotten_at"] / 1000, UTC)
        lines.append(Text(f"  was forgotten at {moment:%Y-%m-%d %H:%M:%SZ}", style="yellow"))
    for name, found in answer["sequences"].items():
        lines += _sequence_lines(name, found, now)
    for name, found in answer["representations"].items():
        lines.append(Text(f"  {name}: {_representation_line(found, now)}"))
    return Group(*lines)


def _sequence_lines(name: str, found: dict[str, list[Any]], now: float) -> list[Any]:
    length = len(found["event_time"])
    lines: list[Any] = [Text(f"  {name}: {length} events")]
    table = plain_table("    age", "event", "item", "surface", "value")
    for place in range(length - 1, max(-1, length - 1 - _SHOWN_EVENTS), -1):
        age = now - found["event_time"][place] / 1000
        value = found["value"][place]
        rest = (found["surface"][place] or "", "" if value is None else f"{value:g}")
        shown = (found["event_type"][place], found["item_id"][place])
        table.add_row(f"    {_duration(round(age, 1))}", *map(Text, (*shown, *rest)))
    if length:
        lines.append(table)
    if length > _SHOWN_EVENTS:
        lines.append(Text(f"    … and {length - _SHOWN_EVENTS} older ones", style="dim"))
    return lines


def _representation_line(found: dict[str, Any], now: float) -> str:
    if found["vector"] is None:
        return f"{found['status']} (encoder {found['encoder']}, version {found['version']})"
    age = _duration(round(now - found["as_of"] / 1000, 1))
    start = ", ".join(f"{number:.3f}" for number in found["vector"][:4])
    return (
        f"{len(found['vector'])} floats [{start}, …], encoder {found['encoder']} version "
        f"{found['version']}, newest event {age} old"
    )


@click.command(epilog="Example:\n\n\b\n  headwater serve --port 6566")
@click.option("--host", help="Default: the setting serve.host.")
@click.option("--port", type=click.IntRange(0, 65535), help="Default: the setting serve.port.")
def serve(host: str | None, port: int | None) -> None:
    """Serve features over HTTP with Feast's feature server, from our store.

    POST /get-online-features {"features": ["engagement:item_id"], "entities": {"user_id": ["a"]}}
    """
    settings = load_settings()
    store = feature_store(settings)
    declared_views(store)  # a clear error now beats one per request
    when_serving(lambda: exposed(lambda: expose_reads(settings, time.time)))
    when_serving(gc.freeze)  # or a full collection over Feast's modules stops a request for 0.1 s
    serve_features(
        store,
        settings.serve.host if host is None else host,
        settings.serve.port if port is None else port,
    )
