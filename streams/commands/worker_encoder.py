"""`headwater worker encoder`."""

from __future__ import annotations

import click

from streams.settings import load_settings
from streams.workers.encoder import run_encoder_worker


@click.command(
    epilog="Example:\n\n\b\n  HEADWATER_ENCODER_WORKER__METRICS_PORT=9102 headwater worker encoder"
)
def encoder() -> int:
    """Compute the representations of refreshed users, with the active version."""
    code: int = run_encoder_worker(load_settings())
    return code
