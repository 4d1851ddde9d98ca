"""What one producer sent, counted: by outcome, how long delivery took, how long senders waited.

`EventProducer` counts here. Who wants it shown exposes it with
`streams.workers.exposing.expose_sends`, as `headwater produce` does.
"""

from __future__ import annotations

import threading
from collections import deque

from streams import metrics as catalogue
from streams.metrics import Metrics

# Delays are put into their buckets so many at once, since a look-up each would cost more.
_AT_ONCE = 1_000


class SendCounts:
    """The counts of one producer: sent = delivered + failed + in flight."""

    def __init__(self) -> None:
        self.sent = 0
        self.delivered = 0
        self.failed = 0
        self.waited_seconds = 0.0
        self._delays: deque[float] = deque()
        self._metrics = Metrics()
        self._lock = threading.Lock()

    @property
    def in_flight(self) -> int:
        """Records without an answer yet."""
        return self.sent - self.delivered - self.failed

    def done(self, *, delivered: bool, seconds: float | None) -> None:
        """The brokers answered for one record, so long after it was sent."""
        if not delivered:
            self.failed += 1
            return
        self.delivered += 1
        if seconds is not None:
            self._delays.append(seconds)
            if len(self._delays) >= _AT_ONCE:
                with self._lock:
                    self._observe()

    def exposition(self, now: float) -> bytes:
        """Prometheus' text format; `now` in seconds."""
        with self._lock:
            self._observe()
            metrics = self._metrics
            for metric, labels, total in (
                (catalogue.RECORDS_SENT, (), self.sent),
                (catalogue.RECORDS_ANSWERED, ("delivered",), self.delivered),
                (catalogue.RECORDS_ANSWERED, ("failed",), self.failed),
                (catalogue.SENDER_WAITING_SECONDS, (), self.waited_seconds),
            ):
                metrics.add(metric, total - metrics.value(metric, *labels), *labels)
            metrics.set(catalogue.RECORDS_IN_FLIGHT, self.in_flight)
            metrics.set(catalogue.PROCESS_TIME, now)
            return metrics.exposition()

    def _observe(self) -> None:
        delays = [self._delays.popleft() for _ in range(len(self._delays))]
        self._metrics.observe(catalogue.DELIVERY_SECONDS, delays)
