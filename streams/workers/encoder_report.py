"""What an encoder worker counts, and how long its stages took."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence
from typing import Any

import numpy as np

from streams import metrics as catalogue
from streams.freshness import is_canary
from streams.metrics import Metrics
from streams.reads import is_sampled
from streams.workers.refresh import Refresh

OUTCOMES = ("encoded", "current", "empty", "rejected", "deleted")


class EncoderReport:
    """Counts requests once, and users once per encoder."""

    def __init__(self, metrics: Metrics, catch_up_seconds: float) -> None:
        self._metrics = metrics
        self._catch_up_seconds = catch_up_seconds
        self._requests: Tally[str] = Tally()
        self._users: Tally[str] = Tally()

    def state(self) -> dict[str, Any]:
        """For /state: `consumed` = coalesced + dead_lettered + users; users by outcome."""
        names = ("consumed", "coalesced", "dead_lettered", "users")
        return {
            "counters": {name: self._requests[name] for name in names}
            | {name: self._users[name] for name in OUTCOMES}
        }

    def batch_done(self, records: int, users: int, reasons: Sequence[str]) -> None:
        """A batch of requests is acknowledged."""
        coalesced = records - users - len(reasons)
        self._requests.update(
            consumed=records, users=users, coalesced=coalesced, dead_lettered=len(reasons)
        )
        for reason, count in Tally(reasons).items():
            self._metrics.add(catalogue.DEAD_LETTERS, count, reason)
        self._metrics.add(catalogue.ENCODER_USERS, coalesced, "coalesced")
        self._metrics.add(catalogue.BATCHES, 1, "encoder")

    def users_done(self, outcome: str, count: int) -> None:
        """What became of users, one of `OUTCOMES`."""
        if count:
            self._users[outcome] += count
            self._metrics.add(catalogue.ENCODER_USERS, count, outcome)

    def request_done(self, encoder: str, version: str, num_events: int, seconds: float) -> None:
        """The encoder answered one request."""
        self._metrics.add(catalogue.ENCODER_SECONDS, seconds, encoder, version)
        self._metrics.add(catalogue.ENCODER_REQUESTS, 1, "answered")
        self._metrics.add(catalogue.ENCODER_TOKENS, num_events, encoder)
        self._metrics.observe_times(catalogue.ENCODER_REQUEST_SECONDS, seconds, 1, encoder)

    def stored(
        self,
        encoder: str,
        version: str,
        written: Sequence[tuple[Refresh, int]],
        received_at: float,
        encoded_at: float,
        stored_at: float,
    ) -> None:
        """Representations were stored: (refresh, bytes) of each; the worker's clock, seconds."""
        self._metrics.add(catalogue.ROWS_WRITTEN, len(written), "representation")
        size = sum(length for _, length in written)
        self._metrics.add(catalogue.BYTES_WRITTEN, size, "representation")
        self._metrics.add(catalogue.REPRESENTATIONS_WRITTEN, len(written), encoder, version)
        self._metrics.add(catalogue.REPRESENTATION_BYTES, size, encoder, version)
        users = [refresh.user_id for refresh, _ in written]
        sampled = sum(is_sampled(user_id) and not is_canary(user_id) for user_id in users)
        self._metrics.add(catalogue.SAMPLED_WRITES, sampled, encoder, version)
        live = [refresh for refresh, _ in written if refresh.is_live]
        requested = _seconds([refresh.requested_at for refresh in live])
        ingested = _seconds([refresh.ingested_at for refresh in live])
        happened = _seconds([refresh.event_time for refresh in live])
        late = received_at - ingested > self._catch_up_seconds
        observe, stage = self._metrics.observe, catalogue.STAGE_SECONDS
        by_version = catalogue.REPRESENTATION_STAGE_SECONDS
        since = {"ingested_at": stored_at - ingested, "event_time": stored_at - happened}
        for traffic, chosen in (("live", ~late), ("catch_up", late)):
            count = int(chosen.sum())
            waited, wrote = encoded_at - requested[chosen], np.full(count, stored_at - encoded_at)
            for name, delays in (("requested_to_encoded", waited), ("encoded_to_stored", wrote)):
                observe(stage, delays, name, traffic)
                observe(by_version, delays, encoder, version, name, traffic)
            for name, delays in since.items():
                observe(
                    catalogue.FRESHNESS_SECONDS, delays[chosen], "representation", name, traffic
                )
        for name, delays in since.items():
            observe(
                catalogue.REPRESENTATION_FRESHNESS_SECONDS, delays[~late], encoder, version, name
            )


def _seconds(milliseconds: list[int]) -> np.ndarray[Any, Any]:
    return np.array(milliseconds, np.float64) / 1000
