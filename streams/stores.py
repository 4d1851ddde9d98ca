"""All stores over one session, and one such set for every event loop that asks.

acsylla ties a session to the loop that made it, and its threads don't survive a fork, so that a
set belongs to one loop of one process. Sync callers share the process's loops for them.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from streams.cassandra import Session
from streams.errors import StoreUnavailable
from streams.feature_row_store import Arrivals, FeatureRowStore
from streams.recent import RecentValues
from streams.representation_store import ActiveVersions, RepresentationStore
from streams.sequence_store import SequenceStore
from streams.settings import CassandraSettings
from streams.sync_loops import sync_loops

T = TypeVar("T")


class Stores:
    """The stores of one keyspace, in one event loop."""

    def __init__(self, settings: CassandraSettings, arrivals: Arrivals) -> None:
        self.session = Session(settings)
        self.sequences = SequenceStore(self.session)
        self.representations = RepresentationStore(self.session)
        self.feature_rows = FeatureRowStore(self.session, arrivals)
        self.active_versions = ActiveVersions(self.representations)
        self.generations = RecentValues(self.feature_rows.generation)


class StorePool:
    """Stores of one keyspace for any loop, thread and process. Get it by `store_pool`."""

    def __init__(self, settings: CassandraSettings) -> None:
        self.settings = settings
        self._arrivals = Arrivals()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._stores: dict[asyncio.AbstractEventLoop, Stores] = {}

    def stores(self) -> Stores:
        """The running loop's stores."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._stores = os.getpid(), {}
            found = self._stores.get(loop)
            if found is None:
                # Stores of loops that are over go with them: nobody can await their answers.
                self._stores = {k: v for k, v in self._stores.items() if not k.is_closed()}
                found = self._stores[loop] = Stores(self.settings, self._arrivals)
        return found

    def run(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        """Run `work` for a sync caller. Raises StoreUnavailable when the time is over."""
        loops = sync_loops()
        loops.at_close(self.close)
        try:
            return loops.run(work, timeout)
        except TimeoutError as error:
            raise StoreUnavailable(f"Cassandra: {error}") from None

    def forget_generation(self, view_name: str) -> None:
        """Have every loop of this process look a view's generation up again."""
        with self._lock:
            for found in self._stores.values():
                found.generations.drop(view_name)

    async def close(self) -> None:
        """Close the running loop's session."""
        with self._lock:
            found = self._stores.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.session.close()


_lock = threading.Lock()
_pools: dict[CassandraSettings, StorePool] = {}


def store_pool(settings: CassandraSettings) -> StorePool:
    """The process's pool for these settings; as many as there are different ones."""
    with _lock:
        return _pools.setdefault(settings, StorePool(settings))


def _fresh_locks() -> None:
    """In a forked child: a lock that another thread held at the fork would never be free."""
    global _lock
    _lock = threading.Lock()
    for pool in _pools.values():
        pool._lock = threading.Lock()


os.register_at_fork(after_in_child=_fresh_locks)
