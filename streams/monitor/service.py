"""The monitor's process: sources, collector, canaries and the web side, from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI

from streams.errors import ConfigError, HeadwaterError
from streams.freshness import FEATURES
from streams.metrics import Metrics
from streams.monitor.answers import UserLookup
from streams.monitor.app import LOOPBACK, Guard, make_app
from streams.monitor.canary import Canaries, canary_users
from streams.monitor.collect import Collector
from streams.monitor.lookup import FeastReader
from streams.monitor.page.feed import SnapshotSource
from streams.monitor.running import announced
from streams.monitor.snapshot import Canary, State
from streams.monitor.sources import Sources
from streams.producer import Delivered, EventProducer
from streams.representations import RepresentationView
from streams.sequences import SequenceView
from streams.settings import Settings
from streams.stores import store_pool
from streams.views import DeclaredViews, feature_store
from streams.workers.fault_points import VARIABLE, FaultPoints

_CHECK_SECONDS = 1.0
# A snapshot is too old after so many intervals: the collector hangs.
_MAX_MISSED = 5

AddPage = Callable[[FastAPI, SnapshotSource], None]


class Monitor:
    """One monitor's parts, wired."""

    def __init__(self, settings: Settings, now: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._now = now
        self.metrics = Metrics()
        self.sources = Sources(settings, store_pool(settings.cassandra), now)
        self.collector = Collector(
            settings, self.sources, self.metrics, now, self._canary_summary, self._look_up
        )
        self._faults = FaultPoints(os.environ.get(VARIABLE, ""))
        self._canaries: Canaries | None = None
        self._reader: FeastReader | None = None
        self._declared: DeclaredViews | None = None

    async def run(self) -> None:
        """Watch until it is cancelled."""
        pollers = self.sources.pollers(self.collector.on_workers, self.collector.on_groups)
        try:
            async with asyncio.TaskGroup() as group:
                for work in (*pollers, self.collector.run(), self._keep_reader()):
                    group.create_task(work)
        finally:
            await self.sources.close()

    def problem(self) -> str:
        """Why the newest snapshot can't be believed; "" if it can."""
        snapshot = self.collector.snapshot()
        if snapshot is None:
            return "the first snapshot isn't there yet"
        age = self._now() - snapshot.at / 1000
        limit = _MAX_MISSED * self._settings.monitor.interval_seconds
        return f"the newest snapshot is {age:.0f} s old" if age > limit else ""

    # -- canaries ------------------------------------------------------------------------------

    async def _keep_reader(self) -> None:
        """A reader and canaries for the declared views, again whenever they change."""
        running: asyncio.Task[None] | None = None
        try:
            while True:
                declared = self.sources.features.value(self._now())
                if declared is not None and declared != self._declared:
                    if running is not None:
                        running.cancel()
                        await asyncio.gather(running, return_exceptions=True)
                    running = await self._start_reader(declared)
                    self._declared = declared
                if running is not None and running.done():
                    running.result()  # a programming error shows itself
                await asyncio.sleep(_CHECK_SECONDS)
        finally:
            if running is not None:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    async def _start_reader(self, declared: DeclaredViews) -> asyncio.Task[None] | None:
        views = canary_views(declared)
        if views is None:
            return None
        feast = await asyncio.to_thread(feature_store, self._settings)
        stores = store_pool(self._settings.cassandra).stores()
        self._reader = FeastReader(feast, lambda: declared, stores.sequences, self._now, views)
        if not self._settings.monitor.canary_users:
            return None
        return asyncio.create_task(self._run_canaries(views))

    async def _run_canaries(self, views: tuple[SequenceView, RepresentationView | None]) -> None:
        own = self._settings.monitor
        assert self._reader is not None
        sequence, representation = views
        features = FEATURES if representation is not None else FEATURES[:1]
        users = canary_users(own.canary_users, self._settings.kafka.partitions)
        tasks: set[asyncio.Task[None]] = set()

        def on_delivered(delivered: Delivered, sent_at: float, acked_at: float) -> None:
            task = asyncio.create_task(self.collector.on_delivered(delivered, sent_at, acked_at))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        async with EventProducer(self._settings) as producer:
            self._canaries = Canaries(
                users,
                sequence.event_types[0],
                features,
                send=lambda event: producer.send(event, wait="delivered"),
                reader=self._reader,
                now=self._now,
                interval_seconds=own.canary_interval_seconds,
                timeout_seconds=own.canary_timeout_seconds,
                on_result=self.collector.on_canary,
                on_delivered=on_delivered,
                before_read=lambda: self._faults.reach("before_read"),
            )
            await self._canaries.run()

    def _canary_summary(self, now: float) -> Canary:
        if not self._settings.monitor.canary_users:
            return Canary(problem="canaries are off (setting monitor.canary_users)")
        if self._canaries is None:
            problem = self.sources.features.problem(now) or "no canary was sent yet"
            return Canary(enabled=True, state=State.UNKNOWN, problem=problem)
        found = self._canaries
        return found.results.summary(now, len(found.users), found.features, "")

    async def _look_up(self, user_id: str) -> UserLookup:
        if self._reader is None:
            now = self._now()
            problem = self.sources.features.problem(now) or "the features aren't read yet"
            return UserLookup(
                user_id=user_id, at=round(now * 1000), read_seconds=0.0, problem=problem
            )
        return await self._reader.user(user_id)


def canary_views(
    declared: DeclaredViews,
) -> tuple[SequenceView, RepresentationView | None] | None:
    """The views that canaries go through: a representation and a sequence that feeds it."""
    for representation in declared.representations.values():
        for name in representation.sequences:
            return declared.sequences[name], representation
    for sequence in declared.sequences.values():
        return sequence, None
    return None


def check_address(settings: Settings) -> None:
    """Raises ConfigError if anyone could look: an open address needs a token."""
    own = settings.monitor
    if not own.token and not _is_loopback(own.host):
        raise ConfigError(
            f"monitor.host is {own.host}, which others reach: set monitor.token "
            "(HEADWATER_MONITOR__TOKEN) to a secret, or use 127.0.0.1"
        )


def _is_loopback(host: str) -> bool:
    if host in LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ConfigError if the address can't be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"{host}:{port} can't be listened on ({error.strerror}); "
            "set monitor.host and monitor.port (0 takes a free one)"
        ) from error


