"""Batched transport for Faust, with its own acknowledgement.

Stock Faust makes an asyncio task's worth of work per message and delivers 5 k events/s. Here each
partition batch that aiokafka fetched travels through Faust as ONE message (`RecordBatch`), which is
worth a factor of 20. Faust keeps what it is good at: the consumer group, rebalance callbacks, the
flow control around them, a graceful stop.

What is ours: a batch's offsets are committed only once the worker said `finish` (Faust acknowledges
in `finally`, so a batch whose sink failed is lost), a partition with too many unprocessed records
is not fetched while the group membership is kept alive (R6), and commits survive a moving leader
but never outlive the assignment they belong to.

Read with faust/transport/consumer.py and drivers/aiokafka.py of faust-streaming 0.15.3 at hand.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from typing import Any, Protocol

import faust
import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer import fetcher as aiokafka_fetcher
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    KafkaError,
    OffsetOutOfRangeError,
)
from aiokafka.structs import OffsetAndMetadata
from faust.app.base import BootStrategy
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, ConsumerMessage
from mode import CrashingSupervisor

from streams.errors import DeliveryFailed, HeadwaterError, LogMismatch, StoreUnavailable
from streams.kafka import ConsumedRecord
from streams.settings import Settings
from streams.workers.offsets import Claim, PartitionLedger

log = logging.getLogger(__name__)

RecordMap = Mapping[Any, list[ConsumedRecord]]

_GETMANY_SECONDS = 1.0
_RETRY_SECONDS = 0.5
# Faust resumes without our positions if this time is over; the wait has a bound of its own.
_NEVER_SECONDS = 1e7


class RecordBatch:
    """What was fetched from one partition at once: records in offset order."""

    __slots__ = ("end", "partition", "records", "topic")

    def __init__(self, topic: str, partition: int, records: list[ConsumedRecord], end: int) -> None:
        self.topic = topic
        self.partition = partition
        self.records = records
        self.end = end

    @property
    def first(self) -> int:
        return self.records[0].offset

    @property
    def next(self) -> int:
        return self.records[-1].offset + 1


class _ParsedRecords(aiokafka_fetcher.PartitionRecords):  # type: ignore[misc]
    """A fetched partition's records as aiokafka's parser made them.

    To copy each one into a `ConsumerRecord` takes longer than to parse it.
    """

    def _consumer_record(self, tp: TopicPartition, record: ConsumedRecord) -> ConsumedRecord:  # noqa: ARG002
        return record


# aiokafka offers no other way to say so; nothing else in a worker's process consumes with it.
aiokafka_fetcher.PartitionRecords = _ParsedRecords


class Consuming(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker consumes: one topic, one group, and the bounds (R6)."""

    role: str
    topic: str
    group: str
    max_batch_records: int
    # With "skip", records that the broker deleted unread are counted and passed over.
    on_lost: str = "refuse"  # refuse | skip


class _OpenPartitions:
    """Live view of the partitions to fetch from, for aiokafka's fetcher in its thread.

    Always true: the fetcher takes an empty collection for "all of them".
    """

    def __init__(self, consumer: BatchConsumer) -> None:
        self._consumer = consumer

    def __bool__(self) -> bool:
        return True

    def __contains__(self, tp: object) -> bool:
        consumer = self._consumer
        return tp in consumer._active_partitions and tp not in consumer.held


