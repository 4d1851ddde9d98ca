"""Metrics: every metric of the platform, declared once, and the values of one process.

The constants below are the whole catalogue: name, type, unit, labels, meaning. Labels are bounded
(never a user, an item or an event). Values are kept here rather than in prometheus-client's own
objects since a batch's delays are counted in one go; it adds what it knows of the process.
Not thread-safe: a process counts and exposes on its one event loop. Reads no clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metric(msgspec.Struct, frozen=True):
    """One row of the catalogue; `name` is the exposed one, without a counter's `_total`."""

    name: str
    kind: str  # counter | gauge | histogram
    unit: str
    labels: tuple[str, ...]
    meaning: str


class Counter(Metric, frozen=True):
    """Only grows."""


class Gauge(Metric, frozen=True):
    """Goes up and down."""


class Histogram(Metric, frozen=True):
    """Counts per bucket, see `BOUNDS`."""


CATALOGUE: list[Metric] = []


def _counter(name: str, unit: str, labels: tuple[str, ...], meaning: str) -> Counter:
    metric = Counter(name, "counter", unit, labels, meaning)
    CATALOGUE.append(metric)
    return metric


def _gauge(name: str, unit: str, labels: tuple[str, ...], meaning: str) -> Gauge:
    metric = Gauge(name, "gauge", unit, labels, meaning)
    CATALOGUE.append(metric)
    return metric


def _histogram(name: str, labels: tuple[str, ...], meaning: str) -> Histogram:
    metric = Histogram(name, "histogram", "seconds", labels, meaning)
    CATALOGUE.append(metric)
    return metric


# 1 ms to 70 min in steps of 19 %, so that a quantile is read off to a tenth. The bound 0 counts
# negative delays, which are clock skew between hosts: shown, never clipped.
BOUNDS = np.concatenate(([0.0], 0.001 * 2.0 ** (np.arange(89) / 4)))
_BOUNDS: list[float] = BOUNDS.tolist()

# A stage's delay ends where the next one's begins; values of the label `stage`.
STAGES = (
    "produced_to_broker",
    "broker_to_folded",
    "folded_to_stored",
    "stored_to_requested",
    "requested_to_encoded",
    "encoded_to_stored",
    "stored_to_read",  # by the monitor's canaries; real readers: see FIRST_READ_SECONDS
)

RECORDS_CONSUMED = _counter(
    "headwater_records_consumed", "records", ("partition",), "Records taken from the events topic"
)
RECORDS = _counter(
    "headwater_records",
    "records",
    ("partition", "outcome"),
    "Consumed records by outcome (applied, duplicate, too_old, forgotten, dead_lettered, "
    "filtered); the outcomes add up to headwater_records_consumed",
)
FORWARDED = _counter(
    "headwater_records_forwarded",
    "records",
    ("partition",),
    "Filtered records that were sent on to the home partition of their key",
)
DEAD_LETTERS = _counter(
    "headwater_dead_letters", "records", ("reason",), "Records sent to the dead letters"
)
ROWS_WRITTEN = _counter(
    "headwater_rows_written", "rows", ("table",), "Rows written to the store, deletions included"
)
BYTES_WRITTEN = _counter(
    "headwater_bytes_written", "bytes", ("table",), "Bytes of values written to the store"
)
USERS_FLUSHED = _counter(
    "headwater_users_flushed", "users", (), "Users whose sequences were written, per batch"
)
USERS_LOADED = _counter(
    "headwater_users_loaded", "users", (), "Users read from the store since they weren't cached"
)
CHUNKS_LOADED = _counter(
    "headwater_chunks_loaded", "chunks", (), "Older chunks read from the store for late events"
)
CACHED_USERS = _gauge("headwater_cached_users", "users", (), "Users held in memory, packed or not")
CACHED_EVENTS = _gauge(
    "headwater_cached_events", "events", (), "Events held in memory, those of packed users aside"
)
PACKED_USERS = _gauge(
    "headwater_packed_users", "users", (), "Users held in memory as their stored rows"
)
PACKED_BYTES = _gauge("headwater_packed_bytes", "bytes", (), "Memory of the packed users")
BATCHES = _counter(
    "headwater_batches", "batches", ("role",), "Partition batches that were acknowledged"
)
RETRIES = _counter(
    "headwater_retries", "attempts", ("error",), "Calls repeated after an error, by its class"
)
REFRESH_REQUESTS = _counter(
    "headwater_refresh_requests", "requests", ("trigger",), "Refresh requests delivered"
)
POSITION_PROCESSED = _gauge(
    "headwater_processed_offset", "offset", ("role", "partition"), "Next offset to process"
)
POSITION_COMMITTED = _gauge(
    "headwater_committed_offset", "offset", ("role", "partition"), "Committed offset"
)
POSITION_END = _gauge(
    "headwater_end_offset", "offset", ("role", "partition"), "End of the partition, as last seen"
)
LAG = _gauge(
    "headwater_lag_records",
    "records",
    ("role", "partition"),
    "Records between the partition's end and the processed offset",
)
OFFSETS_LOST = _counter(
    "headwater_offsets_lost",
    "records",
    ("role",),
    "Records that the broker deleted before this worker's group read them",
)
COMMITS = _counter(
    "headwater_commits", "commits", ("role", "result"), "Offset commits (committed or failed)"
)
READY = _gauge("headwater_worker_ready", "bool", ("role",), "1 while the worker takes records")
ASSIGNED = _gauge("headwater_assigned_partitions", "partitions", ("role",), "Partitions held")
STAGE_SECONDS = _histogram(
    "headwater_stage_seconds",
    ("stage", "traffic"),
    "Delay of one stage per event; traffic is live, or catch_up for records that were older than "
    "the catch-up threshold when they were read",
)
FRESHNESS_SECONDS = _histogram(
    "headwater_freshness_seconds",
    ("feature", "since", "traffic"),
    "From the event to the stored sequence or representation; since is ingested_at (platform "
    "delay) or event_time (the user's experience)",
)
REPRESENTATION_FRESHNESS_SECONDS = _histogram(
    "headwater_representation_freshness_seconds",
    ("encoder", "version", "since"),
    "From the event to the stored representation, by encoder version",
)
ENCODER_USERS = _counter(
    "headwater_encoder_users",
    "users",
    ("outcome",),
    "Users of refresh requests by outcome: encoded, coalesced (another request of the same batch "
    "covers it), current (what is stored reflects it), empty, rejected, deleted",
)
ENCODER_REQUESTS = _counter(
    "headwater_encoder_requests", "requests", ("result",), "Requests to the encoder"
)
ENCODER_REQUEST_SECONDS = _histogram(
    "headwater_encoder_request_seconds", ("encoder",), "Duration of one request to the encoder"
)
ENCODER_TOKENS = _counter(
    "headwater_encoder_tokens", "events", ("encoder",), "Events sent to the encoder"
)