class _Server(uvicorn.Server):
    """uvicorn without its signal handling, which ends the process before anything is closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See uvicorn.Server."""
        yield

    def stop(self) -> None:
        """End orderly."""
        self.should_exit = True


async def serve(settings: Settings, add_page: AddPage, on_ready: Callable[[str], None]) -> None:
    """Run the monitor until SIGTERM or SIGINT. Raises ConfigError."""
    check_address(settings)
    monitor = Monitor(settings)
    app = make_app(monitor.collector, monitor.metrics, monitor.problem)
    add_page(app, monitor.collector)
    await serve_app(settings, app, monitor.run(), on_ready)


async def serve_app(
    settings: Settings,
    app: FastAPI,
    work: Coroutine[Any, Any, None] | None,
    on_ready: Callable[[str], None],
) -> None:
    """Serve `app`, with `work` beside it; whichever ends ends the other."""
    listening = listen(settings.monitor.host, settings.monitor.port)
    host, port = listening.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    guarded = Guard(app, settings.monitor.token)
    server = _Server(
        uvicorn.Config(guarded, log_level="warning", access_log=False, timeout_graceful_shutdown=2)
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, server.stop)
    serving = asyncio.create_task(server.serve([listening]))
    working = None if work is None else asyncio.create_task(work)
    tasks = {serving} | ({working} if working is not None else set())
    try:
        # Made-up values are for the page alone: no command is to take them for real ones.
        with contextlib.nullcontext() if work is None else announced(settings, url):
            on_ready(url)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        server.stop()
        if working is not None:
            working.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise HeadwaterError(f"the monitor failed: {outcome}") from outcome