class BatchConsumerThread(driver.AIOKafkaConsumerThread):  # type: ignore[misc]
    """aiokafka's consumer in its own thread and loop; every method here is called from the main
    loop unless it says otherwise."""

    _commit_task: asyncio.Task[Any] | None = None
    _seeks = 0

    def _create_worker_consumer(self, transport: Any) -> AIOKafkaConsumer:
        conf, settings = self.app.conf, self.app.settings
        self._assignor = RoundRobinPartitionAssignor
        return AIOKafkaConsumer(
            client_id=conf.broker_client_id,
            group_id=conf.id,
            bootstrap_servers=driver.server_list(transport.url, transport.default_port),
            partition_assignment_strategy=[RoundRobinPartitionAssignor],
            enable_auto_commit=False,
            # Positions are set by `seek_to_committed`; a position that the broker no longer has
            # is an error to report, never a reason to jump.
            auto_offset_reset="none",
            max_poll_records=self.app.consuming.max_batch_records,
            max_poll_interval_ms=int(settings.kafka.max_poll_interval_seconds * 1000),
            session_timeout_ms=int(settings.kafka.session_timeout_seconds * 1000),
            heartbeat_interval_ms=int(settings.kafka.session_timeout_seconds * 1000 / 5),
            max_partition_fetch_bytes=settings.kafka.max_partition_fetch_bytes,
            # A fetch that waits for one partition holds up the others of the same broker: this
            # wait is a bound of the freshness of a quiet topic.
            fetch_max_wait_ms=settings.kafka.fetch_wait_ms,
            retry_backoff_ms=200,
            **driver.credentials_to_aiokafka_auth(conf.broker_credentials, conf.ssl_context),
        )

    async def _fetch_records(self, *args: Any, **kwargs: Any) -> RecordMap:  # in the thread
        """What was fetched. A fetch that began before an assignment may end after the seek to the
        committed offsets; it is undone, since nobody would take its records."""
        seeks = self._seeks
        records: RecordMap = await super()._fetch_records(*args, **kwargs)
        if seeks == self._seeks:
            return records
        for tp, found in records.items():
            self._ensure_consumer().seek(tp, found[0].offset)
        return {}

    def wake(self) -> None:
        """Let a waiting fetch look again: a held partition was opened."""
        self.thread_loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:  # in the thread
        fetcher = self._ensure_consumer()._fetcher
        for waiter in list(fetcher._fetch_waiters):
            fetcher._notify(waiter)

    def touch(self) -> None:
        """Tell aiokafka that this consumer polls, though it takes nothing now."""
        self.thread_loop.call_soon_threadsafe(self._touch)

    def _touch(self) -> None:  # in the thread
        with self._ensure_consumer()._fetcher._subscriptions.fetch_context():
            pass

    async def call(self, coroutine: Any) -> Any:
        """Run a coroutine in the thread, beside Faust's queue of two workers."""
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(coroutine, self.thread_loop)
        )

    async def commit(self, tps: Mapping[TP, int]) -> bool:
        """Commit; retried by aiokafka while the coordinator moves, until a rebalance ends it."""
        return bool(await self.call(self._commit(tps)))

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:  # in the thread
        consumer = self._ensure_consumer()
        assignment = self.assignment()
        owned = {
            TopicPartition(tp.topic, tp.partition): OffsetAndMetadata(offset, "")
            for tp, offset in offsets.items()
            if tp in assignment
        }
        if len(owned) < len(offsets):
            return False
        self._commit_task = asyncio.current_task()
        try:
            await consumer.commit(owned)
        except (CommitFailedError, IllegalStateError) as error:
            log.warning("commit refused, the group has rebalanced: %s", error)
            return False
        except KafkaError as error:
            log.warning("commit failed, it will be repeated: %r", error)
            return False
        except asyncio.CancelledError:
            log.warning("commit given up: its partitions are being revoked")
            return False
        finally:
            self._commit_task = None
        return True

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:  # in the thread
        """The worker may finish and commit; a commit that still hangs afterwards is given up,
        since aiokafka would repeat it in the next generation, for whoever owns it then."""
        await super().on_partitions_revoked(revoked)
        if self._commit_task is not None:
            self._commit_task.cancel()

    async def starting_offsets(self) -> dict[TP, tuple[int | None, int, int]]:
        """Per assigned partition: (committed or None, start of the log, end of the log)."""
        found: dict[TP, tuple[int | None, int, int]] = await self.call(self._starting_offsets())
        return found

    async def _starting_offsets(self) -> dict[TP, tuple[int | None, int, int]]:  # in the thread
        consumer = self._ensure_consumer()
        assigned = sorted(consumer.assignment())
        starts = await consumer.beginning_offsets(assigned)
        ends = await consumer.end_offsets(assigned)
        return {
            TP(tp.topic, tp.partition): (await consumer.committed(tp), starts[tp], ends[tp])
            for tp in assigned
        }

    async def end_offsets(self) -> dict[TP, int]:
        """The end of each assigned partition, asked from the broker."""
        found: dict[TP, int] = await self.call(self._end_offsets())
        return found

    async def _end_offsets(self) -> dict[TP, int]:  # in the thread
        consumer = self._ensure_consumer()
        ends = await consumer.end_offsets(sorted(consumer.assignment()))
        return {TP(tp.topic, tp.partition): end for tp, end in ends.items()}

    async def seek_all(self, positions: Mapping[TP, int]) -> None:
        """Set the fetch positions; nothing that was fetched before is delivered."""
        await self.call(self._seek_all(positions))

    async def _seek_all(self, positions: Mapping[TP, int]) -> None:  # in the thread
        consumer = self._ensure_consumer()
        self._seeks += 1
        for tp, offset in positions.items():
            consumer.seek(TopicPartition(tp.topic, tp.partition), offset)


