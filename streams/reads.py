"""What this process reads, counted: by view and outcome, and how much of what is stored is read.

Feast's store and `OnlineFeatures` count here. Who wants it shown exposes the process with
`streams.workers.reading.expose_reads`, as `headwater serve` does.

How many representations are never read is told from a fixed sample of users, chosen by their ids'
hash: the encoder worker counts what it stores for them, readers what they read for the first time.
With several reading processes a representation may count as first read in each of them, so that the
share that was never read is then a lower bound.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

from streams import metrics as catalogue
from streams.chunks import stable_hash
from streams.metrics import Metrics

_ONE_IN = 16
_MAX_REMEMBERED = 50_000


def is_sampled(user_id: str) -> bool:
    """Whether a user is in the fixed sample, one in 16."""
    return stable_hash(user_id) % _ONE_IN == 0


class ReadCounts:
    """The counts of one process; any thread."""

    def __init__(self) -> None:
        self._metrics = Metrics()
        self._lock = threading.Lock()
        self._seen: OrderedDict[tuple[str, str, str], int] = OrderedDict()

    def outcomes(self, view: str, counts: Mapping[str, int]) -> None:
        """Values of a view were read, so many with each outcome."""
        with self._lock:
            for outcome, count in counts.items():
                if count:
                    self._metrics.add(catalogue.READS, count, view, outcome)

    def representations(self, encoder: str, version: str, found: Iterable[tuple[str, int]]) -> None:
        """Representations were found: (user, log position) of each."""
        with self._lock:
            number = 0
            for user_id, position in found:
                number += 1
                if is_sampled(user_id) and self._is_new((encoder, version, user_id), position):
                    self._metrics.add(catalogue.SAMPLED_FIRST_READS, 1, encoder, version)
            if number:
                self._metrics.add(catalogue.REPRESENTATION_READS, number, encoder, version)

    def exposition(self, now: float) -> bytes:
        """Prometheus' text format; `now` in seconds."""
        with self._lock:
            self._metrics.set(catalogue.PROCESS_TIME, now)
            return self._metrics.exposition()

    def _is_new(self, key: tuple[str, str, str], position: int) -> bool:
        if self._seen.get(key) == position:
            self._seen.move_to_end(key)
            return False
        self._seen[key] = position
        self._seen.move_to_end(key)
        if len(self._seen) > _MAX_REMEMBERED:
            self._seen.popitem(last=False)
        return True


_counts: dict[int, ReadCounts] = {}
_when_serving: list[Callable[[], None]] = []


def process_reads() -> ReadCounts:
    """This process's counts; a forked child begins with its own."""
    found = _counts.get(os.getpid())
    if found is None:
        found = _counts.setdefault(os.getpid(), ReadCounts())
    return found


def when_serving(action: Callable[[], None]) -> None:
    """Have `action` run in the process that serves features, which a server may have forked."""
    _when_serving.append(action)


def serving() -> None:
    """Called by Feast's store when a feature server starts in this process."""
    for action in _when_serving:
        action()
