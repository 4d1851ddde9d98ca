"""Drives real workers against real services and checks what they did with everything produced.

A `Run` belongs to one test: it produces records, remembers them, watches the counters of every
worker while it lives, and compares what is stored, asked for and refused with the oracle.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.protocol.group import LeaveGroupRequest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from streams import kafka
from streams.cassandra import Session
from streams.events import Event, Forget
from streams.producer import EventProducer
from streams.sequence_store import SequenceStore
from streams.sequences import Mark, StoredUser, sequence_events
from streams.settings import KafkaSettings
from tests.faults import oracle
from tests.faults.feed import Feed, Record
from tests.worker_platform import Platform, WorkerProcess, comparable, wait_until

OUTCOMES = ("applied", "duplicate", "too_old", "forgotten", "dead_lettered", "filtered")
_SAMPLE_SECONDS = 0.5
REPORTS = Path(__file__).resolve().parents[2] / "build" / "faults"


class Watcher(threading.Thread):
    """Reads every worker's /state again and again: R4 must hold at any time, memory is seen."""

    def __init__(self, platform: Platform) -> None:
        super().__init__(daemon=True)
        self._platform = platform
        self._over = threading.Event()
        self.unbalanced: list[dict[str, int]] = []
        self.samples = 0
        self.last: dict[int, dict[str, Any]] = {}  # the newest /state by pid
        self.rss_mb: list[tuple[float, int]] = []  # (seconds, of the first worker that lives)

    def run(self) -> None:
        began = time.monotonic()
        while not self._over.wait(_SAMPLE_SECONDS):
            for worker in list(self._platform.workers):
                if worker.is_running:
                    self.look(worker)
            alive = [w for w in self._platform.workers if w.is_running]
            if alive and (size := rss_mb(alive[0].pid)):
                self.rss_mb.append((time.monotonic() - began, size))

    def look(self, worker: WorkerProcess) -> None:
        """Take one sample. A worker that is stopped or ending doesn't answer."""
        state = worker.state()
        if "counters" not in state:
            return
        self.samples += 1
        self.last[worker.pid] = state
        for counts in (state["counters"], *state["counters_by_partition"].values()):
            if counts["consumed"] != sum(counts[name] for name in OUTCOMES):
                self.unbalanced.append(counts)

    def end(self) -> None:
        self._over.set()
        self.join()


class Offsets:
    """Where the sequence workers' group stands; one connection for all looks."""

    def __init__(self, settings: KafkaSettings, group: str) -> None:
        self._settings = settings
        self._admin = kafka.admin_client(settings)
        self._topic, self._group = settings.events_topic, group

    def committed(self) -> int:
        """Records that are acknowledged."""
        return sum(self._asked(self._committed).values())

    def lag(self) -> int:
        """Records between the acknowledged ones and the end, over all partitions."""
        ends = self._asked(self._ends)
        committed = self._asked(self._committed)
        return sum(end - committed.get(number, 0) for number, end in ends.items())

    def _asked(self, ask: Callable[[], dict[int, int]]) -> dict[int, int]:
        """Ask until the broker answers: one that has only come up refuses some requests."""
        answer: tuple[dict[int, int]]
        answer = wait_until(lambda: self._answered(ask), 60, "the broker says where a group is")
        return answer[0]

    def _answered(self, ask: Callable[[], dict[int, int]]) -> tuple[dict[int, int]] | None:
        try:
            return (ask(),)
        except KafkaException:
            # By a new connection: the old one may ask the coordinator of before for ever.
            self._admin = kafka.admin_client(self._settings)
            return None

    def _committed(self) -> dict[int, int]:
        request = [ConsumerGroupTopicPartitions(self._group)]
        answer = self._admin.list_consumer_group_offsets(request)[self._group].result()
        found = [f for f in answer.topic_partitions if f.topic == self._topic and f.offset > 0]
        return {one.partition: one.offset for one in found}

    def _ends(self) -> dict[int, int]:
        topic = self._admin.list_topics(self._topic, timeout=30).topics[self._topic]
        wanted = {TopicPartition(self._topic, n): OffsetSpec.latest() for n in topic.partitions}
        return {
            tp.partition: future.result().offset
            for tp, future in self._admin.list_offsets(wanted).items()
        }