class BatchConsumer(driver.Consumer):  # type: ignore[misc]
    """Faust's consumer, one message per partition batch."""

    _thread: BatchConsumerThread

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.ledgers: dict[TP, PartitionLedger] = {}
        self.ends: dict[TP, int] = {}
        self.held: set[TP] = set()
        self._outstanding: dict[TP, int] = defaultdict(int)
        self._opened = asyncio.Event()
        super().__init__(*args, **kwargs)

    def _new_consumer_thread(self) -> BatchConsumerThread:
        return BatchConsumerThread(self, loop=self.loop, beacon=self.beacon)

    @property
    def thread(self) -> BatchConsumerThread:
        return self._thread

    # -- delivery ------------------------------------------------------------------------------

    async def _drain_messages(self, fetcher: Any) -> None:
        """Faust's fetch loop, without its gap trees: our ledgers need none."""
        try:
            while not (self._stopped.is_set() or fetcher._stopped.is_set()):
                async for _, message in self.getmany(timeout=_GETMANY_SECONDS):
                    await self.wait_first(self.callback(message), self.suspend_flow.wait())
        except self.consumer_stopped_errors:
            if not self.app.should_stop:
                raise
        except OffsetOutOfRangeError as error:
            await self.app.crash(LogMismatch(_gone(self.app.consuming, error)))
        except Exception as error:
            await self.app.crash(error)
            raise

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Any]]:
        """Fetch; yield one message per partition. All that was fetched is delivered, unless a
        rebalance comes between, which fetches it again."""
        generation = self.app.consumer_generation_id
        records = await self._next_records(timeout)
        for aiokafka_tp, found in records.items():
            if not self.flow_active or generation != self.app.consumer_generation_id:
                return
            tp = TP(aiokafka_tp.topic, aiokafka_tp.partition)
            end = self.highwater(tp) or found[-1].offset + 1
            self.ends[tp] = end
            self._outstanding[tp] += len(found)
            if self._outstanding[tp] >= self.app.consuming.max_batch_records:
                self.held.add(tp)
            yield tp, self._batch_message(tp, RecordBatch(tp.topic, tp.partition, found, end))

    async def _next_records(self, timeout: float) -> RecordMap:
        if not self.flow_active:
            await self.wait(self.can_resume_flow)
            return {}
        if self._active_partitions - self.held:
            records: RecordMap = await self._getmany(
                active_partitions=_OpenPartitions(self), timeout=timeout
            )
            return records
        self.thread.touch()
        self._opened.clear()
        await self.wait_first(self._opened.wait(), timeout=timeout)
        return {}

    def _batch_message(self, tp: TP, batch: RecordBatch) -> ConsumerMessage:
        newest = batch.records[-1]
        return ConsumerMessage(
            tp.topic,
            tp.partition,
            newest.offset,
            newest.timestamp / 1000,
            newest.timestamp_type,
            None,
            None,
            batch,
            None,
            tp=tp,
            generation_id=self.app.consumer_generation_id,
        )

    def release(self, tp: TP, count: int) -> None:
        """`count` delivered records were taken into work: there is room for as many."""
        self._outstanding[tp] = max(0, self._outstanding[tp] - count)
        if tp in self.held and self._outstanding[tp] < self.app.consuming.max_batch_records:
            self.held.discard(tp)
            self._opened.set()
            self.thread.wake()

    def on_buffer_full(self, tp: TP) -> None:
        """Faust's queues hold batches here; the bound is `held`."""

    def on_buffer_drop(self, tp: TP) -> None:
        """See `on_buffer_full`."""

    # -- acknowledgement -----------------------------------------------------------------------

    def begin(self, tp: TP, first: int, next_offset: int) -> Claim | None:
        """Records [first, next) go into work; None if the partition was revoked meanwhile."""
        ledger = self.ledgers.get(tp)
        return None if ledger is None else ledger.begin(first, next_offset)

    def ack(self, message: Any) -> bool:  # noqa: ARG002
        """Faust's per-message acknowledgement has no meaning here."""
        return False

    async def force_commit(
        self,
        topics: Any = None,  # noqa: ARG002
        start_new_transaction: bool = True,  # noqa: ARG002
    ) -> bool:
        """Commit what the ledgers say is done. Faust calls this at an interval and sees to it
        that one commit runs at a time; what failed is in the next one again."""
        ledgers = dict(self.ledgers)
        offsets = {tp: ledger.committable() for tp, ledger in ledgers.items()}
        due = {tp: offset for tp, offset in offsets.items() if offset is not None}
        if not due:
            return True
        await self.app.owner.before_commit()
        committed = await self.thread.commit(due)
        for tp, offset in due.items() if committed else ():
            ledgers[tp].mark_committed(offset)
        self.app.owner.after_commit(committed)
        return committed

    async def commit_all(self) -> bool:
        """Commit what is done now, after any commit that is under way."""
        await self.maybe_wait_for_commit_to_finish()
        return bool(await self.commit())

    # -- assignment ----------------------------------------------------------------------------

    async def perform_seek(self) -> None:
        """After an assignment: start each partition where the group left off, or at the start of
        the log for a new group. An offset that the log no longer has ends the worker; who doesn't
        answer is asked again, until the next rebalance."""
        generation = self.app.consumer_generation_id
        while generation == self.app.consumer_generation_id:
            try:
                await self._start_partitions(generation)
            except (DeliveryFailed, StoreUnavailable, KafkaError) as error:
                log.warning("the assigned partitions can't be started yet: %r", error)
                await asyncio.sleep(_RETRY_SECONDS)
            except HeadwaterError as error:
                await self.app.crash(error)
                return
            else:
                return

    async def _start_partitions(self, generation: int) -> None:
        consuming, owner = self.app.consuming, self.app.owner
        found = await self.thread.starting_offsets()
        positions = {tp: _position(consuming, tp, *offsets) for tp, offsets in found.items()}
        lost = sum(positions[tp] - (found[tp][0] or positions[tp]) for tp in positions)
        if lost:
            owner.on_lost(lost)
        await owner.on_assigned()
        await self.thread.seek_all(positions)
        if generation != self.app.consumer_generation_id:
            return
        self.held.clear()
        self._outstanding.clear()
        self.ends = {tp: end for tp, (_, _, end) in found.items()}
        self.ledgers = {tp: PartitionLedger(offset) for tp, offset in positions.items()}
        self._read_offset.update(positions)
        owner.on_positions(positions)

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """A rebalance begins: the worker may finish for a while, then the partitions are gone."""
        await self.app.owner.on_revoking(revoked)
        for tp in revoked:
            self.ledgers.pop(tp, None)
        await super().on_partitions_revoked(revoked)

    async def wait_empty(self) -> None:
        """The worker drains by itself, within its bound, before it stops the app."""

    async def verify_all_partitions_active(self) -> None:
        """Liveness is progress per partition, see health.py."""


