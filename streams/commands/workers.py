"""`headwater worker`: run one worker process; start more of them to scale out."""

from __future__ import annotations

import click

from streams.commands.lazy import LazyGroup

_WORKERS = {
    "sequence": (
        "streams.commands.worker_sequence:sequence",
        "Fold events into sequences, ask for refreshes.",
    ),
    "encoder": (
        "streams.commands.worker_encoder:encoder",
        "Compute the representations of refreshed users.",
    ),
}


@click.group(
    cls=LazyGroup,
    lazy=_WORKERS,
    epilog="Example:\n\n\b\n  headwater worker sequence & headwater worker encoder &",
)
def worker() -> None:
    """Run a worker. SIGTERM or Ctrl-C ends it: drained and committed, exit code 0."""