# -- producers ---------------------------------------------------------------------------------

RECORDS_SENT = _counter(
    "headwater_records_sent",
    "records",
    (),
    "Records that the program gave to this producer = answered + in flight",
)
RECORDS_ANSWERED = _counter(
    "headwater_records_answered",
    "records",
    ("outcome",),
    "Sent records by what became of them: delivered, failed",
)
RECORDS_IN_FLIGHT = _gauge(
    "headwater_records_in_flight", "records", (), "Sent records without an answer yet"
)
SENDER_WAITING_SECONDS = _counter(
    "headwater_sender_waiting_seconds",
    "seconds",
    (),
    "Time that the program had to wait before a record was taken, since the queue was full",
)
DELIVERY_SECONDS = _histogram(
    "headwater_delivery_seconds", (), "From sending a record to the brokers' confirmation"
)

# -- readers -----------------------------------------------------------------------------------

READS = _counter(
    "headwater_reads",
    "reads",
    ("feature_view", "outcome"),
    "Values read by outcome: found, absent, expired, failed",
)
REPRESENTATION_READS = _counter(
    "headwater_representation_reads",
    "reads",
    ("encoder", "version"),
    "Representations found by reads, by encoder version",
)
SAMPLED_FIRST_READS = _counter(
    "headwater_sampled_first_reads",
    "representations",
    ("encoder", "version"),
    "Representations of the sampled users (one in 16, by hash) that this process read for the "
    "first time",
)
FIRST_READ_SECONDS = _histogram(
    "headwater_first_read_seconds",
    ("encoder", "version"),
    "From a representation's encoding to the first read of it by this process, for those encoded "
    "since the process began to read; it tells also when readers come, so it is no stage's delay",
)

# -- cost --------------------------------------------------------------------------------------

REPRESENTATIONS_WRITTEN = _counter(
    "headwater_representations_written",
    "representations",
    ("encoder", "version"),
    "Representations stored",
)
REPRESENTATION_BYTES = _counter(
    "headwater_representation_bytes",
    "bytes",
    ("encoder", "version"),
    "Bytes of the stored representations",
)
ENCODER_SECONDS = _counter(
    "headwater_encoder_seconds",
    "seconds",
    ("encoder", "version"),
    "Time that requests to the encoder took, added up",
)
SAMPLED_WRITES = _counter(
    "headwater_sampled_writes",
    "representations",
    ("encoder", "version"),
    "Representations stored for the sampled users (one in 16, by hash)",
)
REPRESENTATION_STAGE_SECONDS = _histogram(
    "headwater_representation_stage_seconds",
    ("encoder", "version", "stage", "traffic"),
    "Delay of the stages from the refresh request on, by encoder version",
)
PROCESS_TIME = _gauge(
    "headwater_process_time_seconds",
    "seconds",
    (),
    "This process's clock (seconds since the epoch) at the moment of the answer",
)

