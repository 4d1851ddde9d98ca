"""`headwater status` shows what workers of either role count."""

from __future__ import annotations

from typing import Any

import pytest

from streams.cli import run
from streams.commands import status

SERVICE = {"name": "kafka", "state": "ready", "address": "a:1", "pid": 7, "detail": ""}


def report(**worker: Any) -> dict[str, Any]:
    row = {"pid": 1, "url": "http://x", "ready": True, "detail": "", "lag": 0} | worker
    return {"home": "h", "services": [SERVICE], "workers": [row], "groups": []}


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
