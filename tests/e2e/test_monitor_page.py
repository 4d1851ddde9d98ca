"""The monitor's page in a real browser, against made-up states of what it watches."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser import (
    BEHIND,
    DOWN,
    MISSING,
    OK,
    PageServer,
    Watched,
    chromium,
    chromium_path,
    colour,
    open_page,
)

pytestmark = pytest.mark.skipif(chromium_path() is None, reason=MISSING)

SIZES = {"phone": (390, 844), "small phone": (360, 700), "tablet": (820, 1180),
         "laptop": (1280, 800), "wide": (1920, 1080)}  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    """One server for the tests that don't stop it."""
    server = PageServer(tmp_path_factory.mktemp("page"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(running: PageServer) -> Iterator[PageServer]:
    running.play("fresh")
    yield running
    assert "Traceback" not in running.said()


@pytest.fixture
def tab(browser: Browser, server: PageServer) -> Iterator[Watched]:
    """The page on a laptop; nothing may have gone wrong in it at the end."""
    watched = open_page(browser, server.url)
    yield watched
    watched.page.context.close()
    assert watched.complaints == []
    assert watched.strangers == []


def verdict(page: Page) -> str:
    return page.locator("#verdict-word").inner_text()


def look_up(page: Page, user_id: str) -> None:
    page.get_by_label("User id").fill(user_id)
    page.keyboard.press("Enter")


# -- what is shown ---------------------------------------------------------------------------------


def test_it_loads_and_says_whether_it_is_fresh(tab: Watched) -> None:
    page = tab.page
    expect(page).to_have_title("Headwater monitor")
    expect(page.locator("h1")).to_have_text("Fresh")
    expect(page.locator("#verdict")).to_contain_text("both objectives are met")
    sequences = page.get_by_role("region", name="Sequences")
    expect(sequences).to_contain_text("240 ms")
    expect(sequences).to_contain_text("p50 64 ms")


def test_every_box_and_arrow_is_in_the_picture(tab: Watched) -> None:
    way = tab.page.locator("#way")
    boxes = way.locator("[data-box]")
    assert boxes.evaluate_all("found => found.map(e => e.dataset.box)") == [
        *("producers", "events", "sequence_worker", "sequences", "refresh_requests"),
        *("encoder_worker", "encoder", "representations", "readers"),
    ]
    stages = way.locator("[data-stage]")
    assert stages.evaluate_all("found => found.map(e => e.dataset.stage)") == [
        *("produced_to_broker", "broker_to_folded", "folded_to_stored", "stored_to_requested"),
        *("requested_to_encoded", "encoded_to_stored", "stored_to_read"),
    ]
    arrow = way.locator("[data-stage=broker_to_folded]")
    expect(arrow).to_contain_text("512/s")
    expect(arrow).to_contain_text("p50 38 ms · p99 140 ms")


def test_every_part_of_the_snapshot_is_shown(tab: Watched, server: PageServer) -> None:
    server.play("incident")
    page = tab.page
    expect(page.locator("h1")).to_have_text("Behind")
    for anchor, text in {
        "freshness": "burns fast",
        "coverage": "98.3 % covered: 405 of 412 active users, 377 up to date",
        "cost": "4.2 ms",
        "partitions": "1 stalled",
        "workers": "the process has ended",
        "dead-letters": "JSON is malformed",
        "versions": "recall at 10 0.127",
        "canaries": "99.38 %",
        "clocks": "+4.98 s ahead",
        "sources": "no answer within 2 s",
    }.items():
        expect(page.locator(f"#{anchor}")).to_contain_text(text)


def test_a_value_of_a_dead_letter_is_text(tab: Watched, server: PageServer) -> None:
    server.play("incident")
    expect(tab.page.locator("#dead-letters")).to_contain_text("<html><head><title>502")
    expect(tab.page).to_have_title("Headwater monitor")


@pytest.mark.parametrize(
    ("scenario", "word"),
    [("idle", "Idle"), ("blind", "Can't tell"), ("empty", "Idle"), ("incident", "Behind")],
)
def test_states_have_words_of_their_own(
    tab: Watched, server: PageServer, scenario: str, word: str
) -> None:
    server.play(scenario)
    expect(tab.page.locator("h1")).to_have_text(word)


def test_what_can_not_be_told_is_not_shown_as_well(tab: Watched, server: PageServer) -> None:
    server.play("blind")
    page = tab.page
    expect(page.locator("h1")).to_have_text("Can't tell")
    expect(page.locator("[data-box=events] .chip")).to_have_text(re.compile("can't tell"))
    assert page.locator("#verdict, #feature-sequence .chip, [data-box=events]").evaluate_all(
        "found => found.filter(e => e.classList.contains('is-ok')).length"
    ) == 0  # fmt: skip


def test_no_rows_of_what_can_not_be_told(tab: Watched, server: PageServer) -> None:
    server.play("blind")
    panel = tab.page.locator("#partitions")
    expect(panel).to_contain_text("Can't tell: Kafka doesn't answer")
    expect(panel.get_by_text("0 ok")).to_be_hidden()
    expect(panel.get_by_text("No partition needs a look")).to_be_hidden()


def test_no_snapshot_yet_is_said(browser: Browser, server: PageServer) -> None:
    server.play("nothing")
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.url)
    expect(page.locator("h1")).to_have_text("Can't tell")
    server.play("fresh")
    expect(page.locator("h1")).to_have_text("Fresh")
    context.close()


# -- how it changes --------------------------------------------------------------------------------


def test_a_fault_appears_without_reload_as_text_and_colour(
    tab: Watched, server: PageServer
) -> None:
    page = tab.page
    page.evaluate("window.untouched = true")
    assert colour(page, "#verdict-word") == OK
    server.play("incident")
    expect(page.locator("h1")).to_have_text("Behind")
    expect(page.locator("#verdict-sentence")).to_contain_text("stuck at the encoder worker")
    expect(page.locator("#verdict [role=status]")).to_contain_text("Behind. Representations are")
    expect(page.locator("[data-box=encoder_worker] .chip")).to_contain_text("down")
    expect(page.locator("[data-stage=requested_to_encoded]")).to_contain_text("slowest")
    assert colour(page, "#verdict-word") == BEHIND
    assert colour(page, "[data-box=encoder_worker] .chip") == DOWN
    assert colour(page, "[data-box=sequence_worker] .chip") == OK
    server.play("fresh")
    expect(page.locator("h1")).to_have_text("Fresh")
    assert page.evaluate("window.untouched")


def test_waiting_grows_before_the_readers_eyes(tab: Watched, server: PageServer) -> None:
    server.play("incident")
    page = tab.page
    expect(page.locator("h1")).to_have_text("Behind")
    first = page.locator("#verdict-sentence").inner_text()
    expect(page.locator("#verdict-sentence")).not_to_have_text(first)


def test_an_update_leaves_the_focus_and_the_spoken_text_alone(
    tab: Watched, server: PageServer
) -> None:
    server.play("incident")
    page = tab.page
    expect(page.locator("h1")).to_have_text("Behind")
    field = page.get_by_label("User id")
    field.fill("half a na")
    spoken = page.locator("#verdict [role=status]").inner_text()
    sentence = page.locator("#verdict-sentence").inner_text()
    expect(page.locator("#verdict-sentence")).not_to_have_text(sentence)
    expect(field).to_be_focused()
    expect(field).to_have_value("half a na")
    assert page.locator("#verdict [role=status]").inner_text() == spoken


def test_a_collector_that_stands_still_is_can_not_tell(tab: Watched, server: PageServer) -> None:
    server.play("frozen")
    expect(tab.page.locator("h1")).to_have_text("Can't tell", timeout=15_000)
    expect(tab.page.locator("#verdict")).to_contain_text("has measured nothing for")
    assert "grayscale" in tab.page.locator("#way").evaluate("e => getComputedStyle(e).filter")


def test_it_comes_back_after_the_monitor_was_killed(browser: Browser, tmp_path: Path) -> None:
    own = PageServer(tmp_path)
    own.start()
    try:
        watched = open_page(browser, own.url)
        page = watched.page
        expect(page.locator("h1")).to_have_text("Fresh")
        own.stop(signal.SIGKILL)
        lost = page.get_by_role("alert").filter(has_text="hears nothing from the monitor")
        lost.wait_for(timeout=20_000)
        expect(lost).to_contain_text("Can't tell")
        expect(page.locator("h1")).to_be_hidden()
        assert "grayscale" in page.locator(".hero").evaluate("e => getComputedStyle(e).filter")
        own.play("incident")
        own.start()
        expect(page.locator("h1")).to_have_text("Behind", timeout=30_000)
        expect(lost).to_have_count(0)
        page.context.close()
        assert watched.strangers == []
    finally:
        own.stop()


# -- what a reader does ----------------------------------------------------------------------------


def test_look_up_of_a_user(tab: Watched) -> None:
    page = tab.page
    look_up(page, "u-881")
    expect(page.get_by_label("User id")).to_be_focused()
    answer = page.locator("#lookup")
    for text in (
        "u-881, read in 11 ms",
        "precomputed",
        "user_encoder, version 2",
        "no: a newer event is stored",
        "epoch 1, offset",
        "81 of at most 256 events",
        "item-",
    ):
        expect(answer).to_contain_text(text)


@pytest.mark.parametrize(
    ("user_id", "answer"),
    [
        ("nobody", "nothing is stored for this user"),
        ("broken", "Can't tell for broken: Cassandra doesn't answer within 2 s"),
        ("  ", "Write a user id first"),
        ("<b>ü</b>", "<b>ü</b>, read in"),
    ],
)
def test_look_up_says_how_it_went(tab: Watched, user_id: str, answer: str) -> None:
    look_up(tab.page, user_id)
    expect(tab.page.locator("#lookup [role=status]").first).to_contain_text(answer)


def test_a_slow_look_up_does_not_overwrite_a_later_one(tab: Watched) -> None:
    look_up(tab.page, "slow")
    status = tab.page.locator("#lookup [role=status]").first
    expect(status).to_contain_text("Reading slow")
    look_up(tab.page, "u-7")
    expect(status).to_contain_text("u-7, read in")
    tab.page.wait_for_timeout(10_500)  # past the slow one's deadline
    expect(status).to_contain_text("u-7, read in")


def test_charts_have_other_ranges_and_say_the_same_as_tables(tab: Watched) -> None:
    page = tab.page
    chart = page.locator("#freshness figure").first
    expect(chart.locator("figcaption")).to_have_text("Events took, p99, last 1 h")
    assert chart.locator("svg path").count() > 3
    page.get_by_role("button", name="1 week").click()
    expect(chart.locator("figcaption")).to_have_text("Events took, p99, last 1 week")
    page.get_by_role("button", name="p50").click()
    expect(chart.locator("figcaption")).to_have_text("Events took, p50, last 1 week")
    chart.get_by_text("As a table").click()
    expect(chart.get_by_role("row").first).to_contain_text("Sequences")
    assert 8 <= chart.get_by_role("row").count() <= 14


def test_the_theme_follows_the_system_and_can_be_chosen(
    browser: Browser, server: PageServer
) -> None:
    watched = open_page(browser, server.url, scheme="dark")
    page = watched.page
    body = page.locator("body")
    expect(body).to_have_class(re.compile("body--dark"))
    page.get_by_role("button", name="Theme: follows the system").click()
    expect(body).to_have_class(re.compile("body--light"))
    page.reload()
    expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
    expect(body).to_have_class(re.compile("body--light"))
    page.get_by_role("button", name="Theme: light").click()
    expect(body).to_have_class(re.compile("body--dark"))
    page.emulate_media(color_scheme="light")
    page.get_by_role("button", name="Theme: dark").click()
    expect(body).to_have_class(re.compile("body--light"))
    page.context.close()
    assert watched.complaints == []


def test_the_keyboard_reaches_everything_in_order(tab: Watched) -> None:
    page = tab.page
    names = []
    for _ in range(40):
        page.keyboard.press("Tab")
        names.append(
            page.evaluate(
                """() => {
                    const e = document.activeElement, style = getComputedStyle(e);
                    const visible = style.outlineStyle !== 'none' || style.boxShadow !== 'none'
                        || e.matches('.q-field--focused input');
                    return (visible ? '' : 'no focus ring: ')
                        + (e.getAttribute('aria-label') || e.innerText || e.id).trim();
                }"""
            )
        )
        if names[-1].endswith("Look up"):
            break
    assert names[0] == "Skip to the verdict"
    order = [names.index(name) for name in ("Way", "Theme: follows the system", "1 week", "p50")]
    assert order == sorted(order)
    assert names[-1].endswith("Look up")
    assert [name for name in names if name.startswith("no focus ring")] == []


# -- for everyone, at every size -------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_nothing_is_wider_than_the_screen(browser: Browser, server: PageServer, size: str) -> None:
    server.play("incident")
    watched = open_page(browser, server.url, *SIZES[size])
    page = watched.page
    expect(page.locator("h1")).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    small = page.locator("#way :is(h4, p, span)").evaluate_all(
        "found => found.filter(e => e.innerText && parseFloat(getComputedStyle(e).fontSize) < 12)"
        ".map(e => e.innerText)"
    )
    assert small == []
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["phone", "laptop"])
def test_the_rules_of_accessibility_hold(
    browser: Browser, server: PageServer, size: str, scheme: str
) -> None:
    """axe-core's rules: contrast, names, landmarks, headings, reach by keyboard."""
    server.play("incident")
    watched = open_page(browser, server.url, *SIZES[size], scheme=scheme)
    page = watched.page
    look_up(page, "u-881")
    expect(page.locator("#lookup")).to_contain_text("precomputed")
    page.wait_for_timeout(1500)  # tables that scroll are found once a second
    found = Axe().run(page).response["violations"]
    page.context.close()
    assert [(v["id"], [n["html"] for n in v["nodes"]]) for v in found] == []


