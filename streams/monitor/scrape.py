"""HTTP sources: the workers' /metrics and /state, and Triton's health and models."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec

from streams.errors import HeadwaterError
from streams.freshness import ClockOffset, round_trip_offset
from streams.metrics import PROCESS_TIME
from streams.monitor.exposition import Exposed, parse
from streams.settings import Settings
from streams.workers.registration import registered_workers

_MAX_AT_ONCE = 32
_MAX_ANSWER_BYTES = 16 * 2**20


class Target(msgspec.Struct, frozen=True):
    """A process to read. `runs` False: its file is there, its process isn't."""

    id: str
    role: str
    url: str
    runs: bool = True


class WorkerReading(msgspec.Struct, frozen=True):
    """What a process answered. `exposed` None: it didn't, `error` says how."""

    target: Target
    duration_seconds: float
    exposed: Exposed | None = None
    state: dict[str, Any] = {}
    clock: ClockOffset | None = None
    error: str = ""


class ModelState(msgspec.Struct, frozen=True):
    """A model version as Triton knows it."""

    name: str
    version: str
    ready: bool


class TritonReading(msgspec.Struct, frozen=True):
    """Whether Triton is ready, and its models."""

    ready: bool
    models: tuple[ModelState, ...]


async def find_targets(settings: Settings) -> list[Target]:
    """The processes in `monitor.targets`, or without it those that are registered in this home."""
    if not settings.monitor.targets:
        local = await asyncio.to_thread(registered_workers, settings)
        return [Target(f"{a.role}-{a.pid}", a.role, a.url, runs) for a, runs in local]
    found: dict[str, Target] = {}
    for text in settings.monitor.targets:
        found |= {target.url: target for target in await _resolved(text)}
    return list(found.values())


async def _resolved(text: str) -> list[Target]:
    """A name may stand for many processes, such as a headless service's."""
    host, _, port = text.rpartition(":")
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return [Target(text, "", f"http://{text}")]  # shown as a worker that doesn't answer
    addresses = sorted({info[4][0] for info in infos})
    hosts = [f"[{address}]" if ":" in str(address) else str(address) for address in addresses]
    return [Target(f"{name}:{port}", "", f"http://{name}:{port}") for name in hosts]


class Scraper:
    """Reads processes over HTTP; `now` is this machine's clock, seconds since the epoch."""

    def __init__(self, timeout_seconds: float, now: Callable[[], float]) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._seconds = timeout_seconds
        self._now = now
        self._slots = asyncio.Semaphore(_MAX_AT_ONCE)
        self._http: aiohttp.ClientSession | None = None

    async def read_workers(self, targets: list[Target]) -> list[WorkerReading]:
        """Read all of them side by side; one that fails is its error."""
        return list(await asyncio.gather(*(self._read_worker(target) for target in targets)))

    async def read_triton(self, http_url: str) -> TritonReading:
        """Raises aiohttp.ClientError, an OSError, or ValueError."""
        base = http_url if "://" in http_url else f"http://{http_url}"
        http = self._session()
        try:
            async with http.get(f"{base}/v2/health/ready") as answer:
                ready = answer.status == 200
            async with http.post(f"{base}/v2/repository/index", data=b"{}") as answer:
                answer.raise_for_status()
                index = msgspec.json.decode(await answer.read())
        except aiohttp.ClientError as error:
            raise HeadwaterError(_reason(error, base)) from error
        models = tuple(
            ModelState(row["name"], str(row.get("version", "")), row.get("state") == "READY")
            for row in index
        )
        return TritonReading(ready, models)

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()

    async def _read_worker(self, target: Target) -> WorkerReading:
        started = time.monotonic()
        if not target.runs:
            return WorkerReading(target, 0.0, error="the process has ended without signing off")
        async with self._slots:
            try:
                return await self._read(target)
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                reason = _reason(error, target.url, self._seconds)
                return WorkerReading(target, time.monotonic() - started, error=reason)

    async def _read(self, target: Target) -> WorkerReading:
        http, asked_at, started = self._session(), self._now(), time.monotonic()
        async with http.get(f"{target.url}/metrics") as answer:
            answer.raise_for_status()
            # The values were taken before the first byte came.
            answered_at = self._now()
            text = (await _whole(answer)).decode()
        exposed = parse(text)
        async with http.get(f"{target.url}/state") as answer:
            answer.raise_for_status()
            state = msgspec.json.decode(await answer.read(), type=dict[str, Any])
        their_time = exposed.gauges.get((PROCESS_TIME.name, ()))
        clock = None if their_time is None else round_trip_offset(asked_at, their_time, answered_at)
        return WorkerReading(target, time.monotonic() - started, exposed, state, clock)

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(timeout=self._timeout, auto_decompress=True)
        return self._http


async def _whole(answer: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in answer.content.iter_chunked(65_536):
        parts.append(part)
        size += len(part)
        if size > _MAX_ANSWER_BYTES:
            raise ValueError(f"an answer of more than {_MAX_ANSWER_BYTES} bytes")
    return b"".join(parts)


def _reason(error: Exception, url: str, seconds: float | None = None) -> str:
    if isinstance(error, TimeoutError):
        limit = "" if seconds is None else f" within {seconds:g} s"
        return f"no answer from {url}{limit}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"nothing answers at {url}"
    return f"{url}: {error or type(error).__name__}"
