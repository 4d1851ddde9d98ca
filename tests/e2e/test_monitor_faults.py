"""Real faults of real workers, as a person sees them on the page: in words and in colour."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import expect

from streams.events import Event
from streams.producer import EventProducer
from tests.e2e.browser import BEHIND, DOWN, MISSING, OK, chromium, chromium_path, colour, open_page
from tests.monitor_process import MonitorProcess
from tests.worker_platform import Platform

pytestmark = pytest.mark.skipif(chromium_path() is None, reason=MISSING)

# What is waited for comes within seconds; a busy machine may take its time.
PATIENCE_MS = 120_000
# The delay is over one objective; what a busy machine takes is under the other.
SETTINGS = {
    "HEADWATER_MONITOR__WINDOW_SECONDS": "15",
    "HEADWATER_MONITOR__SEQUENCE_OBJECTIVE_SECONDS": "60",
    "HEADWATER_MONITOR__REPRESENTATION_OBJECTIVE_SECONDS": "4",
}
# Five seconds, as a histogram's bucket tells them, and what a busy machine adds.
FIVE_SECONDS = re.compile(r"p50 ([4-9]\.\d+|\d\d+) s")


@pytest.fixture
def patience() -> Iterator[None]:
    """For what the browser is to show."""
    expect.set_options(timeout=PATIENCE_MS)
    yield
    expect.set_options(timeout=None)


@contextmanager
def traffic(platform: Platform) -> Iterator[None]:
    """An event per second, each of another user."""
    stop = threading.Event()

    def send() -> None:
        with EventProducer(platform.settings) as producer:
            for number in itertools.count():
                if stop.wait(1.0):
                    return
                at = int(time.time() * 1000)
                producer.send_blocking(
                    Event(f"e{number}", f"user-{number}", f"item-{number}", "view", at)
                )

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("patience")
def test_a_slow_stage_and_a_dead_worker_are_seen(encoding: Platform) -> None:
    encoding.worker("sequence").wait_ready()
    slow = encoding.worker("encoder", HEADWATER_FAULT="delay:before_encode:5000").wait_ready()
    with (
        MonitorProcess(encoding, **SETTINGS) as monitor,
        traffic(encoding),
        chromium() as browser,
    ):
        watched = open_page(browser, monitor.url)
        page = watched.page
        page.evaluate("window.untouched = true")

        stage = page.locator("[data-stage=requested_to_encoded]")
        expect(stage).to_contain_text(FIVE_SECONDS)
        expect(stage).to_contain_text("slowest")
        expect(stage).to_contain_text("takes longer than the objective of 4.0 s")
        expect(page.locator("h1")).to_have_text("Behind")
        expect(page.locator("#verdict-sentence")).to_contain_text("epresentations")
        assert colour(page, "#verdict-word") == BEHIND
        assert colour(page, "[data-stage=requested_to_encoded] .arrow-note") == BEHIND
        assert colour(page, "[data-box=sequence_worker] .chip") == OK

        slow.kill()
        expect(page.locator("[data-box=encoder_worker] .chip")).to_have_text(re.compile("down"))
        expect(page.locator("#verdict-sentence")).to_contain_text("stuck at Encoder worker")
        expect(page.locator("#verdict-sentence")).to_contain_text("Sequences are fresh")
        expect(page.locator("h1")).to_have_text("Behind")
        assert colour(page, "[data-box=encoder_worker] .chip") == DOWN
        assert colour(page, "[data-box=sequence_worker] .chip") == OK

        encoding.worker("encoder").wait_ready()
        expect(page.locator("h1")).to_have_text("Fresh")
        assert colour(page, "#verdict-word") == OK
        assert page.evaluate("window.untouched"), "all of it without a reload"
        page.context.close()
    assert (watched.complaints, watched.strangers) == ([], [])
