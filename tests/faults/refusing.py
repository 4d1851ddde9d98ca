"""A sequence worker whose store refuses writes while a file says so.

A full disk or lost rights can't be had of the test's Cassandra, which runs without quotas and
authentication; so the refusal is put in where the worker meets its store, with the error that
`streams.cassandra` makes of the node's answer. Everything else is the real worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streams.errors import StoreRejected
from streams.sequence_store import SequenceStore
from streams.sequences import UserFlush
from streams.settings import Settings
from streams.workers import sequence

SENTENCES = {
    "disk_full": "No space left on device",
    "read_only": "User worker has no MODIFY permission",
}
_FILE = "refuse"


@contextmanager
def refuse(home: Path, kind: str) -> Iterator[None]:
    """Writes are refused inside of the block."""
    file = home / _FILE
    file.write_text(SENTENCES[kind])
    try:
        yield
    finally:
        file.unlink()


def run_refusing_worker(settings: Settings) -> int:
    """A sequence worker's process; see the top."""
    file = settings.home_path / _FILE

    class RefusingStore(SequenceStore):
        async def write(self, flush: UserFlush) -> None:
            if file.exists():
                raise StoreRejected(f"Cassandra refused: {file.read_text()}")
            await super().write(flush)

    vars(sequence)["SequenceStore"] = RefusingStore
    return sequence.run_sequence_worker(settings)