class Run:
    """One test's stream, workers and checks."""

    def __init__(self, platform: Platform, feed: Feed) -> None:
        self.platform = platform
        self.feed = feed
        self.produced: list[Record] = []
        # Whether a process or broker ended hard: some records are then handled twice.
        self.repeats = False
        self.watcher = Watcher(platform)
        self._failed_loads: list[Exception] = []
        settings = platform.settings
        self.offsets = Offsets(settings.kafka, settings.sequence_worker.group)

    def __enter__(self) -> Self:
        self.watcher.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.watcher.end()
        if error is not None:
            for worker in self.platform.workers:
                print(f"-- worker {worker.pid}, running: {worker.is_running}")
                print(worker.get("ready"), json.dumps(worker.state().get("partitions")))
                print("\n".join(worker.output().splitlines()[-25:]))

    # -- producing -----------------------------------------------------------------------------

    def produce(self, records: Iterable[Record]) -> None:
        """Send records now; returns when the broker has them."""
        with EventProducer(self.platform.settings) as producer:
            for record in records:
                producer.send_raw_blocking(record.key, record.value)
                self.produced.append(record)

    def produce_next(self, count: int) -> None:
        """Send the feed's next records."""
        self.produce(self.feed.take(count))

    @contextmanager
    def load(self, rate: float) -> Iterator[None]:
        """The feed's records, so many a second, beside what the block does."""
        over, failed = threading.Event(), self._failed_loads

        def send() -> None:
            began, sent = time.monotonic(), 0
            try:
                with EventProducer(self.platform.settings) as producer:
                    while not over.wait(0.05):
                        due = min(int((time.monotonic() - began) * rate) - sent, int(rate))
                        for record in self.feed.take(max(0, due)):
                            producer.send_raw_blocking(record.key, record.value)
                            self.produced.append(record)
                        sent += max(0, due)
            except Exception as error:  # noqa: BLE001 raised below, in the test's thread
                failed.append(error)

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        try:
            yield
        finally:
            over.set()
            sender.join(120)
            if failed:
                raise failed[0]

    # -- workers -------------------------------------------------------------------------------

    def worker(self, role: str = "sequence", **settings: Any) -> WorkerProcess:
        """Start a worker; keywords are settings of its section, or whole variables in capitals."""
        environ = {
            name if name.isupper() else f"HEADWATER_SEQUENCE_WORKER__{name.upper()}": str(value)
            for name, value in settings.items()
        }
        return self.platform.worker(role, **environ)

    def kill(self, worker: WorkerProcess) -> None:
        """SIGKILL, and let the group know at once, which would else wait for its session."""
        self.watcher.look(worker)
        worker.kill()
        self.gone(worker)

    def gone(self, worker: WorkerProcess) -> None:
        """A worker was killed: its membership ends now instead of with its session."""
        assert not worker.is_running
        self.repeats = True
        if not any(other.is_running for other in self.platform.workers):
            asyncio.run(_end_memberships(self.platform))

    def progress(self, records: int, seconds: float = 90) -> None:
        """Wait until so many more records are acknowledged."""
        goal = self.offsets.committed() + records
        wait_until(
            lambda: self._failed_loads or self.offsets.committed() >= goal,
            seconds,
            f"{records} records acknowledged",
        )
        if self._failed_loads:
            raise self._failed_loads[0]

    def catch_up(self, seconds: float = 120) -> None:
        """Wait until every produced record is acknowledged."""
        wait_until(lambda: self.offsets.lag() == 0, seconds, "every record is acknowledged")

    def freshness(self) -> dict[str, Any]:
        """The newest freshness summaries of the workers that were seen."""
        return {str(pid): state.get("freshness") for pid, state in self.watcher.last.items()}

    # -- checking ------------------------------------------------------------------------------

    @property
    def events(self) -> list[Event | Forget]:
        """What was produced and is good."""
        return [record.event for record in self.produced if record.event is not None]

    def check(self, seconds: float = 120) -> None:
        """Everything is acknowledged, stored, asked for, counted, refused: as the oracle says."""
        self.catch_up(seconds)
        self.check_stored()
        self.check_dead_letters()
        self.check_counters()

    def check_stored(self, lost: frozenset[str] = frozenset()) -> None:
        """Sequences and marks equal the oracle's, and were asked for (R1, R3). `lost` are ids of
        events that the broker deleted before anybody read them."""
        events = [event for event in self.events if event.event_id not in lost]
        views = self.platform.views.sequences
        users = sorted({event.user_id for event in events})
        stored = asyncio.run(self._load(users))
        marks = oracle.marks(events)
        for (user, name), expected in oracle.sequences(events, views).items():
            rows = [row for row in stored[user].rows if row.view == name]
            found = comparable(sequence_events(rows, views[name]))
            assert found == expected, _difference(user, name, found, expected)
        for user in users:
            blob = stored[user].mark
            mark = None if blob is None else Mark.decode(blob).event_time
            assert mark == marks.get(user), f"{user}: mark {mark}, expected {marks.get(user)}"
        self._check_asked(stored)

    def _check_asked(self, stored: dict[str, StoredUser]) -> None:
        """Whatever is stored was followed by a refresh request that knows it."""
        asked: dict[str, int] = {}
        for request in self.platform.refresh_requests():
            asked[request.user_id] = max(request.position, asked.get(request.user_id, -1))
        for user, found in stored.items():
            newest = max([row.position for row in found.rows] + [found.mark_position])
            if newest:
                assert asked.get(user, -1) >= newest, f"no refresh request for the newest of {user}"

    def check_dead_letters(self) -> None:
        """Every bad record is a dead letter, whole; none is missing, none is good."""
        letters = list(kafka.all_dead_letters(self.platform.settings.kafka))
        found = Counter((letter.key, letter.value) for letter in letters)
        bad = Counter((r.key, r.value) for r in self.produced if r.event is None)
        if self.repeats:
            assert set(found) == set(bad)
        else:
            assert found == bad

    def check_counters(self) -> None:
        """R4, at every moment that was looked at; and all of the log, where nothing was repeated
        and no worker has taken its last counts with it."""
        for worker in self.platform.workers:
            if worker.is_running:
                self.watcher.look(worker)
        assert self.watcher.samples > 0
        assert not self.watcher.unbalanced, self.watcher.unbalanced[:3]
        if not self.repeats and all(worker.is_running for worker in self.platform.workers):
            consumed = sum(s["counters"]["consumed"] for s in self.watcher.last.values())
            assert consumed >= len(self.produced)

    async def _load(self, users: list[str]) -> dict[str, StoredUser]:
        session = Session(self.platform.settings.cassandra)
        try:
            store = SequenceStore(session)
            found: dict[str, StoredUser] = {}
            for start in range(0, len(users), 64):
                part = users[start : start + 64]
                answers = await asyncio.gather(*(store.load_all(user) for user in part))
                found.update(zip(part, answers, strict=True))
            return found
        finally:
            await session.close()


