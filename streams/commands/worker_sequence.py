"""`headwater worker sequence`."""

from __future__ import annotations

import click

from streams.settings import load_settings
from streams.workers.sequence import run_sequence_worker


@click.command(
    epilog="Example:\n\n\b\n"
    "  HEADWATER_SEQUENCE_WORKER__METRICS_PORT=9101 headwater worker sequence"
)
def sequence() -> int:
    """Fold events into sequences, ask for refreshes.

    One worker takes a share of the partitions; start more of them to scale out.
    """
    code: int = run_sequence_worker(load_settings())
    return code
