"""The HTTP side of a process that reads or sends: /metrics, /state, /live, /ready, in a thread.

For the monitor and for Prometheus. `headwater serve` and `headwater produce` call it themselves; a
program of one's own that uses `OnlineFeatures` or `EventProducer` may.
"""

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
from streams.sends import SendCounts
from streams.settings import Settings
from streams.workers.registration import PRODUCER, READER, register, unregister

Clock = Callable[[], float]  # seconds since the epoch


def expose_reads(settings: Settings, now: Clock) -> str:
    """Expose what this process reads until it ends; answers the address as a URL.

    Raises ConfigError if the port is taken.
    """
    own = settings.serve
    address = (own.metrics_host, own.metrics_port)
    return _expose(settings, READER, "serve", address, process_reads().exposition, now)


def expose_sends(counts: SendCounts, settings: Settings, now: Clock) -> str:
    """Expose what a producer (`EventProducer.counts`) sends until this process ends.

    Answers the address as a URL. Raises ConfigError if the port is taken.
    """
    own = settings.producer
    address = (own.metrics_host, own.metrics_port)
    return _expose(settings, PRODUCER, "producer", address, counts.exposition, now)


def _expose(
    settings: Settings,
    role: str,
    section: str,
    address: tuple[str, int],
    exposition: Callable[[float], bytes],
    now: Clock,
) -> str:
    try:
        server = ThreadingHTTPServer(address, _handler(role, exposition, now))
    except OSError as error:
        raise ConfigError(
            f"{address[0]}:{address[1]} can't be listened on ({error.strerror}); "
            f"set {section}.metrics_port (0 takes a free one)"
        ) from error
    threading.Thread(target=server.serve_forever, name="headwater-metrics", daemon=True).start()
    host, port = server.server_address[:2]
    url = f"http://{host!s}:{port}"
    path = register(settings, role, "", url)
    pid = os.getpid()
    # A child that is forked later inherits the call, and this process goes on.
    atexit.register(lambda: unregister(path) if os.getpid() == pid else None)
    return url


def _handler(
    role: str, exposition: Callable[[float], bytes], now: Clock
) -> type[BaseHTTPRequestHandler]:
    state = {"role": role, "pid": os.getpid(), "started_at": now(), "reasons": [], "ready": True}
    pages: dict[str, tuple[str, Callable[[], bytes]]] = {
        "/metrics": (CONTENT_TYPE, lambda: exposition(now())),
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
