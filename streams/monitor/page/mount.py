"""Adds the page to the monitor's app. NiceGUI serves it; every asset comes from its package."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from fastapi import FastAPI, Request, Response
from nicegui import core, ui
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint

from streams.monitor.page.feed import KeptHistory, SnapshotSource
from streams.monitor.page.live import LivePage

_FOLDER = Path(__file__).parent
_TITLE = "Headwater monitor"
# What NiceGUI's page may do: nothing that leaves this server. Vue compiles templates in the
# browser, hence unsafe-eval.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
# How long a tab that lost its connection keeps its place; longer ones load the page again.
_RECONNECT_SECONDS = 10.0


def add_page(
    app: FastAPI,
    source: SnapshotSource,
    now: Callable[[], float] = time.time,
    *,
    note: str = "",
) -> None:
    """Serve the page of `source` at `/`. Call it once, after the app's own routes.

    `note` is shown on top of the page, such as that the values are made up.
    """
    history = KeptHistory(source, now)

    def build() -> None:
        ui.add_css(_FOLDER / "page.css")
        ui.add_head_html(_head(), shared=False)
        LivePage(source, history, now, note).start()

    # Who may open a socket: pages of this server, not any page in the reader's browser.
    core.sio.eio.cors_allowed_origins = None
    app.add_middleware(BaseHTTPMiddleware, dispatch=_restrict)
    ui.page("/", title=_TITLE, favicon=_FOLDER / "icon.svg", language="en-US")(build)
    ui.run_with(
        app,
        title=_TITLE,
        dark=None,
        tailwind=False,
        show_welcome_message=False,
        reconnect_timeout=_RECONNECT_SECONDS,
        binding_refresh_interval=None,
    )


def _head() -> str:
    script = (_FOLDER / "page.js").read_text(encoding="utf-8")
    return (
        '<meta name="description" content="How fresh Headwater\'s features are, live">'
        f"<script>{script}</script>"
    )


async def _restrict(request: Request, call_next: RequestResponseEndpoint) -> Response:
    response = await call_next(request)
    response.headers.setdefault("Content-Security-Policy", _POLICY)
    response.headers.setdefault("Referrer-Policy", "no-referrer")
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    return response
