"""`headwater apply`: declaring features."""

from __future__ import annotations

import click

# First: a declaration with a wrong argument is to be told by Feast, with the argument's name.
from streams.feast_import import import_feast

import_feast(checked=True)

from streams.errors import ConfigError  # noqa: E402
from streams.kafka import create_topics  # noqa: E402
from streams.schema_store import create_schema  # noqa: E402
from streams.settings import Settings, load_settings  # noqa: E402
from streams.view_changes import changes_between  # noqa: E402
from streams.views import DeclaredViews, apply_repo, declared_views, feature_store  # noqa: E402


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