def _position(consuming: Consuming, tp: TP, committed: int | None, start: int, end: int) -> int:
    """Where to start. Raises LogMismatch if the log no longer has what comes next."""
    if committed is None:
        return start
    if committed > end:
        raise LogMismatch(
            f"partition {tp.partition} of {tp.topic} ends at offset {end}, but group "
            f"{consuming.group} has read up to {committed}: the topic was recreated or cut. "
            "See `headwater log status`, then run `headwater log open-epoch`"
        )
    if committed >= start:
        return committed
    if consuming.on_lost == "skip":
        log.error(
            "partition %d: %d records were deleted before group %s read them; going on at %d",
            tp.partition,
            start - committed,
            consuming.group,
            start,
        )
        return start
    raise LogMismatch(
        f"partition {tp.partition} of {tp.topic} starts at offset {start}, but group "
        f"{consuming.group} has only read up to {committed}: {start - committed} records were "
        "deleted unread. See `headwater log status`; `headwater log open-epoch` goes on without"
        " them"
    )


def _gone(consuming: Consuming, error: OffsetOutOfRangeError) -> str:
    return (
        f"the broker no longer has the next offsets of {consuming.topic} ({error}): records were "
        "deleted unread, or the topic was recreated. See `headwater log status`"
    )


class BatchTransport(driver.Transport):  # type: ignore[misc]
    """Faust's aiokafka transport with the consumer above."""

    Consumer = BatchConsumer


