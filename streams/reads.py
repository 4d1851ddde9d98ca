"""What this process reads, counted: by view and outcome, and how much of what is stored is read.

Feast's store and `OnlineFeatures` count here. Who wants it shown exposes the process with
`streams.workers.exposing.expose_reads`, as `headwater serve` does.

How many representations are never read is told from a fixed sample of users, chosen by their ids'
hash: the encoder worker counts what it stores for them, readers what they read for the first time.
With several reading processes a representation may count as first read in each of them, so that the
share that was never read is then a lower bound.

How long a representation waits for its first reader is timed for every one that was encoded since
this process began to read: of older ones nobody knows whether another process read them before.
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
_Key = tuple[str, str, str]  # encoder, version, user


def is_sampled(user_id: str) -> bool:
    """Whether a user is in the fixed sample, one in 16."""
    return stable_hash(user_id) % _ONE_IN == 0


class FirstReads:
    """Tells a representation's first read from later ones, in bounded memory.

    It never takes a later read for a first one: what was encoded no later than one that had to be
    forgotten isn't told any more.
    """

    def __init__(self, since: int, max_remembered: int = _MAX_REMEMBERED) -> None:
        self._max_remembered = max_remembered
        self._read: OrderedDict[_Key, int] = OrderedDict()
        # All that was read and encoded after this (ms) is remembered.
        self._since = since

    def is_first(self, key: _Key, encoded_at: int) -> bool:
        """A representation is read, which was encoded at so many ms."""
        if encoded_at <= self._since or self._read.get(key) == encoded_at:
            return False
        self._read[key] = encoded_at
        self._read.move_to_end(key)
        if len(self._read) > self._max_remembered:
            self._since = max(self._since, self._read.popitem(last=False)[1])
        return True


class ReadCounts:
    """The counts of one process; any thread."""

    def __init__(self) -> None:
        self._metrics = Metrics()
        self._lock = threading.Lock()
        self._seen: OrderedDict[_Key, int] = OrderedDict()
        self._first_reads: FirstReads | None = None

    def outcomes(self, view: str, counts: Mapping[str, int]) -> None:
        """Values of a view were read, so many with each outcome."""
        with self._lock:
            for outcome, count in counts.items():
                if count:
                    self._metrics.add(catalogue.READS, count, view, outcome)

    def representations(
        self, encoder: str, version: str, found: Iterable[tuple[str, int, int]], read_at: float
    ) -> None:
        """Representations were found: (user, log position, encoded_at in ms) of each.

        `read_at`: when they were read, seconds.
        """
        with self._lock:
            if self._first_reads is None:
                self._first_reads = FirstReads(int(read_at * 1000))
            number, waited = 0, []
            for user_id, position, encoded_at in found:
                number += 1
                key = (encoder, version, user_id)
                if is_sampled(user_id) and self._is_new(key, position):
                    self._metrics.add(catalogue.SAMPLED_FIRST_READS, 1, encoder, version)
                if self._first_reads.is_first(key, encoded_at):
                    waited.append(read_at - encoded_at / 1000)
            if number:
                self._metrics.add(catalogue.REPRESENTATION_READS, number, encoder, version)
            self._metrics.observe(catalogue.FIRST_READ_SECONDS, waited, encoder, version)

    def exposition(self, now: float) -> bytes:
        """Prometheus' text format; `now` in seconds."""
        with self._lock:
            self._metrics.set(catalogue.PROCESS_TIME, now)
            return self._metrics.exposition()

    def _is_new(self, key: _Key, position: int) -> bool:
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
