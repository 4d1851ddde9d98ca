"""What every worker is made of: consume, work in lanes, commit, tell how it goes, end in order.

A worker brings a `Handler`; this module knows neither events nor stores. Exit codes: 0 after a
clean end, 1 after a failure, 2 for wrong use or configuration.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Protocol

import msgspec
import uvloop
from aiokafka.errors import KafkaError
from faust.types import TP

from streams import metrics as catalogue
from streams.errors import (
    ConfigError,
    DeliveryFailed,
    EncoderUnavailable,
    HeadwaterError,
    StoreUnavailable,
)
from streams.kafka import topic_identity
from streams.metrics import Metrics
from streams.settings import Settings
from streams.workers.fault_points import FaultPoints
from streams.workers.health import HealthServer
from streams.workers.lanes import Lane, Lanes
from streams.workers.registration import register, unregister
from streams.workers.transport import BatchApp, BatchConsumer, Consuming, RecordBatch

log = logging.getLogger(__name__)

Clock = Callable[[], float]  # seconds since the epoch

_WATCH_SECONDS = 1.0
_BROKER_SECONDS = 5.0
_START_RETRY_SECONDS = 1.0
# After the drain: leaving the group, closing connections. Then the process ends itself.
_CLOSE_SECONDS = 5.0


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one worker's process."""

    consuming: Consuming
    drain_seconds: float
    stall_seconds: float
    metrics_host: str
    metrics_port: int


class Handler(Protocol):
    """A worker's own part."""

    async def start(self) -> None:
        """Connect; repeated while it raises StoreUnavailable, DeliveryFailed and the like."""

    async def assigned(self) -> None:
        """Partitions were assigned. What it raises ends the worker, unless it may pass."""

    def revoked(self) -> None:
        """All partitions were revoked: forget what is cached of them."""

    def new_state(self) -> Any:
        """What a lane holds during one assignment."""

    async def handle(self, lane: Lane, batch: RecordBatch) -> None:
        """Return when everything that derives from the batch is durable (R3)."""

    async def check(self) -> None:
        """Called every second while it runs. What it raises ends the worker."""

    def refresh_metrics(self) -> None:
        """Bring gauges up to date."""

    def state(self) -> dict[str, Any]:
        """What /state shows of this worker beside what all have."""

    async def close(self, seconds: float) -> None:
        """Close connections, within about this time."""


