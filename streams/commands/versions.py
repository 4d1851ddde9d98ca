"""`headwater versions`: the versions of an encoder, and which one is read and written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TypeVar

import click

from streams.cassandra import Session
from streams.commands.tables import console, plain_table
from streams.representation_store import RepresentationStore
from streams.representations import EncoderVersion
from streams.settings import load_settings

T = TypeVar("T")
_ENCODER = click.option(
    "--encoder", default="user_encoder", show_default=True, help="Whose versions."
)


@click.group(
    invoke_without_command=True,
    epilog="Examples:\n\n\b\n  headwater versions\n  headwater versions activate 2",
)
@_ENCODER
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@click.pass_context
def versions(ctx: click.Context, encoder: str, as_json: bool) -> None:
    """List the versions of an encoder, the newest first."""
    if ctx.invoked_subcommand is not None:
        return
    found = asyncio.run(_with_store(lambda store: store.read_versions(encoder)))
    if as_json:
        for version in found:
            click.echo(json.dumps(_as_json(version)))
        return
    table = plain_table("encoder", "version", "state", "created", "stats")
    for version in found:
        created = datetime.fromtimestamp(version.created_at / 1000, UTC)
        style = "bold green" if version.state == "active" else None
        row = (version.encoder, version.version, version.state, f"{created:%Y-%m-%d %H:%M:%SZ}")
        table.add_row(*row, json.dumps(version.stats), style=style)
    console().print(table)
    if not found:
        click.echo(f"encoder {encoder} has no version; see headwater export --help", err=True)


@versions.command(epilog="Example:\n\n\b\n  headwater versions activate 2")
@click.argument("version")
@_ENCODER
def activate(version: str, encoder: str) -> None:
    """Make VERSION the one that workers write and readers read, within seconds."""
    asyncio.run(_with_store(lambda store: store.activate(encoder, version)))
    click.echo(f"{encoder} version {version} is active")


async def _with_store(use: Callable[[RepresentationStore], Awaitable[T]]) -> T:
    session = Session(load_settings().cassandra)
    try:
        return await use(RepresentationStore(session))
    finally:
        await session.close()


def _as_json(version: EncoderVersion) -> dict[str, object]:
    return {
        "encoder": version.encoder,
        "version": version.version,
        "state": version.state,
        "created_at": version.created_at,
        "stats": version.stats,
    }