# -- the monitor's own -------------------------------------------------------------------------

STALENESS = _gauge(
    "headwater_staleness_seconds",
    "seconds",
    ("feature", "since"),
    "Age of the oldest event that a feature doesn't reflect yet, 0 if there is none; since is "
    "event_time or ingested_at. Absent while it can't be told",
)
STALENESS_KNOWN = _gauge(
    "headwater_staleness_known", "bool", ("feature",), "1 while the staleness can be told"
)
GROUP_LAG = _gauge(
    "headwater_group_lag_records",
    "records",
    ("role", "partition"),
    "Records that the workers' group hasn't acknowledged, as Kafka tells it",
)
GROUP_POSITION = _gauge(
    "headwater_group_position_offset",
    "offset",
    ("role", "partition"),
    "The next offset that the workers' group hasn't acknowledged, as Kafka tells it",
)
GROUP_END = _gauge(
    "headwater_group_end_offset",
    "offset",
    ("role", "partition"),
    "End of the partition, as Kafka tells it",
)
GROUP_MEMBERS = _gauge(
    "headwater_group_members", "workers", ("role",), "Members of the workers' consumer group"
)
OBJECTIVE_EVENTS = _counter(
    "headwater_objective_events",
    "events",
    ("feature",),
    "Live events whose freshness was measured, lost canaries included",
)
OBJECTIVE_GOOD_EVENTS = _counter(
    "headwater_objective_good_events",
    "events",
    ("feature",),
    "Those of headwater_objective_events that were fresh within the objective",
)
OBJECTIVE_SECONDS = _gauge(
    "headwater_objective_seconds", "seconds", ("feature",), "The freshness objective"
)
OBJECTIVE_TARGET = _gauge(
    "headwater_objective_target", "share", ("feature",), "Events that are to meet the objective"
)
CANARY_SECONDS = _histogram(
    "headwater_canary_seconds",
    ("feature",),
    "From a canary's event to the moment when its effect was read back through Feast",
)
CANARIES = _counter(
    "headwater_canaries",
    "canaries",
    ("feature", "outcome"),
    "Canaries by outcome: read_back, lost (not within the time allowed), failed (not sent)",
)
COVERAGE = _gauge(
    "headwater_coverage_share",
    "share",
    ("encoder", "version", "active"),
    "Sampled active users with a representation of this version; active is true for the version "
    "that readers get",
)
SAMPLED_ACTIVE_USERS = _gauge(
    "headwater_sampled_active_users", "users", (), "Active users in the sample"
)
CLOCK_OFFSET = _gauge(
    "headwater_clock_offset_seconds",
    "seconds",
    ("kind",),
    "The clock farthest off the broker's, signed, per kind: producer, worker, monitor",
)
SOURCE_UP = _gauge(
    "headwater_source_up", "bool", ("source",), "1 while a source of the monitor answers"
)
SOURCE_ERRORS = _counter(
    "headwater_source_errors", "errors", ("source",), "Failed attempts to ask a source"
)
WORKERS_SEEN = _gauge(
    "headwater_workers", "workers", ("role", "state"), "Workers known to the monitor, by state"
)
SNAPSHOT_TIME = _gauge(
    "headwater_snapshot_time_seconds",
    "seconds",
    (),
    "When the monitor made its last snapshot (seconds since the epoch)",
)
SNAPSHOT_SECONDS = _histogram(
    "headwater_snapshot_seconds", (), "How long the monitor took to make a snapshot"
)

Labels = tuple[str, ...]


class _Buckets:
    """One histogram series, as it is exposed: how many lie at or below each bound, and the sum."""

    __slots__ = ("count", "total", "up_to")

    def __init__(self) -> None:
        self.up_to = np.zeros(len(BOUNDS), np.int64)
        self.count = 0
        self.total = 0.0

    @property
    def counts(self) -> np.ndarray[Any, Any]:
        """A count per bucket; the last is everything above."""
        return np.diff(self.up_to, prepend=0, append=self.count)


