"""`headwater config`: the settings in force and where each comes from."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Table

from streams.settings import load_settings_with_origins


@click.command(epilog="Example:\n\n\b\n  HEADWATER_KAFKA__PARTITIONS=16 headwater config")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per key.")
@click.option("--changed", is_flag=True, help="Only what differs from the defaults.")
def config(as_json: bool, changed: bool) -> None:
    """Print the settings in force and where each value came from."""
    _, origins = load_settings_with_origins()
    shown = [origin for origin in origins if not changed or origin.source != "default"]
    if as_json:
        for origin in shown:
            click.echo(
                json.dumps({"key": origin.key, "value": origin.value, "from": origin.source})
            )
        return
    table = Table("setting", "value", "from", box=None)
    for origin in shown:
        style = None if origin.source == "default" else "bold"
        table.add_row(origin.key, str(origin.value), origin.source, style=style)
    Console().print(table)
