"""What a sequence worker counts: every record once (R4), and how long each stage took."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence
from typing import Any

import numpy as np

from streams import metrics as catalogue
from streams.metrics import Metrics
from streams.representations import RefreshRequest
from streams.workers.intake import Intake
from streams.workers.transport import RecordBatch
from streams.workers.users import Applied, UserWork

OUTCOMES = ("applied", "duplicate", "too_old", "forgotten", "dead_lettered", "filtered")


class PartitionCounts:
    """Counters of one partition since this process started. They always balance."""

    __slots__ = ("consumed", "forwarded", "outcomes")

    def __init__(self) -> None:
        self.consumed = 0
        self.forwarded = 0
        self.outcomes: Tally[str] = Tally()

    def as_dict(self) -> dict[str, int]:
        """For /state."""
        counts = {name: self.outcomes[name] for name in OUTCOMES}
        return {"consumed": self.consumed, **counts, "forwarded": self.forwarded}


class SequenceReport:
    """Counts a batch when it is done, in one step: the sums hold at any time."""

    def __init__(self, metrics: Metrics, catch_up_seconds: float) -> None:
        self._metrics = metrics
        self._catch_up_seconds = catch_up_seconds
        self._partitions: dict[int, PartitionCounts] = {}
        self._reasons: Tally[str] = Tally()
        self._users_flushed = 0
        self._rows_written = 0

    def state(self) -> dict[str, Any]:
        """For /state: totals, per partition, dead letters by reason."""
        each = {str(number): counts.as_dict() for number, counts in self._partitions.items()}
        total: Tally[str] = Tally(dict.fromkeys(("consumed", *OUTCOMES, "forwarded"), 0))
        for counts in each.values():
            total.update(counts)
        return {
            "counters": dict(total),
            "counters_by_partition": each,
            "dead_letters": dict(self._reasons),
            "users_flushed": self._users_flushed,
            "rows_written": self._rows_written,
        }

    def batch_done(
        self,
        batch: RecordBatch,
        intake: Intake,
        work: Sequence[UserWork],
        applied: Applied,
        requests: Sequence[RefreshRequest],
        received_at: float,
        folded_at: float,
        stored_at: float,
        requested_at: float,
    ) -> None:
        """A batch's records are stored and delivered; times are the worker's clock, seconds."""
        self._count_records(batch, intake, work)
        self._count_writes(work, requests)
        self._measure(applied, bool(requests), received_at, folded_at, stored_at, requested_at)

    def _count_records(self, batch: RecordBatch, intake: Intake, work: Sequence[UserWork]) -> None:
        outcomes: Tally[str] = Tally()
        outcomes["applied"] = sum(user.num_applied for user in work)
        for user in work:
            if user.others:
                outcomes.update(user.others)
        outcomes["dead_lettered"] = len(intake.refused)
        outcomes["filtered"] += len(intake.foreign)
        counts = self._partitions.setdefault(batch.partition, PartitionCounts())
        counts.consumed += len(batch.records)
        counts.forwarded += len(intake.foreign)
        counts.outcomes.update(outcomes)
        add, partition = self._metrics.add, str(batch.partition)
        add(catalogue.RECORDS_CONSUMED, len(batch.records), partition)
        for outcome, count in outcomes.items():
            if count:
                add(catalogue.RECORDS, count, partition, str(outcome))
        if intake.foreign:
            add(catalogue.FORWARDED, len(intake.foreign), partition)
        reasons = Tally(bad.reason for bad in intake.refused)
        self._reasons.update(reasons)
        for reason, count in reasons.items():
            add(catalogue.DEAD_LETTERS, count, reason)
        add(catalogue.BATCHES, 1, "sequence")

    def _count_writes(self, work: Sequence[UserWork], requests: Sequence[RefreshRequest]) -> None:
        flushes = [user.flush for user in work if user.flush is not None]
        rows = sum(len(flush.writes) + (flush.mark is not None) for flush in flushes)
        size = sum(len(w.value) for f in flushes for w in f.writes if w.value is not None)
        self._users_flushed += len(flushes)
        self._rows_written += rows
        add = self._metrics.add
        add(catalogue.USERS_FLUSHED, len(flushes))
        add(catalogue.ROWS_WRITTEN, rows, "user_sequence")
        add(catalogue.BYTES_WRITTEN, size, "user_sequence")
        for trigger, count in Tally(request.trigger for request in requests).items():
            add(catalogue.REFRESH_REQUESTS, count, trigger)

    def _measure(
        self,
        applied: Applied,
        asked: bool,
        received_at: float,
        folded_at: float,
        stored_at: float,
        requested_at: float,
    ) -> None:
        happened, ingested = _seconds(applied.event_times), _seconds(applied.ingested_at)
        late = received_at - ingested > self._catch_up_seconds
        for traffic, chosen in (("live", ~late), ("catch_up", late)):
            count = int(np.count_nonzero(chosen))
            if not count:
                continue
            at, since = ingested, happened
            if count < late.size:
                at, since = ingested[chosen], happened[chosen]
            observe, times = self._metrics.observe, self._metrics.observe_times
            stage, fresh = catalogue.STAGE_SECONDS, catalogue.FRESHNESS_SECONDS
            observe(stage, at - since, "produced_to_broker", traffic)
            observe(stage, folded_at - at, "broker_to_folded", traffic)
            times(stage, stored_at - folded_at, count, "folded_to_stored", traffic)
            observe(fresh, stored_at - at, "sequence", "ingested_at", traffic)
            observe(fresh, stored_at - since, "sequence", "event_time", traffic)
            if asked:
                times(stage, requested_at - stored_at, count, "stored_to_requested", traffic)


def _seconds(milliseconds: list[int]) -> np.ndarray[Any, Any]:
    return np.array(milliseconds, np.float64) / 1000
