"""Screenshots of the monitor's page: `make screenshots`, into docs/screenshots.

`python -m tests.e2e.screenshots URL FOLDER` takes them of a running monitor instead.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser

from tests.e2e.browser import MISSING, ROOT, PageServer, chromium, chromium_path, open_page

FOLDER = ROOT / "docs" / "screenshots"
MAX_BYTES = 200_000
# name, scenario, size, colours
SHOTS = (
    ("monitor-fresh-light", "fresh", (1280, 1000), "light"),
    ("monitor-stuck-dark", "incident", (1280, 1000), "dark"),
    ("monitor-phone-light", "incident", (390, 844), "light"),
)


def take(browser: Browser, url: str, path: Path, size: tuple[int, int], scheme: str) -> None:
    """One picture of what a reader sees first."""
    watched = open_page(browser, url, *size, scheme=scheme)
    watched.page.wait_for_timeout(2500)  # the newest values, and no animation of the beginning
    watched.page.screenshot(path=path, animations="disabled")
    watched.page.context.close()
    if path.stat().st_size > MAX_BYTES:
        raise SystemExit(f"{path} has {path.stat().st_size:,} bytes, more than {MAX_BYTES:,}")
    print(f"{path}: {path.stat().st_size:,} bytes")


def main(url: str = "", folder: str = "") -> None:
    """Of made-up scenarios, or of the monitor at `url`."""
    if chromium_path() is None:
        raise SystemExit(MISSING)
    target = Path(folder) if folder else FOLDER
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, chromium() as browser:
        server = PageServer(Path(place))
        if not url:
            server.start()
        try:
            for name, scenario, size, scheme in SHOTS:
                server.play(scenario)
                take(browser, url or server.url, target / f"{name}.png", size, scheme)
        finally:
            server.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
