"""What a worker's process of a test runs; imported once, by the server that forks them."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from streams.settings import load_settings
from streams.workers.encoder import run_encoder_worker
from streams.workers.sequence import run_sequence_worker
from tests.faults.refusing import run_refusing_worker

ROOT = Path(__file__).resolve().parent.parent
_RUN = {
    "sequence": run_sequence_worker,
    "encoder": run_encoder_worker,
    "refusing": run_refusing_worker,
}


def run_worker(role: str, environ: dict[str, str], log: str) -> None:
    """Run one worker with these variables; its output goes to the file `log`."""
    os.environ.update(environ)
    os.chdir(ROOT)
    with open(log, "wb", buffering=0) as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    sys.exit(_RUN[role](load_settings()))
