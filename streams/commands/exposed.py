"""Commands that show themselves to the monitor and to Prometheus."""

from __future__ import annotations

from collections.abc import Callable

import click

from streams.errors import ConfigError


def exposed(expose: Callable[[], str]) -> None:
    """Expose this process; it goes on without that, too."""
    try:
        expose()
    except ConfigError as error:
        click.echo(f"this process isn't shown to the monitor: {error}", err=True)