class Runtime:
    """Runs one worker in this process."""

    def __init__(
        self,
        settings: Settings,
        running: Running,
        handler: Handler,
        metrics: Metrics,
        now: Clock,
        faults: FaultPoints,
    ) -> None:
        self._settings = settings
        self._running = running
        self._handler = handler
        self._metrics = metrics
        self._now = now
        self._faults = faults
        self._role = running.consuming.role
        self._health = HealthServer(self, metrics, self._refresh_metrics)
        self._starting: str | None = "starting"
        self._broker_silent: str | None = None
        self._started_at = now()
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._ended = asyncio.Event()
        self._assigned = False
        self._app: BatchApp | None = None
        self._lanes = Lanes(
            lambda: self._consumer,
            handler.handle,
            handler.new_state,
            self.fail,
            running.consuming.max_batch_records,
        )

    # -- life ----------------------------------------------------------------------------------

    async def run(self) -> int:
        """Run until SIGTERM, SIGINT or a failure; answers the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        url = await self._health.start(self._running.metrics_host, self._running.metrics_port)
        path = register(self._settings, self._role, self._running.consuming.group, url)
        log.info("%s worker, metrics at %s/metrics", self._role, url)
        try:
            await self._start()
            await self._until_ended()
            clean = await self._drain()
        except HeadwaterError as error:
            self.fail(error)
            clean = False
        watchdog = _end_hard_after(2 * _CLOSE_SECONDS, 1)
        await self._close()
        watchdog.set()
        unregister(path)
        return self._exit_code(clean)

    def stop(self) -> None:
        """Ask for a clean end; asked twice, the process ends at once."""
        if self._stopping.is_set():
            log.warning("asked twice to stop: what is unfinished will be redelivered")
            os._exit(1)
        self._stopping.set()
        self._ended.set()

    def fail(self, error: BaseException) -> None:
        """End the worker with this error; what isn't committed is redelivered."""
        if self._failure is None:
            self._failure = error
            if isinstance(error, HeadwaterError):
                log.error("%s: %s", type(error).__name__, error)
            else:
                log.error("the worker failed", exc_info=error)
        self._ended.set()

    def _exit_code(self, clean: bool) -> int:
        if isinstance(self._failure, ConfigError):
            return 2
        return 0 if clean and self._failure is None else 1

    async def _start(self) -> None:
        # The consumer, unlike everything else here, doesn't wait for a broker to be there.
        for needed in (self._find_topic, self._handler.start):
            if not await self._until_there(needed):
                return
        app = self._app = BatchApp(self._settings, self._running.consuming, self)
        self._starting = "joining the consumer group"
        await app.start()

    async def _find_topic(self) -> None:
        topic = self._running.consuming.topic
        await asyncio.to_thread(topic_identity, self._settings.kafka, topic)

    async def _until_there(self, call: Callable[[], Any]) -> bool:
        """Wait for what the start needs; False if asked to stop meanwhile."""
        while not self._ended.is_set():
            try:
                await call()
            except ConfigError:
                raise
            except HeadwaterError as error:
                if not _may_pass(error):
                    raise
                if self._starting != str(error):
                    log.warning("waiting to start: %s", error)
                self._starting = str(error)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), _START_RETRY_SECONDS)
            else:
                return True
        return False

    async def _until_ended(self) -> None:
        if self._app is None:
            return
        crashed = asyncio.create_task(self._app._crashed.wait())
        ended = asyncio.create_task(self._ended.wait())
        watching = asyncio.create_task(self._watch())
        await asyncio.wait({crashed, ended}, return_when=asyncio.FIRST_COMPLETED)
        for task in (crashed, ended, watching):
            task.cancel()
        await asyncio.gather(crashed, ended, watching, return_exceptions=True)
        if self._app._crashed.is_set():
            self.fail(_crash_reason(self._app.crash_reason))

    async def _drain(self) -> bool:
        """Finish what is being worked on, commit it; False if the time was too short."""
        if self._app is None:
            return True
        deadline = _loop_time() + self._running.drain_seconds
        self._app.consumer.stop_flow()
        finished = await self._lanes.finish(self._running.drain_seconds)
        committed = await self._commit(deadline - _loop_time())
        if not (finished and committed):
            log.error(
                "not drained within %g s; what isn't committed will be redelivered",
                self._running.drain_seconds,
            )
        return finished and committed

    async def _commit(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(max(seconds, 0.1)):
                return bool(await self._consumer.commit_all())
        except TimeoutError:
            return False

    async def _close(self) -> None:
        if self._app is not None:
            await self._lanes.drop([lane.tp for lane in self._lanes])
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._app.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._handler.close(_CLOSE_SECONDS / 2)
        await self._health.stop()

    @property
    def _consumer(self) -> BatchConsumer:
        assert self._app is not None
        consumer: BatchConsumer = self._app.consumer
        return consumer

    # -- what the transport calls, see transport.Owner ------------------------------------------

    def on_batch(self, batch: RecordBatch) -> None:
        """Records were fetched."""
        self._lanes.submit(batch)

    async def on_assigned(self) -> None:
        """The handler's checks."""
        await self._handler.assigned()

    def on_positions(self, positions: Mapping[TP, int]) -> None:
        """Work begins."""
        self._lanes.open(positions)
        self._assigned = True
        self._starting = None
        log.info("assigned: %s", _offsets(positions))

    async def on_revoking(self, revoked: Collection[TP]) -> None:
        """Half the session is for finishing: beyond it the group would go on without us."""
        grace = self._settings.kafka.session_timeout_seconds / 2
        deadline = _loop_time() + grace
        await self._lanes.finish(0.6 * grace)
        if self._app is not None and not self._app.should_stop:
            await self._commit(deadline - _loop_time())
        await self._lanes.drop(revoked)
        self._handler.revoked()
        self._assigned = False
        for tp in revoked:
            self._forget_gauges(tp)

    async def before_commit(self) -> None:
        """A step for tests."""
        await self._faults.reach("before_commit")

    def after_commit(self, committed: bool) -> None:
        """Count it."""
        result = "committed" if committed else "failed"
        self._metrics.add(catalogue.COMMITS, 1, self._role, result)

    def on_lost(self, count: int) -> None:
        """Count them."""
        self._metrics.add(catalogue.OFFSETS_LOST, count, self._role)

    # -- how it goes ---------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            try:
                await self._handler.check()
            except HeadwaterError as error:
                if not _may_pass(error):
                    self.fail(error)
                    return
            await self._ask_broker()

    async def _ask_broker(self) -> None:
        try:
            async with asyncio.timeout(_BROKER_SECONDS):
                ends = await self._consumer.thread.end_offsets()
        except (TimeoutError, KafkaError) as error:
            self._broker_silent = f"the Kafka broker doesn't answer ({type(error).__name__})"
            return
        self._broker_silent = None
        for tp, end in ends.items():
            self._consumer.ends[tp] = max(end, self._consumer.ends.get(tp, 0))
        for lane in self._lanes:
            ledger = self._consumer.ledgers.get(lane.tp)
            if ledger is not None and ledger.processed >= ends.get(lane.tp, 0):
                lane.progress_at = _loop_time()  # idle is no standstill

    def stalled(self) -> list[str]:
        """See `Health`."""
        if self._app is None or self._broker_silent:
            return []
        now, limit = _loop_time(), self._running.stall_seconds
        return [
            f"partition {lane.partition}: no progress for {now - lane.progress_at:.0f} s"
            for lane in self._lanes
            if lane.waiting_for is None and now - lane.progress_at > limit
        ]

    def unready(self) -> list[str]:
        """See `Health`."""
        if self._stopping.is_set():
            return ["stopping"]
        if self._failure is not None:
            return [f"failed: {self._failure}"]
        if self._starting is not None:
            return [self._starting]
        reasons = [] if self._assigned else ["the consumer group is rebalancing"]
        if self._broker_silent:
            reasons.append(self._broker_silent)
        waiting: dict[str, list[str]] = {}
        for lane in self._lanes:
            if lane.waiting_for is not None:
                waiting.setdefault(lane.waiting_for, []).append(str(lane.partition))
        reasons += [
            f"partition {', '.join(partitions)} waits: {reason}"
            for reason, partitions in waiting.items()
        ]
        return reasons + self.stalled()

    def state(self) -> dict[str, Any]:
        """See `Health`. Offsets are next offsets; lag in records; times in seconds."""
        return {
            "role": self._role,
            "pid": os.getpid(),
            "group": self._running.consuming.group,
            "topic": self._running.consuming.topic,
            "started_at": self._started_at,
            "ready": not self.unready(),
            "reasons": self.unready(),
            "live": not self.stalled(),
            "lag": sum(found["lag"] for found in self._partitions().values()),
            "partitions": self._partitions(),
            "stages": _summaries(self._metrics, catalogue.STAGE_SECONDS),
            "freshness": _summaries(self._metrics, catalogue.FRESHNESS_SECONDS),
            **self._handler.state(),
        }

    def _partitions(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        if self._app is None:
            return found
        consumer, now = self._consumer, _loop_time()
        for lane in self._lanes:
            ledger = consumer.ledgers.get(lane.tp)
            if ledger is None:
                continue
            end = max(consumer.ends.get(lane.tp, 0), ledger.processed)
            found[str(lane.partition)] = {
                "processed": ledger.processed,
                "committed": ledger.committed,
                "end": end,
                "lag": end - ledger.processed,
                "seconds_since_progress": round(now - lane.progress_at, 3),
                "waiting_for": lane.waiting_for,
            }
        return found

    def _refresh_metrics(self) -> None:
        put, role = self._metrics.set, self._role
        for partition, found in self._partitions().items():
            put(catalogue.POSITION_PROCESSED, found["processed"], role, partition)
            put(catalogue.POSITION_COMMITTED, found["committed"], role, partition)
            put(catalogue.POSITION_END, found["end"], role, partition)
            put(catalogue.LAG, found["lag"], role, partition)
        put(catalogue.READY, not self.unready(), role)
        put(catalogue.PROCESS_TIME, self._now())
        put(catalogue.ASSIGNED, len(self._partitions()), role)
        self._handler.refresh_metrics()

    def _forget_gauges(self, tp: TP) -> None:
        for gauge in (
            catalogue.POSITION_PROCESSED,
            catalogue.POSITION_COMMITTED,
            catalogue.POSITION_END,
            catalogue.LAG,
        ):
            self._metrics.forget(gauge, self._role, str(tp.partition))


def run_to_end(make: Callable[[], Runtime]) -> int:
    """Run a worker in this process, on uvloop in every thread; answers the exit code."""
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    # A batch makes some ten thousand objects that all die young and without cycles: at the default
    # of 700, the collector takes a third of the fold's time.
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)

    async def run() -> int:
        code = await make().run()
        # What was given up on the way, a request to a hung broker, must not hold up the end.
        _end_hard_after(_CLOSE_SECONDS, code)
        return code

    try:
        return asyncio.run(run())
    except ConfigError as error:
        log.error("%s", error)
        return 2


def _may_pass(error: HeadwaterError) -> bool:
    """Errors that only say that somebody doesn't answer."""
    return isinstance(error, (DeliveryFailed, EncoderUnavailable, StoreUnavailable))


def _crash_reason(reason: BaseException | None) -> BaseException:
    return reason or HeadwaterError("the consumer stopped without a reason")


def _offsets(positions: Mapping[TP, int]) -> str:
    return ", ".join(f"{tp.partition} at {offset}" for tp, offset in sorted(positions.items()))


def _summaries(metrics: Metrics, metric: catalogue.Histogram) -> dict[str, dict[str, float]]:
    """Histogram series by their labels, joined with a slash."""
    return {"/".join(labels): found for labels, found in metrics.summaries(metric).items()}


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def _end_hard_after(seconds: float, code: int) -> threading.Event:
    """End the process if closing hangs, in a driver's thread for example; set it to call it off."""
    closed = threading.Event()

    def watch() -> None:
        if not closed.wait(seconds):
            log.error("closing hangs; ending the process")
            os._exit(code)

    threading.Thread(target=watch, daemon=True).start()
    return closed
