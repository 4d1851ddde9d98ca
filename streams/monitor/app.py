"""The monitor's HTTP side: JSON for the page and scripts, Prometheus' metrics, who may look.

Read-only: every path answers GET alone. With a token, a request needs it as `Authorization: Bearer`
or, for browsers, once as `?token=`, which sets a cookie. Without one only loopback is served, and
only under a loopback name, so that a web page elsewhere can't read it by rebinding its own name.
/metrics and /healthz are open, as the workers' are: they hold nothing of any user.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from fastapi import FastAPI, HTTPException, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from streams.metrics import CONTENT_TYPE, Metrics
from streams.monitor.page.feed import SnapshotSource
from streams.monitor.snapshot import Part, encode

COOKIE = "headwater_monitor"
MAX_RANGE_SECONDS = 7 * 86_400
LOOPBACK = ("127.0.0.1", "::1", "localhost")
_OPEN_PATHS = {"/healthz", "/metrics"}


def make_app(
    source: SnapshotSource, metrics: Metrics, is_current: Callable[[], str], **options: Any
) -> FastAPI:
    """The app; `is_current` answers why the newest snapshot isn't one, "" if it is."""
    app = FastAPI(title="Headwater monitor", docs_url=None, redoc_url=None, openapi_url=None,
                  **options)  # fmt: skip

    @app.get("/api/snapshot")
    async def get_snapshot() -> Response:
        snapshot = source.snapshot()
        if snapshot is None:
            raise HTTPException(503, "the first snapshot isn't there yet")
        return _json(snapshot)

    @app.get("/api/history")
    async def get_history(seconds: int = 3600) -> Response:
        if not 0 < seconds <= MAX_RANGE_SECONDS:
            raise HTTPException(422, f"seconds must be 1 to {MAX_RANGE_SECONDS}")
        return _json(await source.history(seconds))

    @app.get("/api/users/{user_id:path}")
    async def get_user(user_id: str) -> Response:
        return _json(await source.user(user_id))

    @app.get("/metrics")
    async def get_metrics() -> Response:
        return Response(metrics.exposition(), headers={"Content-Type": CONTENT_TYPE})

    @app.get("/healthz")
    async def get_health() -> Response:
        problem = is_current()
        return Response(f"{problem or 'ok'}\n", status_code=503 if problem else 200,
                        media_type="text/plain")  # fmt: skip

    return app


def _json(part: Part) -> Response:
    return Response(encode(part), media_type="application/json",
                    headers={"Cache-Control": "no-store"})  # fmt: skip


class Guard:
    """Lets in who may look: HTTP and WebSockets alike."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] not in ("http", "websocket") or scope["path"] in _OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        if not self._token:
            if _host_name(headers.get("host", "")) in LOOPBACK:
                await self._app(scope, receive, send)
            else:
                await _refuse(scope, send, 421, "ask for 127.0.0.1 or localhost")
            return
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["type"] == "http" and self._is_token(given):
            await _remember(scope, send, self._token)
        elif self._is_token(_bearer(headers)) or self._is_token(_cookie(headers)):
            await self._app(scope, receive, send)
        else:
            await _refuse(scope, send, 401, "a token is needed: /?token=… or Authorization: Bearer")

    def _is_token(self, given: str) -> bool:
        return bool(given) and hmac.compare_digest(given.encode(), self._token.encode())


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def _bearer(headers: dict[str, str]) -> str:
    kind, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if kind.lower() == "bearer" else ""


def _cookie(headers: dict[str, str]) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None else ""


async def _remember(scope: Scope, send: Send, token: str) -> None:
    """Set the cookie and come again without the token, which would stay in the history."""
    cookie = SimpleCookie({COOKIE: token})
    cookie[COOKIE]["httponly"], cookie[COOKIE]["samesite"] = True, "Strict"
    cookie[COOKIE]["path"] = "/"
    await _answer(send, 303, b"", [
        (b"location", str(scope["path"]).encode()),
        (b"set-cookie", cookie[COOKIE].OutputString().encode()),
    ])  # fmt: skip


async def _refuse(scope: Scope, send: Send, status: int, text: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": text})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await _answer(send, status, f"{text}\n".encode(), headers)


async def _answer(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})
