"""`headwater get` for people: what was read, and how old it is."""

from __future__ import annotations

import time
from typing import Any

import pytest

from streams.cli import run
from streams.commands import features


def answer(age_seconds: float) -> dict[str, Any]:
    at = round((time.time() - age_seconds) * 1000)
    columns = {"event_time": [at], "item_id": ["i"], "event_type": ["view"]}
    sequence = columns | {"surface": [None], "value": [None]}
    representation = {"encoder": "user_encoder", "version": "1", "as_of": at, "encoded_at": at}
    return {
        "user_id": "u",
        "forgotten_at": None,
        "sequences": {"engagement": sequence},
        "representations": {"view": representation | {"vector": [0.5], "status": "found"}},
    }


@pytest.mark.parametrize(
    ("age_seconds", "shown"),
    [(12, "12 s"), (272.3, "4.5 min"), (5_000, "1.4 h"), (864_000, "10 d"), (900_000, "10.4 d")],
)
def test_ages_are_short(
    age_seconds: float,
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def read(*_: Any) -> tuple[list[dict[str, Any]], list[str]]:
        return [answer(age_seconds)], []

    monkeypatch.setattr(features, "_read", read)
    assert run(["get", "u"]) == 0
    printed = capsys.readouterr().out
    assert f"newest event {shown} old" in printed
    assert printed.count(shown) == 2
