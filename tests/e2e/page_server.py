"""The page as a process of its own: `python -m tests.e2e.page_server FILE PORT [TOKEN]`.

Like `headwater monitor` without what it watches; FILE names the scenario that is played.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from msgspec.structs import replace

from streams.metrics import Metrics
from streams.monitor.app import make_app
from streams.monitor.page.mount import add_page
from streams.monitor.service import serve_app
from streams.settings import load_settings
from tests.e2e.page_scenarios import Scenarios


def main(file: str, port: str, token: str = "") -> None:
    """Serve until SIGTERM."""
    settings = load_settings()
    own = replace(settings.monitor, host="127.0.0.1", port=int(port), token=token)
    source = Scenarios(Path(file), time.time)
    app = make_app(source, Metrics(), lambda: "")
    add_page(app, source)
    asyncio.run(
        serve_app(replace(settings, monitor=own), app, None, lambda url: print(url, flush=True))
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
