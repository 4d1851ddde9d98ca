"""`headwater monitor`: the process that watches everything."""

from __future__ import annotations

import asyncio
import logging
import time

import click
import msgspec

from streams.metrics import Metrics
from streams.monitor.app import make_app
from streams.monitor.page.feed import Example
from streams.monitor.page.mount import add_page
from streams.monitor.service import check_address, serve, serve_app
from streams.settings import Settings, load_settings

_MONITOR_EXAMPLES = """Examples:

\b
  headwater monitor
  headwater monitor --example
  HEADWATER_MONITOR__HOST=0.0.0.0 HEADWATER_MONITOR__TOKEN=$(cat token) headwater monitor
"""


@click.command(epilog=_MONITOR_EXAMPLES)
@click.option("--host", help="Where to listen; other than loopback needs monitor.token.")
@click.option("--port", type=click.IntRange(0, 65535), help="0 takes a free one.")
@click.option("--example", is_flag=True, help="Watch nothing; show the page with made-up values.")
def monitor(host: str | None, port: int | None, example: bool) -> None:
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
    if example:
        _show_example(settings)
        return
    asyncio.run(serve(settings, add_page, lambda url: click.echo(f"monitor at {url}")))


def _show_example(settings: Settings) -> None:
    check_address(settings)
    source = Example(time.time)
    app = make_app(source, Metrics(), lambda: "")
    add_page(app, source, note="An example: every value on this page is made up.")
    asyncio.run(serve_app(settings, app, None, lambda url: click.echo(f"example at {url}")))
