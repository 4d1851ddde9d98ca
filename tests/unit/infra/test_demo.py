"""The parts of the demo that need no stack: its plan, its accounts, what it says at the end."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from infra.demo import measure
from infra.demo.programs import say_goodbye
from infra.demo.replay import broken_records, plan
from infra.demo.run import clear_home
from infra.demo.stream import settled_with_canaries
from infra.local.layout import Home
from streams import metrics as catalogue
from streams.errors import ConfigError, HeadwaterError, InvalidRecord
from streams.events import REASONS, Event, decode_record
from streams.metrics import Metrics
from streams.monitor.example import example_snapshot

ROOT = Path(__file__).parents[3]
NOW = 1_790_000_000_000


def test_it_begins_without_heavy_imports() -> None:
    """They take longer than a person waits for the first line."""
    code = (
        "import sys, infra.demo.run\n"
        "heavy = {'torch', 'feast', 'faust', 'pandas'} & sys.modules.keys()\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# -- the plan --------------------------------------------------------------------------------------


def test_the_plan_holds_every_event_some_twice_and_every_broken_record() -> None:
    later = [Event(f"e{n}", f"u{n % 9}", "i", "view", n) for n in range(2_000)]
    sendings = plan(later, NOW, pace=500, seed=1)
    valid: Counter[str] = Counter()
    for sending in sendings:
        try:
            event = decode_record(sending.value)
        except InvalidRecord:
            continue
        valid[event.event_id] += 1
    assert valid.keys() - {"broken"} == {event.event_id for event in later}
    assert 0 < sum(count - 1 for count in valid.values()) < 200
    assert len(sendings) == sum(valid.values()) + _num_broken() - valid["broken"]
    assert [sending.at for sending in sendings] == sorted(sending.at for sending in sendings)


def _num_broken() -> int:
    return len(list(broken_records(NOW)))


def test_each_kind_of_broken_record_is_in_the_stream() -> None:
    reasons = []
    for key, value in broken_records(NOW):
        try:
            event = decode_record(value)
        except InvalidRecord as error:
            reasons.append(error.reason)
        else:  # only the worker can tell that these are none
            far = event.event_time > NOW
            assert far or key != event.user_id.encode()
            reasons.append("future_event_time" if far else "key_mismatch")
    assert {*reasons} == {*REASONS} - {"unsupported_schema"}


# -- the accounts ----------------------------------------------------------------------------------


@contextmanager
def process(pages: Callable[[str], bytes]) -> Iterator[str]:
    """A process that shows `pages(path)`; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_request(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Platform:
    """A worker's counts and the monitor's, one step further with each look at the worker."""

    def __init__(self, consumed: list[int], sent: list[int]) -> None:
        self._consumed, self._sent = consumed, sent
        self._step = -1

    def worker(self, _path: str) -> bytes:
        self._step = min(self._step + 1, len(self._consumed) - 1)
        metrics = Metrics()
        metrics.add(catalogue.RECORDS_CONSUMED, self._consumed[self._step], "0")
        return metrics.exposition()

    def monitor(self, _path: str) -> bytes:
        seen = example_snapshot(number=self._step)
        canary = msgspec.structs.replace(seen.canary, num_sent=self._sent[self._step])
        return msgspec.json.encode(msgspec.structs.replace(seen, canary=canary))


def settle(platform: Platform, expected: int) -> tuple[int, int]:
    """(records consumed, canaries sent) when everything is said to be consumed."""
    with process(platform.worker) as worker, process(platform.monitor) as monitor:
        reading, seen = asyncio.run(settled_with_canaries([worker], monitor, expected))
    return reading.consumed, seen.canary.num_sent


def test_canaries_are_told_from_the_streams_records() -> None:
    # A canary is consumed before the monitor counts it, and makes up for a record that is missing.
    platform = Platform(consumed=[90, 100, 101, 103, 103, 103], sent=[0, 0, 2, 2, 3, 3])
    assert settle(platform, 100) == (103, 3)


def test_counts_that_never_meet_are_told_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.demo.stream._SETTLE_SECONDS", 0.3)
    assert settle(Platform(consumed=[105], sent=[3]), 100) == (105, 3)


def test_records_that_are_never_consumed_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.demo.stream._SETTLE_SECONDS", 0.3)
    with pytest.raises(HeadwaterError, match="consumed 99 of 100"):
        settle(Platform(consumed=[99], sent=[0]), 100)


def test_a_process_that_is_away_is_an_error_with_its_address() -> None:
    with process(lambda _: b"") as address:
        pass
    with pytest.raises(HeadwaterError, match=f"{address}/metrics doesn't answer"):
        measure.read([address])


def test_stages_are_put_together_from_who_measured_them() -> None:
    worker, monitor = Metrics(), Metrics()
    worker.observe(catalogue.STAGE_SECONDS, [0.1, 0.2], "broker_to_folded", "live")
    monitor.observe(catalogue.STAGE_SECONDS, [0.05], "stored_to_read", "live")
    with (
        process(lambda _: worker.exposition()) as one,
        process(lambda _: monitor.exposition()) as two,
    ):
        stages = measure.stages(measure.read([one]).sums, measure.read([two]).sums)
    assert stages.keys() == {*catalogue.STAGES}
    assert stages["broker_to_folded"]["events"] == 2
    assert stages["stored_to_read"]["events"] == 1
    assert stages["stored_to_read"]["p50"] == pytest.approx(0.05, rel=0.2)
    assert stages["folded_to_stored"] == {"p50": None, "p99": None, "events": 0}


def test_the_monitors_figures_are_in_the_report_and_what_it_cannot_tell() -> None:
    report = json.loads(json.dumps(measure.monitored(example_snapshot())))
    assert report["headline"].startswith("Representations are 42 s behind")
    assert report["figures"]["representation.staleness"] == pytest.approx(42, abs=1)
    assert report["canaries"]["num_sent"] > 0
    assert all(report["figures"][name] is None for name in report["cannot_tell"])


# -- the home --------------------------------------------------------------------------------------


def test_a_home_with_nothing_but_a_registry_is_free_for_the_demo(tmp_path: Path) -> None:
    (tmp_path / "registry.db").write_text("left by `headwater views`")
    clear_home(tmp_path)
    clear_home(tmp_path)  # now it is the demo's own
    assert [entry.name for entry in tmp_path.iterdir()] == ["demo"]


def test_what_a_demo_didnt_make_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "registry.db").touch()
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="give the demo a home of its own"):
        clear_home(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


# -- the end ---------------------------------------------------------------------------------------


def said(home: Path, *, keep: bool) -> str:
    console = Console(file=io.StringIO(), width=80)
    say_goodbye(console, home, "http://127.0.0.1:9400", keep=keep)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_end_names_the_page_and_whether_it_stays(tmp_path: Path) -> None:
    ends, stays = said(tmp_path, keep=False), said(tmp_path, keep=True)
    assert "http://127.0.0.1:9400" in ends
    assert "http://127.0.0.1:9400" in stays
    assert "ARGS=--keep" in ends
    assert "headwater down" not in ends
    assert "headwater down" in stays


def test_the_end_says_where_the_commands_find_another_home(tmp_path: Path) -> None:
    assert f"export HEADWATER_HOME={tmp_path}" in said(tmp_path, keep=True)
    assert "HEADWATER_HOME" not in said(Home.from_environment({}).root, keep=True)
