"""`headwater demo`: the whole way on real data."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click

from infra.local.layout import Home


@click.command(epilog="Examples:\n\n\b\n  headwater demo\n  headwater demo --keep --pace 1000")
@click.option("--keep", is_flag=True, help="Leave the stack and the workers running at the end.")
@click.option(
    "--pace", type=click.FloatRange(min=1, max=5000), default=500.0, show_default=True,
    help="Events per second of the live stream.",
)  # fmt: skip
@click.option(
    "--train-seconds", type=click.IntRange(min=5, max=90), default=60, show_default=True,
    help="Time for training the encoder.",
)  # fmt: skip
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), default=Path("build/demo.json"),
    show_default=True, help="Where the report goes.",
)  # fmt: skip
@click.option(
    "--home", type=click.Path(path_type=Path),
    help="Its folder (default: HEADWATER_HOME, else .headwater).",
)  # fmt: skip
def demo(keep: bool, pace: float, train_seconds: int, output: Path, home: Path | None) -> None:
    """Show the whole way of an event on real data, from an empty machine to a report.

    Starts the local stack in a home of its own, trains an encoder on the earlier part of
    MovieLens-100K, streams the later part with duplicates, disorder and broken records, reads the
    features back in three ways, and says what fresh features are worth.
    """
    from infra.demo.run import Demo  # noqa: PLC0415 - much to import, for this command alone

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda code, _: sys.exit(128 + code))
    place = home or Home.from_environment().root
    Demo(place, output, pace=pace, train_seconds=train_seconds, keep=keep).run()
