"""The page as a process of its own: `python -m tests.e2e.page_server FILE PORT [TOKEN]`.

Like `headwater monitor` without what it watches; FILE names the scenario that is played.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import uvicorn

from streams.metrics import Metrics
from streams.monitor.app import Guard, make_app
from streams.monitor.page.mount import add_page
from tests.e2e.page_scenarios import Scenarios


def main(file: str, port: str, token: str = "") -> None:
    """Serve until SIGTERM."""
    source = Scenarios(Path(file), time.time)
    app = make_app(source, Metrics(), lambda: "")
    add_page(app, source)
    uvicorn.run(
        Guard(app, token),
        host="127.0.0.1",
        port=int(port),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=2,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
