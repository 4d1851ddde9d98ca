"""`headwater rebuild`: fill a new or changed view from the log."""

from __future__ import annotations

import time

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from streams import rebuild as rebuilding
from streams.errors import ConfigError
from streams.producer import EventProducer
from streams.settings import load_settings
from streams.views import declared_views, feature_store


@click.command(epilog="Example:\n\n\b\n  headwater apply && headwater rebuild --view likes")
@click.option("--view", "name", required=True, help="The sequence view to fill.")
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), default=2000.0, show_default=True,
    help="Records per second at most, so that live traffic keeps its freshness.",
)  # fmt: skip
def rebuild(name: str, rate: float) -> None:
    """Fill a view with what the log still has: after it was added, lengthened or widened.

    Sends the view's records through the workers again, beside the live ones. Nothing newer is
    overwritten, nobody who was forgotten comes back, and repeating it is harmless.
    """
    settings = load_settings()
    views = declared_views(feature_store(settings)).sequences
    if name not in views:
        known = ", ".join(views) or "none"
        raise ConfigError(f"there is no sequence view {name!r}; there are: {known}")
    state = rebuilding.Progress()
    columns = (TextColumn("reading the log"), BarColumn(), MofNCompleteColumn())
    started = time.monotonic()
    with (
        EventProducer(settings) as producer,
        Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar,
    ):
        task = bar.add_task("rebuild", total=None)
        bounds = rebuilding.log_bounds(settings)
        for copy in rebuilding.copies(settings, views[name], bounds, state):
            producer.send_raw_blocking(copy.key, copy.value, copy.headers)
            time.sleep(max(0.0, started + state.copied / rate - time.monotonic()))
            bar.update(task, total=state.total, completed=state.read)
        bar.update(task, total=max(1, state.total), completed=max(1, state.total))
    click.echo(f"{name}: {state.copied:,} of {state.read:,} records sent to the workers again")
