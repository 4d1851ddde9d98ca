"""`headwater worker`: run one worker process; start more of them to scale out."""

from __future__ import annotations

import click

from streams.settings import load_settings
from streams.workers.encoder import run_encoder_worker
from streams.workers.sequence import run_sequence_worker


@click.group(epilog="Example:\n\n\b\n  headwater worker sequence & headwater worker encoder &")
def worker() -> None:
    """Run a worker. It ends by SIGTERM or Ctrl-C: drained and committed, exit code 0."""


@worker.command(epilog="Example:\n\n\b\n  HEADWATER_SEQUENCE_WORKER__METRICS_PORT=9101 "
    "headwater worker sequence")  # fmt: skip
def sequence() -> int:
    """Fold events into sequences, ask for refreshes."""
    return run_sequence_worker(load_settings())


@worker.command(epilog="Example:\n\n\b\n  HEADWATER_ENCODER_WORKER__METRICS_PORT=9102 "
    "headwater worker encoder")  # fmt: skip
def encoder() -> int:
    """Compute representations for refreshed users."""
    return run_encoder_worker(load_settings())
