"""The encoder worker: refresh requests in, representations out.

    fetch → one per user → read sequences → encode → check → write → acknowledge

Users whose stored representation reflects the asked position already are passed over, so that a
redelivery costs nothing. Sequences are read back at no less than the asked log position; what is
written carries the position that was read (R2), encoder and version (R7). While the encoder or the
store is away, partitions wait, and go on by themselves (R6).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from streams import metrics as catalogue
from streams.cassandra import Session
from streams.encoder_input import EncoderInput
from streams.encoding import Encoded, EncoderClient
from streams.errors import (
    DeliveryFailed,
    EncoderMismatch,
    EncoderRejected,
    EncoderUnavailable,
    HeadwaterError,
    StoreRejected,
    StoreUnavailable,
)
from streams.metrics import Metrics
from streams.producer import OutgoingRecord, RecordSender
from streams.recent import RecentValues
from streams.representation_store import RepresentationStore
from streams.representations import EncoderVersion, Representation, RepresentationView
from streams.sequence_store import SequenceStore
from streams.settings import Settings
from streams.workers.dead_letters import dead_letters
from streams.workers.declarations import Declarations, Views, read_views
from streams.workers.encoder_report import EncoderReport
from streams.workers.fault_points import VARIABLE, FaultPoints
from streams.workers.intake import Refused
from streams.workers.lanes import Lane
from streams.workers.read_back import ReadBack, Reading
from streams.workers.refresh import KnownPositions, Refresh, coalesce
from streams.workers.runtime import Clock, Running, Runtime, run_to_end
from streams.workers.transport import Consuming, RecordBatch

log = logging.getLogger(__name__)

_STORE = (StoreUnavailable, StoreRejected)
_ENCODER = (EncoderUnavailable, EncoderMismatch)


class Representations(Protocol):
    """What the worker needs of `RepresentationStore`."""

    async def write_many(
        self, encoder: str, version: str, items: Any, ttl_seconds: int | None = None
    ) -> list[HeadwaterError | None]: ...
    async def delete(self, encoder: str, versions: Any, user_id: str, position: int) -> None: ...
    async def read_versions(self, encoder: str) -> list[EncoderVersion]: ...
    async def active_version(self, encoder: str) -> str | None: ...


class Encoder(Protocol):
    """What the worker needs of `EncoderClient`."""

    async def encode(
        self, encoder: str, version: str, batch: EncoderInput, dimensions: int
    ) -> Encoded: ...
    async def close(self) -> None: ...


class Sender(Protocol):
    """What the worker needs of `RecordSender`."""

    async def deliver(self, records: Iterable[OutgoingRecord]) -> None: ...
    async def close(self, timeout: float) -> int: ...


class Job(NamedTuple):
    """What one batch does for one encoder: the same views and version from begin to end (R7)."""

    views: Views
    view: RepresentationView
    version: str
    received_at: float


class EncoderWorker:
    """The handler of one encoder worker's process; see `runtime.Handler`."""

    def __init__(
        self,
        settings: Settings,
        declarations: Declarations,
        read_back: ReadBack,
        store: Representations,
        encoder: Encoder,
        sender: Sender,
        metrics: Metrics,
        now: Clock,
        faults: FaultPoints,
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self._settings = settings
        own = self._own = settings.encoder_worker
        self._declarations = declarations
        self._read_back = read_back
        self._store = store
        self._encoder = encoder
        self._sender = sender
        self._metrics = metrics
        self._now = now
        self._faults = faults
        self._close = close
        seconds = own.version_check_seconds
        self._versions = RecentValues(
            store.active_version, fresh_seconds=seconds, stale_seconds=2 * seconds
        )
        self._in_use: dict[str, str] = {}
        self._known = KnownPositions(own.max_cached_users)
        self._report = EncoderReport(metrics, own.catch_up_seconds)

    # -- see runtime.Handler -------------------------------------------------------------------

    async def start(self) -> None:
        """The store must be there; an encoder may come later."""
        for view in self._declarations.views.representations:
            await self._store.active_version(view.encoder)

    async def assigned(self) -> None:
        """Requests carry their log positions: there is no epoch to check."""

    def revoked(self) -> None:
        """What is known of stored positions stays true."""

    def new_state(self) -> None:
        """Lanes hold nothing."""

    async def check(self) -> None:
        """Look whether the declarations changed."""
        if await self._declarations.refresh():
            log.info("views changed")

    def refresh_metrics(self) -> None:
        """See `runtime.Handler`."""
        self._metrics.set(catalogue.CACHED_USERS, len(self._known))

    def state(self) -> dict[str, Any]:
        """See `runtime.Handler`."""
        return {
            "versions": dict(self._in_use),
            "cached_users": len(self._known),
            "representation_freshness": {
                "/".join(labels): found
                for labels, found in self._metrics.summaries(
                    catalogue.REPRESENTATION_FRESHNESS_SECONDS
                ).items()
            },
            **self._report.state(),
        }

    async def close(self, seconds: float) -> None:
        """See `runtime.Handler`."""
        await self._sender.close(seconds)
        await self._encoder.close()
        await self._close()

    # -- the arrow -----------------------------------------------------------------------------

    async def handle(self, lane: Lane, batch: RecordBatch) -> None:
        """See `runtime.Handler`, and the top of this file."""
        received_at = self._now()
        refreshes, refused = coalesce(batch.records)
        views = self._declarations.views
        for view in _one_per_encoder(views.representations):
            version = await self._active_version(lane, view.encoder)
            job = Job(views, view, version, received_at)
            wanted = [r for r in refreshes if not self._known.reaches(view.encoder, version, r)]
            self._report.users_done("current", len(refreshes) - len(wanted))
            await self._delete_forgotten(lane, view, wanted)
            size = self._own.max_users_per_request
            for start in range(0, len(wanted), size):
                await self._refresh(lane, job, wanted[start : start + size])
        await self._send_bad(lane, batch, refused)
        self._report.batch_done(len(batch.records), len(refreshes), [bad.reason for bad in refused])

    async def _active_version(self, lane: Lane, encoder: str) -> str:
        async def ask() -> str:
            version = await self._versions.get(encoder)
            if version is None:
                raise EncoderUnavailable(
                    f"encoder {encoder} has no active version; see `headwater versions`"
                )
            return version

        version: str = await lane.until_done(ask, (*_STORE, *_ENCODER), self._count_retry)
        if self._in_use.get(encoder) != version:
            log.info("encoder %s: version %s from now on", encoder, version)
            self._in_use[encoder] = version
        return version

    async def _delete_forgotten(
        self, lane: Lane, view: RepresentationView, refreshes: Sequence[Refresh]
    ) -> None:
        """A deletion reaches every version; what is written afterwards is newer than it."""
        forgotten = [refresh for refresh in refreshes if refresh.forget]
        if not forgotten:
            return

        async def delete() -> None:
            versions = [known.version for known in await self._store.read_versions(view.encoder)]
            for refresh in forgotten:
                await self._store.delete(view.encoder, versions, refresh.user_id, refresh.position)

        await lane.until_done(delete, _STORE, self._count_retry)
        self._report.users_done("deleted", len(forgotten))

    async def _refresh(self, lane: Lane, job: Job, refreshes: Sequence[Refresh]) -> None:
        """Read, encode and write one group of users."""
        await self._faults.reach("before_encode")
        readings = await lane.until_done(
            lambda: self._read_back.read(job.views, job.view, refreshes), _STORE, self._count_retry
        )
        some = [reading for reading in readings if reading.has_events]
        none = [reading for reading in readings if not reading.has_events]
        self._report.users_done("empty", len(none))
        if some:
            batch = self._read_back.merge(job.views, job.view, some)
            for first, end in batch.split(len(some), self._own.max_tokens_per_request):
                await self._encode_and_write(lane, job, some[first:end], batch.part(first, end))
        self._known.put(
            job.view.encoder,
            job.version,
            ((r.refresh.user_id, max(r.position, r.refresh.position)) for r in readings),
        )

    async def _encode_and_write(
        self, lane: Lane, job: Job, readings: Sequence[Reading], batch: EncoderInput
    ) -> None:
        encoded = await self._encode(lane, job, batch)
        encoded_at = self._now()
        await self._faults.reach("after_encode")
        as_of = batch.newest_time
        chosen = [
            (readings[i].refresh, _representation(encoded, i, as_of, readings[i], encoded_at))
            for i in np.flatnonzero(encoded.usable).tolist()
        ]
        rejected = len(readings) - len(chosen)
        if rejected:
            log.error("%d vectors of %s aren't usable", rejected, job.view.encoder)
            self._report.users_done("rejected", rejected)
        await self._write(lane, job, [(refresh.user_id, item) for refresh, item in chosen])
        self._report.users_done("encoded", len(chosen))
        self._report.stored(
            job.view.encoder,
            job.version,
            [(refresh, item.vector.nbytes) for refresh, item in chosen],
            job.received_at,
            encoded_at,
            self._now(),
        )

    async def _encode(self, lane: Lane, job: Job, batch: EncoderInput) -> Encoded:
        """The vectors. A sequence that the encoder refuses is found and left out by itself."""
        view, began = job.view, self._now()
        try:
            encoded: Encoded = await lane.until_done(
                lambda: self._encoder.encode(view.encoder, job.version, batch, view.dimensions),
                _ENCODER,
                self._count_retry,
            )
        except EncoderRejected as error:
            self._metrics.add(catalogue.ENCODER_REQUESTS, 1, "rejected")
            if batch.num_sequences == 1:
                log.error("a sequence of %d events is refused: %s", batch.num_events, error)
                return Encoded(np.zeros((1, view.dimensions), np.float32), np.zeros(1, bool))
            middle, end = batch.num_sequences // 2, batch.num_sequences
            halves = [
                await self._encode(lane, job, batch.part(0, middle)),
                await self._encode(lane, job, batch.part(middle, end)),
            ]
            return Encoded(*(np.concatenate(parts) for parts in zip(*halves, strict=True)))
        seconds = self._now() - began
        self._report.request_done(view.encoder, job.version, batch.num_events, seconds)
        return encoded

    async def _write(
        self, lane: Lane, job: Job, items: Sequence[tuple[str, Representation]]
    ) -> None:
        async def write() -> None:
            outcomes = await self._store.write_many(
                job.view.encoder, job.version, items, job.view.ttl_seconds
            )
            for outcome in outcomes:
                if outcome is not None:
                    raise outcome  # all are written again, which changes nothing

        if items:
            await lane.until_done(write, _STORE, self._count_retry)

    async def _send_bad(self, lane: Lane, batch: RecordBatch, refused: Sequence[Refused]) -> None:
        topic, failed_at = self._settings.kafka.dead_letters_topic, int(self._now() * 1000)
        letters = dead_letters(batch, refused, topic, failed_at)
        if letters:
            await lane.until_done(
                lambda: self._sender.deliver(letters), (DeliveryFailed,), self._count_retry
            )

    def _count_retry(self, error: HeadwaterError) -> None:
        self._metrics.add(catalogue.RETRIES, 1, type(error).__name__)


def _representation(
    encoded: Encoded, index: int, as_of: Any, reading: Reading, encoded_at: float
) -> Representation:
    return Representation(
        encoded.vectors[index], int(as_of[index]), reading.position, int(encoded_at * 1000)
    )


def _one_per_encoder(views: Iterable[RepresentationView]) -> list[RepresentationView]:
    """Vectors are stored per encoder: of views that share one, the first says how it is fed."""
    return list({view.encoder: view for view in reversed(list(views))}.values())


def run_encoder_worker(settings: Settings) -> int:
    """Run an encoder worker in this process until SIGTERM; answers the exit code."""
    return run_to_end(lambda: make_encoder_worker(settings))


def make_encoder_worker(
    settings: Settings,
    *,
    views: Views | None = None,
    faults: FaultPoints | None = None,
    now: Clock = time.time,
) -> Runtime:
    """One encoder worker over the real services; on the running loop."""
    own, metrics = settings.encoder_worker, Metrics()
    session = Session(
        msgspec.structs.replace(settings.cassandra, max_requests_in_flight=own.max_reads_in_flight)
    )
    faults = faults or FaultPoints(os.environ.get(VARIABLE, ""))
    handler = EncoderWorker(
        settings,
        Declarations(settings, views or read_views(settings)),
        ReadBack(SequenceStore(session)),
        RepresentationStore(session),
        EncoderClient(settings.triton),
        RecordSender(settings, "headwater-encoder-worker"),
        metrics,
        now,
        faults,
        session.close,
    )
    running = Running(
        consuming=Consuming(
            role="encoder",
            topic=settings.kafka.refresh_topic,
            group=own.group,
            max_batch_records=own.max_batch_records,
            # A lost request is made good by the user's next event.
            on_lost="skip",
        ),
        drain_seconds=own.drain_seconds,
        stall_seconds=own.stall_seconds,
        metrics_host=own.metrics_host,
        metrics_port=own.metrics_port,
    )
    return Runtime(settings, running, handler, metrics, now, faults)
