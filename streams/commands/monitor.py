"""`headwater monitor`: the process that watches everything."""

from __future__ import annotations

import asyncio
import logging

import click
import msgspec

from streams.monitor.page.mount import add_page
from streams.monitor.service import serve
from streams.settings import load_settings

_MONITOR_EXAMPLES = """Examples:

\b
  headwater monitor
  HEADWATER_MONITOR__HOST=0.0.0.0 HEADWATER_MONITOR__TOKEN=$(cat token) headwater monitor
"""


@click.command(epilog=_MONITOR_EXAMPLES)
@click.option("--host", help="Where to listen; other than loopback needs monitor.token.")
@click.option("--port", type=click.IntRange(0, 65535), help="0 takes a free one.")
def monitor(host: str | None, port: int | None) -> None:
    """Watch everything: web page, canaries, /metrics for Prometheus, /api/snapshot for scripts.

    It reads workers, Kafka, Cassandra and Triton, and changes nothing but the rows of its own
    canary users (setting monitor.canary_users, 0 sends none).
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    settings = load_settings()
    changes = {"host": host, "port": port}
    own = msgspec.structs.replace(
        settings.monitor, **{key: value for key, value in changes.items() if value is not None}
    )
    settings = msgspec.structs.replace(settings, monitor=own)
    asyncio.run(serve(settings, add_page, lambda url: click.echo(f"monitor at {url}")))
