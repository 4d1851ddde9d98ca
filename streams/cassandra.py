"""Cassandra: sessions for the hot path, over acsylla.

Knows nothing of tables: the `*_store` modules do, and `streams.schema_store` creates them.
What a caller gets to see of a failure is one of two errors, after what can be done about it:

| error            | when                                                                         |
|------------------|------------------------------------------------------------------------------|
| StoreUnavailable | no answer in time, no host, no connection, too few replicas, overloaded,     |
|                  | bootstrapping, read or write timeout: the same call may succeed later        |
| StoreRejected    | everything that was answered with "no": bad values, unknown tables, rights,  |
|                  | a failing disk (read or write failure, server error), truncation errors      |
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import acsylla
from acsylla import errors
from acsylla._cython.cyacsylla import Session as Driver

from streams.errors import HeadwaterError, StoreRejected, StoreUnavailable
from streams.settings import CassandraSettings

Values = Sequence[Any]
Rows = list[list[Any]]

_UNAVAILABLE = (
    errors.CassErrorLibHostResolution,
    errors.CassErrorLibNoHostsAvailable,
    errors.CassErrorLibNoStreams,
    errors.CassErrorLibRequestQueueFull,
    errors.CassErrorLibRequestTimedOut,
    errors.CassErrorLibUnableToConnect,
    errors.CassErrorLibUnableToDetermineProtocol,
    errors.CassErrorLibWriteError,
    errors.CassErrorServerIsBootstrapping,
    errors.CassErrorServerOverloaded,
    errors.CassErrorServerReadTimeout,
    errors.CassErrorServerUnavailable,
    errors.CassErrorServerWriteTimeout,
)
# Tasks of one call: more of them wait for each other rather than for the store (100 reads take a
# tenth longer with a task each).
_MAX_READERS = 32
# What binding raises for a value that the column can't hold.
_BAD_VALUE = (TypeError, ValueError, OverflowError)

# A hung node is noticed by its missing heartbeats, a returning one within two seconds.
_HEARTBEAT_SECONDS = 5
_IDLE_TIMEOUT_SECONDS = 20
_RECONNECT_BASE_MS, _RECONNECT_MAX_MS = 200, 2_000


class Statement(NamedTuple):
    """CQL with `?` markers. An idempotent one is retried by the driver on another node."""

    cql: str
    idempotent: bool = True


class Session:
    """The way to one keyspace from one event loop: prepared statements, bounded, with deadlines.

    Connects on first use, and again after a failed attempt; a lost connection is restored by the
    driver. Every call ends within its timeout (seconds; default: the settings' request timeout),
    connecting and waiting for a free slot included. Reads and writes go to a quorum of the local
    datacenter, so that what is written is read.
    """

    def __init__(self, settings: CassandraSettings) -> None:
        self._settings = settings
        self._address = f"{','.join(settings.contact_points)}:{settings.port}"
        self._slots = _Slots(settings.max_requests_in_flight)
        self._driver: Any = None
        self._opening: asyncio.Task[Any] | None = None
        self._prepared: dict[str, Any] = {}
        _sessions.add(self)

    async def connect(self) -> None:
        """Connect now, within the request timeout. Raises StoreUnavailable or StoreRejected."""
        limit = self._settings.request_timeout_seconds
        try:
            async with asyncio.timeout(limit):
                if self._driver is None:
                    await self._connect()
        except TimeoutError:
            raise self._no_answer(limit) from None
        except errors.CassException as error:
            raise self._translated(error) from error

    async def execute(
        self, statement: Statement, values: Values = (), *, timeout: float | None = None
    ) -> Rows:
        """Run one statement. Raises StoreUnavailable or StoreRejected."""
        limit = timeout or self._settings.request_timeout_seconds
        prepared = self._prepared.get(statement.cql)
        try:
            if prepared is not None and self._slots.take_free():
                # Nothing to wait for but the answer, which the driver itself stops waiting for.
                try:
                    bound = self._bound(prepared, statement, values, limit)
                    return _rows(await self._driver.execute(bound))
                finally:
                    self._slots.give()
            async with asyncio.timeout(limit), self._slots:
                bound = self._bound(await self._prepare(statement), statement, values, limit)
                return _rows(await self._driver.execute(bound))
        except TimeoutError:
            raise self._no_answer(limit) from None
        except errors.CassException as error:
            raise self._translated(error) from error

    async def execute_batch(
        self, parts: Sequence[tuple[Statement, Values]], *, timeout: float | None = None
    ) -> None:
        """Write statements of ONE partition as one unlogged batch: atomic and isolated.

        Each part carries its own timestamp, so that a retry changes nothing.
        """
        limit = timeout or self._settings.request_timeout_seconds
        known = all(statement.cql in self._prepared for statement, _ in parts)
        try:
            if known and self._slots.take_free():
                try:
                    await self._driver.execute_batch(self._batch(parts, limit))
                finally:
                    self._slots.give()
                return
            async with asyncio.timeout(limit), self._slots:
                for statement, _ in parts:
                    await self._prepare(statement)
                await self._driver.execute_batch(self._batch(parts, limit))
        except TimeoutError:
            raise self._no_answer(limit) from None
        except errors.CassException as error:
            raise self._translated(error) from error

    async def execute_many(
        self, statement: Statement, many: Sequence[Values], *, timeout: float | None = None
    ) -> list[Rows | HeadwaterError]:
        """Run one statement for many values, side by side; the outcome of each, in their order.

        One that fails, or isn't answered when the time is over, is an error in its place and
        leaves the others alone. The timeout is for all of them together.
        """
        if len(many) == 1:  # what most readers ask for: without a task of its own
            return [await self._outcome(statement, many[0], timeout)]
        limit = timeout or self._settings.request_timeout_seconds
        outcomes: list[Rows | HeadwaterError | None] = [None] * len(many)
        waiting = iter(enumerate(many))

        async def work() -> None:
            for index, values in waiting:
                try:
                    async with self._slots:
                        prepared = await self._prepare(statement)
                        bound = self._bound(prepared, statement, values, limit)
                        outcomes[index] = _rows(await self._driver.execute(bound))
                except errors.CassException as error:
                    outcomes[index] = self._translated(error)
                except HeadwaterError as error:
                    outcomes[index] = error

        readers = min(self._workers(many), _MAX_READERS)
        await _wait([asyncio.create_task(work()) for _ in range(readers)], limit)
        return [self._no_answer(limit) if found is None else found for found in outcomes]

    async def _outcome(
        self, statement: Statement, values: Values, limit: float | None
    ) -> Rows | HeadwaterError:
        try:
            return await self.execute(statement, values, timeout=limit)
        except HeadwaterError as error:
            return error

    async def execute_batches(
        self, batches: Sequence[Sequence[tuple[Statement, Values]]]
    ) -> list[HeadwaterError | None]:
        """Write many batches, each of one partition, side by side; the outcome of each.

        The timeout is for each of them. Once the store is unavailable, the rest isn't tried.
        """
        outcomes: list[HeadwaterError | None] = [None] * len(batches)
        waiting = iter(enumerate(batches))
        away: StoreUnavailable | None = None

        async def work() -> None:
            nonlocal away
            for index, parts in waiting:
                try:
                    if away is None:
                        await self.execute_batch(parts)
                    else:
                        outcomes[index] = away
                except StoreUnavailable as error:
                    outcomes[index] = away = error
                except HeadwaterError as error:
                    outcomes[index] = error

        tasks = [asyncio.create_task(work()) for _ in range(self._workers(batches))]
        await _wait(tasks, None)
        return outcomes

    def _workers(self, items: Sequence[Any]) -> int:
        return min(len(items), self._settings.max_requests_in_flight)

    async def close(self) -> None:
        """Close the connections; a later call opens them again."""
        driver, self._driver = self._driver, None
        self._prepared.clear()
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        if driver is not None:
            await driver.close()

    async def _prepare(self, statement: Statement) -> Any:
        if self._driver is None:
            await self._connect()
        prepared = self._prepared.get(statement.cql)
        if prepared is None:
            prepared = await self._driver.create_prepared(
                statement.cql, consistency=acsylla.Consistency.LOCAL_QUORUM
            )
            self._prepared[statement.cql] = prepared
        return prepared

    def _batch(self, parts: Sequence[tuple[Statement, Values]], limit: float) -> Any:
        batch = acsylla.create_batch_unlogged(timeout=limit)
        batch.set_is_idempotent(True)
        batch.set_consistency(acsylla.Consistency.LOCAL_QUORUM)
        for statement, values in parts:
            prepared = self._prepared[statement.cql]
            batch.add_statement(self._bound(prepared, statement, values, limit))
        return batch

    def _bound(self, prepared: Any, statement: Statement, values: Values, limit: float) -> Any:
        try:
            bound = prepared.bind(list(values), timeout=limit)
        except _BAD_VALUE as error:
            raise StoreRejected(f"a value can't be stored: {error}") from error
        bound.set_is_idempotent(statement.idempotent)
        return bound

    async def _connect(self) -> None:
        # Shielded: a caller whose time is over leaves, the attempt serves the next one.
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(_consume)
        self._driver = await asyncio.shield(self._opening)

    async def _open(self) -> Any:
        settings = self._settings
        cluster = acsylla.create_cluster(
            contact_points=list(settings.contact_points),
            port=settings.port,
            connect_timeout=settings.connect_timeout_seconds,
            request_timeout=settings.request_timeout_seconds,
            load_balance_dc_aware=settings.local_datacenter,
            serial_consistency=acsylla.Consistency.LOCAL_SERIAL,
            exponential_reconnect_base_delay_ms=_RECONNECT_BASE_MS,
            exponential_reconnect_max_delay_ms=_RECONNECT_MAX_MS,
            heartbeat_interval_sec=_HEARTBEAT_SECONDS,
            idle_timeout_sec=_IDLE_TIMEOUT_SECONDS,
            application_name="headwater",
            # What goes wrong is raised; the driver's own log would tell it a second time.
            log_level="disabled",
        )
        # What `cluster.create_session` does, with a hand on the object: freeing it while it
        # connects to a hung node blocks for ever, so that a cancelled attempt is never freed.
        driver = Driver(cluster, keyspace=settings.keyspace)
        _keep_for_ever(driver)
        try:
            await driver._connect()
        except errors.CassException:
            _let_go(driver)
            raise
        _let_go(driver)
        return driver

    def _no_answer(self, limit: float) -> StoreUnavailable:
        return StoreUnavailable(f"Cassandra at {self._address} didn't answer within {limit:g} s")

    def _translated(self, error: errors.CassException) -> HeadwaterError:
        text = str(error).strip().rstrip(":") or type(error).__name__
        if isinstance(error, errors.CassErrorLibUnableToSetKeyspace):
            return StoreRejected(
                f"keyspace {self._settings.keyspace} isn't there: run `headwater apply` ({text})"
            )
        if isinstance(error, _UNAVAILABLE):
            return StoreUnavailable(f"Cassandra at {self._address}: {text}")
        return StoreRejected(f"Cassandra at {self._address} refused: {text}")


class _Slots:
    """A semaphore that costs nothing while there is room; asyncio's takes longer than binding the
    statement. First come, first served; for one event loop."""

    __slots__ = ("_free", "_waiting")

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take_free(self) -> bool:
        """Take a slot if one is free."""
        if not self._free:
            return False
        self._free -= 1
        return True

    def give(self) -> None:
        """Give a slot back, to the one who waits the longest."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1

    async def __aenter__(self) -> None:
        if self.take_free():
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # handed over in the same moment
                self.give()
            raise

    async def __aexit__(self, *_: object) -> None:
        self.give()


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _abandon_sessions() -> None:
    """In a forked child: keep the parent's sessions for ever, untouched.

    Freeing one joins threads that the child doesn't have, which would hang it at its exit.
    """
    for session in _sessions:
        _keep_for_ever(session)


def _keep_for_ever(thing: object) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _let_go(thing: object) -> None:
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(thing))


os.register_at_fork(after_in_child=_abandon_sessions)


def _rows(result: Any) -> Rows:
    return [row.as_list() for row in result]


def _consume(task: asyncio.Task[Any]) -> None:
    """Look at a task's error, so that asyncio doesn't report one that nobody waited for."""
    if not task.cancelled():
        task.exception()


async def _wait(tasks: list[asyncio.Task[None]], limit: float | None) -> None:
    """Wait for the tasks until the time is over, then cancel what is left; also if cancelled."""
    if not tasks:
        return
    try:
        _, late = await asyncio.wait(tasks, timeout=limit)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
    for task in late:
        task.cancel()
    if late:
        await asyncio.gather(*late, return_exceptions=True)
    for task in tasks:
        if not task.cancelled():
            task.result()  # a programming error shows itself