class Metrics:
    """The values of one process. Label values are given in the order of the declaration."""

    def __init__(self) -> None:
        self._numbers: dict[Metric, dict[Labels, float]] = {}
        self._buckets: dict[Histogram, dict[Labels, _Buckets]] = {}

    def add(self, metric: Counter, amount: float, *labels: str) -> None:
        """Count `amount` more."""
        series = self._numbers.setdefault(metric, {})
        series[labels] = series.get(labels, 0) + amount

    def set(self, metric: Gauge, value: float, *labels: str) -> None:
        """The gauge's value from now on."""
        self._numbers.setdefault(metric, {})[labels] = value

    def forget(self, metric: Gauge, *labels: str) -> None:
        """Stop exposing a series, such as that of a partition that was given away."""
        self._numbers.get(metric, {}).pop(labels, None)

    def value(self, metric: Counter | Gauge, *labels: str) -> float:
        """The current value, 0 if nothing was counted."""
        return self._numbers.get(metric, {}).get(labels, 0)

    def observe(
        self, metric: Histogram, seconds: Sequence[float] | np.ndarray[Any, Any], *labels: str
    ) -> None:
        """Count delays (seconds, any number of them) into the buckets."""
        values = np.asarray(seconds, np.float64)
        if not values.size:
            return
        buckets = self._series(metric, labels)
        # Sorting first takes a sixth of the time of looking each value up.
        values = np.sort(values)
        buckets.up_to += values.searchsorted(BOUNDS, side="right")
        buckets.count += values.size
        buckets.total += float(values.sum())

    def observe_times(self, metric: Histogram, seconds: float, times: int, *labels: str) -> None:
        """Count one delay `times` times: that of a batch, once per event."""
        if times:
            buckets = self._series(metric, labels)
            buckets.up_to[bisect_left(_BOUNDS, seconds) :] += times
            buckets.count += times
            buckets.total += seconds * times

    def _series(self, metric: Histogram, labels: Labels) -> _Buckets:
        series = self._buckets.setdefault(metric, {})
        buckets = series.get(labels)
        if buckets is None:
            buckets = series[labels] = _Buckets()
        return buckets

    def summaries(self, metric: Histogram) -> dict[Labels, dict[str, float]]:
        """Per series: count, and the 50th and 99th percentile in seconds."""
        return {
            labels: {
                "count": buckets.count,
                "p50": quantile(buckets.counts, 0.5),
                "p99": quantile(buckets.counts, 0.99),
            }
            for labels, buckets in self._buckets.get(metric, {}).items()
        }

    def exposition(self) -> bytes:
        """Prometheus' text format: this catalogue's values and the process's own."""
        return ("".join(self._lines()) + self._process()).encode()

    def _process(self) -> str:
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        return generate_latest(registry).decode()

    def _lines(self) -> Iterator[str]:
        for metric, series in self._numbers.items():
            name = f"{metric.name}_total" if isinstance(metric, Counter) else metric.name
            yield _header(metric, name)
            for labels, value in sorted(series.items()):
                yield f"{name}{_braces(_pairs(metric, labels))} {value:.17g}\n"
        for histogram, found in self._buckets.items():
            yield _header(histogram, histogram.name)
            for labels, buckets in sorted(found.items()):
                yield _histogram_lines(histogram.name, _pairs(histogram, labels), buckets)


def _header(metric: Metric, name: str) -> str:
    meaning = metric.meaning.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {meaning}\n# TYPE {name} {metric.kind}\n"


def _pairs(metric: Metric, labels: Labels) -> str:
    return ",".join(
        f'{name}="{_escaped(value)}"' for name, value in zip(metric.labels, labels, strict=True)
    )


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _braces(pairs: str) -> str:
    return f"{{{pairs}}}" if pairs else ""


def _histogram_lines(name: str, pairs: str, buckets: _Buckets) -> str:
    """All lines of one series. Written out here: prometheus-client takes ten times as long."""
    start = f"{name}_bucket{{{pairs},le=" if pairs else f"{name}_bucket{{le="
    up_to = [*buckets.up_to.tolist(), buckets.count]
    lines = [f"{start}{le} {count}\n" for le, count in zip(_LE, up_to, strict=True)]
    braces = _braces(pairs)
    lines.append(f"{name}_sum{braces} {buckets.total:.17g}\n{name}_count{braces} {up_to[-1]}\n")
    return "".join(lines)


_LE = [*(f'"{bound:.6g}"}}' for bound in BOUNDS), '"+Inf"}']


def quantile(counts: np.ndarray[Any, Any], share: float) -> float:
    """The delay (seconds) below which `share` of the counted ones lie; 0 if none was counted.

    Linear within a bucket, as Prometheus' histogram_quantile does it.
    """
    total = int(counts.sum())
    if not total:
        return 0.0
    wanted = share * total
    cumulative = np.cumsum(counts)
    place = int(np.searchsorted(cumulative, wanted, side="left"))
    if place == 0 or place >= len(BOUNDS):
        return float(BOUNDS[min(place, len(BOUNDS) - 1)])
    below = float(cumulative[place - 1])
    low, high = float(BOUNDS[place - 1]), float(BOUNDS[place])
    return low + (high - low) * (wanted - below) / float(counts[place])