def rss_mb(pid: int) -> int:
    """Resident memory of a process; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            pages = int(file.read().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


def report(name: str, **figures: Any) -> None:
    """Keep a test's figures, which it doesn't judge, in build/faults/."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    text = json.dumps(figures, indent=2)
    (REPORTS / f"{name}.json").write_text(text + "\n")
    print(f"{name}: {text}")


async def _end_memberships(platform: Platform) -> None:
    """Leave the group in the name of all its members."""
    settings, group = platform.settings.kafka, platform.settings.sequence_worker.group
    admin = kafka.admin_client(settings)
    described = admin.describe_consumer_groups([group])[group].result()
    if described.state in (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD):
        return
    client = AIOKafkaClient(bootstrap_servers=settings.bootstrap_servers)
    await client.bootstrap()
    try:
        node = await client.coordinator_lookup(CoordinationType.GROUP, group)
        await client.ready(node, group="coordination")
        for member in described.members:
            request = LeaveGroupRequest(group, member.member_id)
            await client.send(node, request, group="coordination")
    finally:
        await client.close()


def _difference(user: str, view: str, found: list[Any], expected: list[Any]) -> str:
    missing = [kept for kept in expected if kept not in set(found)]
    extra = [kept for kept in found if kept not in set(expected)]
    return (
        f"{view} of {user}: {len(found)} events, expected {len(expected)}; "
        f"missing {missing[:5]} ({len(missing)}), too many {extra[:5]} ({len(extra)})"
    )
