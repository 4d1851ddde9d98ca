"""A reading process's HTTP side: /metrics, /state, /live, /ready, in a thread, for the monitor."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec

from streams.errors import ConfigError
from streams.metrics import CONTENT_TYPE
from streams.reads import process_reads
from streams.settings import Settings
from streams.workers.registration import register, unregister

ROLE = "reader"


def expose_reads(settings: Settings, now: Callable[[], float]) -> str:
    """Expose this process's reads until it ends; answers the address as a URL.

    `now` is the clock, seconds since the epoch. For a program of one's own that reads with
    `OnlineFeatures`; `headwater serve` calls it itself. Raises ConfigError if the port is taken.
    """
    own = settings.serve
    try:
        server = ThreadingHTTPServer((own.metrics_host, own.metrics_port), _handler(now))
    except OSError as error:
        raise ConfigError(
            f"{own.metrics_host}:{own.metrics_port} can't be listened on ({error.strerror}); "
            "set serve.metrics_port (0 takes a free one)"
        ) from error
    threading.Thread(target=server.serve_forever, name="headwater-reads", daemon=True).start()
    host, port = server.server_address[:2]
    url = f"http://{host!s}:{port}"
    path = register(settings, ROLE, "", url)
    pid = os.getpid()
    # A child that is forked later inherits the call, and this process goes on.
    atexit.register(lambda: unregister(path) if os.getpid() == pid else None)
    return url


def _handler(now: Callable[[], float]) -> type[BaseHTTPRequestHandler]:
    state = {"role": ROLE, "pid": os.getpid(), "started_at": now(), "reasons": [], "ready": True}
    pages: dict[str, tuple[str, Callable[[], bytes]]] = {
        "/metrics": (CONTENT_TYPE, lambda: process_reads().exposition(now())),
        "/state": ("application/json", lambda: msgspec.json.encode(state)),
        "/live": ("text/plain", lambda: b"live\n"),
        "/ready": ("text/plain", lambda: b"ready\n"),
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            if page is None:
                self.send_error(404)
                return
            content_type, body = page[0], page[1]()
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Requests aren't logged."""

    return Handler