def test_a_thousand_partitions_and_a_week_do_not_make_it_slow(
    tab: Watched, server: PageServer
) -> None:
    page = tab.page
    server.play("large")
    expect(page.locator("#partitions")).to_contain_text("250 stalled")
    page.get_by_role("button", name="1 week").click()
    expect(page.locator("#freshness figcaption").first).to_contain_text("1 week")
    assert page.locator("tr").count() < 150
    assert page.locator("*").count() < 5000
    del tab.received[:]
    busy = page.evaluate(
        """() => new Promise(done => {
            let blocked = 0;
            new PerformanceObserver(list => list.getEntries().forEach(e => blocked += e.duration))
                .observe({ entryTypes: ['longtask'] });
            setTimeout(() => done(blocked), 5000);
        })"""
    )
    assert sum(tab.received) < 1_000_000, "bytes in 5 s"
    assert busy < 2500, "ms of 5 s in which the page didn't answer"


# -- who may look ----------------------------------------------------------------------------------


def test_with_a_token_nobody_else_looks(browser: Browser, tmp_path: Path) -> None:
    own = PageServer(tmp_path, token="s3cret")
    own.start()
    try:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(own.url, timeout=5)
        watched = open_page(browser, f"{own.url}/?token=s3cret")
        expect(watched.page.locator("h1")).to_have_text("Fresh")
        own.play("incident")  # the websocket was let in, too
        expect(watched.page.locator("h1")).to_have_text("Behind")
        assert "s3cret" not in watched.page.url
        watched.page.context.close()
    finally:
        own.stop()


def test_another_site_can_not_open_the_socket(server: PageServer) -> None:
    query = "/_nicegui_ws/socket.io/?EIO=4&transport=polling"
    asked = urllib.request.Request(server.url + query, headers={"Origin": "http://evil.example"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(asked, timeout=5)
    assert refused.value.code == 400
    assert "origin" in json.dumps(refused.value.read().decode()).lower()


def test_the_page_may_load_nothing_from_elsewhere(server: PageServer) -> None:
    with urllib.request.urlopen(server.url, timeout=5) as answer:
        policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "http" not in policy
