"""Chromium for the tests and screenshots of the page: Debian's own, driven by playwright.

playwright brings no browser along and none is fetched; where there is none, tests skip.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from playwright.sync_api import Browser, Page, sync_playwright

from infra.local.ports import free_port

ROOT = Path(__file__).parents[2]
MISSING = "there is no chromium; install it (on Debian: apt-get install chromium)"
# Nothing but the page is to be asked for; root, which a container runs as, has no sandbox.
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-crash-reporter",
)
_START_SECONDS = 60.0
# Colours of the states as the style sheet has them, light.
BEHIND, DOWN, OK = "rgb(143, 82, 0)", "rgb(179, 38, 30)", "rgb(17, 114, 63)"


def chromium_path() -> str | None:
    """Where the browser is."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a profile of its own, closed at the end."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def colour(page: Page, selector: str) -> str:
    """The colour of an element's text."""
    found = page.locator(selector).evaluate("e => getComputedStyle(e).color")
    assert isinstance(found, str)
    return found


class PageServer:
    """The page in a process of its own, which a test may stop and start again."""

    def __init__(self, folder: Path, token: str = "") -> None:
        self._folder = folder
        self._token = token
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None
        self.play("fresh")

    def play(self, scenario: str) -> None:
        """What is shown from now on; see page_scenarios."""
        part = self._folder / "scenario.part"
        part.write_text(scenario, encoding="utf-8")
        part.replace(self._folder / "scenario")

    def start(self) -> None:
        """Start it, and wait until it listens. Raises RuntimeError with what it said."""
        with (self._folder / "server.log").open("wb") as output:
            self._process = self._launch(output)
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the page's server didn't start: {self.said()}")
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=1):
                return True
        except OSError:
            return False

    def _launch(self, output: IO[bytes]) -> subprocess.Popen[bytes]:
        arguments = [str(self._folder / "scenario"), str(self._port), self._token]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.page_server", *arguments],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
        )

    def said(self) -> str:
        """What the process wrote."""
        return (self._folder / "server.log").read_text(encoding="utf-8")

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it; SIGKILL lets no connection be closed."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(20)
            self._process = None


class Watched:
    """A tab, and all that it said, asked for and heard."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.strangers: list[str] = []
        self.received: list[int] = []
        page.on("console", lambda m: self._said(m.type, m.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self._asked(request.url, url))
        page.on(
            "websocket",
            lambda socket: socket.on("framereceived", lambda data: self.received.append(len(data))),
        )

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(f"{kind}: {text}")

    def _asked(self, asked: str, url: str) -> None:
        if not asked.startswith((url, "data:", "blob:", url.replace("http", "ws"))):
            self.strangers.append(asked)


def open_page(
    browser: Browser, url: str, width: int = 1280, height: int = 800, scheme: str = "light"
) -> Watched:
    """The page in a tab of its own, once its charts are drawn."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    watched = Watched(context.new_page(), url)
    watched.page.goto(url)
    watched.page.locator("#freshness svg text").first.wait_for()
    return watched
