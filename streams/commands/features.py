"""`headwater apply`, `views`, `get` and `serve`: declaring features and reading them."""

from __future__ import annotations

import json
from typing import Any

import click

from streams.commands.tables import console, plain_table
from streams.errors import ConfigError
from streams.kafka import create_topics
from streams.representations import RepresentationView
from streams.schema_store import create_schema
from streams.sequences import SequenceView
from streams.settings import Settings, load_settings
from streams.view_changes import changes_between
from streams.views import DeclaredViews, apply_repo, declared_views, feature_store


@click.command(epilog="Example:\n\n\b\n  headwater up && headwater apply")
def apply() -> None:
    """Create topics, keyspace and tables, and apply the declarations in feature_repo.

    Safe to repeat. After a change of a view it says what holds at once, what holds for new events
    only, and which command fills in the rest. Running workers take changes in within seconds.
    """
    settings = load_settings()
    created = create_topics(settings.kafka)
    click.echo(f"topics      {', '.join(created) or 'exist'}")
    create_schema(settings.cassandra)
    click.echo(f"tables      keyspace {settings.cassandra.keyspace}")
    before = _declared_before(settings)
    after = apply_repo(settings)
    names = ", ".join([*after.sequences, *after.representations]) or "none"
    click.echo(f"views       {names}")
    for change in changes_between(before, after):
        click.echo(f"changed     {change}")


def _declared_before(settings: Settings) -> DeclaredViews:
    if not settings.registry_path.is_file():
        return DeclaredViews({}, {})
    try:
        return declared_views(feature_store(settings))
    except ConfigError:
        return DeclaredViews({}, {})  # what was there can't be read: everything counts as new


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
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