class BatchSchema(faust.Schema):  # type: ignore[misc]
    """Hands a RecordBatch through: it is decoded by the worker, record by record."""

    def compile(self, app: Any, **_: Any) -> Callable[..., Awaitable[Any]]:
        """Called by Faust's topic; returns its decode function."""
        create_event = app.create_event

        async def decode(message: Any, *, propagate: bool = False) -> Any:  # noqa: ARG001
            return create_event(None, message.value, None, message)

        return decode


class _ConsumerOnly(BootStrategy):  # type: ignore[misc]
    enable_kafka_producer = False
    enable_web = False
    enable_sensors = False


class Owner(Protocol):
    """Who runs the app; called on the main loop."""

    def on_batch(self, batch: RecordBatch) -> None:
        """Records were fetched, in order per partition."""

    async def on_assigned(self) -> None:
        """Partitions were assigned; fetching waits for this. May raise."""

    def on_positions(self, positions: Mapping[TP, int]) -> None:
        """Fetching begins, at these offsets."""

    async def on_revoking(self, revoked: Collection[TP]) -> None:
        """Partitions are about to be revoked: finish what can be finished soon, commit."""

    async def before_commit(self) -> None:
        """A commit is about to be sent."""

    def after_commit(self, committed: bool) -> None:
        """A commit was answered."""

    def on_lost(self, count: int) -> None:
        """So many records were deleted unread, and are passed over."""


class BatchApp(faust.App):  # type: ignore[misc]
    """A Faust app that only consumes: no web server, no tables, no producer, no leader topic."""

    BootStrategy = _ConsumerOnly

    def __init__(self, settings: Settings, consuming: Consuming, owner: Owner) -> None:
        self.settings = settings
        self.consuming = consuming
        self.owner = owner
        home = settings.home_path / "run" / "faust"
        home.mkdir(parents=True, exist_ok=True)
        super().__init__(
            consuming.group,
            broker=[f"kafka://{host}" for host in _hosts(settings.kafka.bootstrap_servers)],
            datadir=str(home / consuming.role),
            store="memory://",
            web_enabled=False,
            topic_disable_leader=True,
            topic_allow_declare=False,
            reply_create_topic=False,
            autodiscover=False,
            stream_wait_empty=False,
            broker_commit_interval=settings.kafka.commit_interval_seconds,
            broker_session_timeout=settings.kafka.session_timeout_seconds,
            broker_request_timeout=_NEVER_SECONDS,
            broker_max_poll_records=consuming.max_batch_records,
            agent_supervisor=CrashingSupervisor,
        )
        topic = self.topic(consuming.topic, schema=BatchSchema())

        async def deliver(stream: Any) -> None:
            async for event in stream.noack().events():
                owner.on_batch(event.value)

        self.agent(topic, name=consuming.role)(deliver)

    def _new_transport(self) -> BatchTransport:
        return BatchTransport(self.conf.broker_consumer, self)


def _hosts(bootstrap_servers: str) -> list[str]:
    return [host.strip() for host in bootstrap_servers.split(",") if host.strip()]
