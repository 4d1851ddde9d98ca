"""`headwater status` shows what workers of either role count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streams.cli import run
from streams.commands import status
from streams.monitor.running import announced
from streams.settings import load_settings
from streams.workers.registration import WorkerAddress

SERVICE = {"name": "kafka", "state": "ready", "address": "a:1", "pid": 7, "detail": ""}


def report(**worker: Any) -> dict[str, Any]:
    row = {"pid": 1, "url": "http://x", "ready": True, "detail": "", "lag": 0} | worker
    return {"home": "h", "services": [SERVICE], "workers": [row], "monitor": None, "groups": []}


@pytest.mark.parametrize(
    ("worker", "shown"),
    [
        (
            {
                "role": "sequence",
                "counters": {"consumed": 5, "applied": 2, "duplicate": 1, "too_old": 0}
                | {"forgotten": 0, "dead_lettered": 2, "filtered": 0, "forwarded": 0},
            },
            "5 consumed = 2 applied + 1 duplicate + 2 dead lettered",
        ),
        (
            {"role": "encoder", "counters": {"consumed": 9, "coalesced": 4, "encoded": 5}},
            "9 consumed, 4 coalesced, 5 encoded",
        ),
        ({"role": "encoder"}, "encoder"),
    ],
)
def test_each_role_shows_its_counters(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    worker: dict[str, Any],
    shown: str,
) -> None:
    monkeypatch.setattr(status, "read_status", lambda _: report(**worker))
    assert run(["status"]) == 0
    assert shown in capsys.readouterr().out


def test_a_worker_that_is_not_ready_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = {"role": "encoder", "ready": False, "detail": "no active version"}
    monkeypatch.setattr(status, "read_status", lambda _: report(**worker))
    assert run(["status"]) == 1
    assert "no active version" in capsys.readouterr().out


def test_a_broker_that_is_known_to_be_down_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(*_: object) -> list[object]:
        raise AssertionError("it was asked")

    stopped = SERVICE | {"state": "stopped", "address": "127.0.0.1:1", "pid": None}
    monkeypatch.setenv("HEADWATER_HOME", str(tmp_path))
    monkeypatch.setenv("HEADWATER_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setattr(status, "group_offsets", ask)
    monkeypatch.setattr(status, "_services", lambda: [stopped])
    assert run(["status", "--json"]) == 1
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert [(row["lag"], row["detail"]) for row in groups] == [(None, "kafka is stopped")] * 2


def test_the_monitors_page_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = {"pid": 3, "url": "http://127.0.0.1:9400", "ready": True, "detail": ""}
    found = report(role="encoder") | {"monitor": page}
    monkeypatch.setattr(status, "read_status", lambda _: found)
    assert run(["status"]) == 0
    assert "http://127.0.0.1:9400" in capsys.readouterr().out


def test_a_monitor_that_was_killed_is_said_to_be_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADWATER_HOME", str(tmp_path))
    monkeypatch.setattr(status, "group_offsets", lambda *_: [])
    with announced(load_settings(), "http://127.0.0.1:1"):
        run(["status", "--json"])
    monitor = json.loads(capsys.readouterr().out)["monitor"]
    assert (monitor["url"], monitor["ready"]) == ("http://127.0.0.1:1", False)
    assert "doesn't answer" in monitor["detail"]


def test_a_worker_that_was_killed_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADWATER_HOME", str(tmp_path))
    monkeypatch.setattr(status, "group_offsets", lambda *_: [])
    monkeypatch.setattr(status, "_services", lambda: [SERVICE])
    killed = WorkerAddress("encoder", 2**22 + 5, "0", "group", "http://127.0.0.1:1")
    folder = tmp_path / "run" / "workers"
    folder.mkdir(parents=True)
    (folder / f"encoder-{killed.pid}.json").write_bytes(msgspec.json.encode(killed))
    for _ in range(2):  # looking at it changes nothing
        assert run(["status", "--json"]) == 1
        (worker,) = json.loads(capsys.readouterr().out)["workers"]
        assert (worker["role"], worker["ready"]) == ("encoder", False)
        assert "headwater worker encoder" in worker["detail"]
