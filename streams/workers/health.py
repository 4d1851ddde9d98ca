"""A worker's HTTP side: /metrics, /live, /ready, /state. Read-only; knows no Kafka.

Live means: every assigned partition makes progress, or says what outside it waits for (a restart
would not help then). Ready means: it takes records now; otherwise the body says why not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from aiohttp import web

from streams.metrics import CONTENT_TYPE, Metrics


class Health(Protocol):
    """What the pages show."""

    def stalled(self) -> list[str]:
        """Partitions without progress and without a reason; empty = live."""

    def unready(self) -> list[str]:
        """Why the worker takes no records; empty = ready."""

    def state(self) -> dict[str, Any]:
        """Everything, as one JSON object."""


class HealthServer:
    """Serves the pages on one address; port 0 is a free one."""

    def __init__(self, health: Health, metrics: Metrics, refresh: Callable[[], None]) -> None:
        self._health = health
        self._metrics = metrics
        self._refresh = refresh  # brings gauges up to date before they are read
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> str:
        """Listen; answers the address as a URL. Raises OSError if the port is taken."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/metrics", self._get_metrics),
                web.get("/live", self._get_live),
                web.get("/ready", self._get_ready),
                web.get("/state", self._get_state),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        found_host, found_port = self._runner.addresses[0][:2]
        return f"http://{found_host}:{found_port}"

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _get_metrics(self, _: web.Request) -> web.Response:
        self._refresh()
        return web.Response(body=self._metrics.exposition(), headers={"Content-Type": CONTENT_TYPE})

    async def _get_live(self, _: web.Request) -> web.Response:
        return _answer(self._health.stalled(), "every assigned partition makes progress")

    async def _get_ready(self, _: web.Request) -> web.Response:
        return _answer(self._health.unready(), "ready")

    async def _get_state(self, _: web.Request) -> web.Response:
        self._refresh()
        body = msgspec.json.encode(self._health.state())
        return web.Response(body=body, content_type="application/json")


def _answer(reasons: list[str], fine: str) -> web.Response:
    return web.Response(text="\n".join(reasons or [fine]) + "\n", status=503 if reasons else 200)
