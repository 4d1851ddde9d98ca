"""Fetching jars: checked, tried again, and never half done."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import requests

from infra.local import fetch as fetching
from infra.local.jars import Jar
from streams.errors import HeadwaterError

CONTENT = b"jar"


class Registry:
    """Stands where jgo's context does; fails as often as it is told, then writes `content`."""

    def __init__(self, folder: Path, failures: int, content: bytes = CONTENT) -> None:
        self.folder = folder
        self.failures = failures
        self.content = content
        self.tries = 0

    def project(self, _group: str, _artifact: str) -> Registry:
        return self

    def at_version(self, _version: str) -> Registry:
        return self

    def artifact(self, _classifier: str, _packaging: str) -> Registry:
        return self

    def resolve(self) -> None:
        self.tries += 1
        path = self.folder / JAR.path
        path.parent.mkdir(parents=True, exist_ok=True)
        assert not path.exists()
        path.write_bytes(self.content[:1])
        if self.tries <= self.failures:
            raise requests.ConnectionError("cut off")
        path.write_bytes(self.content)


JAR = Jar("some.group", "thing", "", "1.0", hashlib.sha256(CONTENT).hexdigest(), ("kafka",))


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_PAUSES_SECONDS", (0.0, 0.0))


def run(monkeypatch: pytest.MonkeyPatch, registry: Registry) -> list[Jar]:
    monkeypatch.setattr(fetching, "maven_context", lambda _folder: registry)
    return list(fetching.fetch([JAR], registry.folder))


def test_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(tmp_path, failures=2)
    assert run(monkeypatch, registry) == [JAR]
    assert (tmp_path / JAR.path).read_bytes() == CONTENT
    assert run(monkeypatch, registry) == [JAR]
    assert registry.tries == 3


def test_gives_up_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HeadwaterError, match=r"some\.group:thing:1\.0.*make setup"):
        run(monkeypatch, Registry(tmp_path, failures=3))
    assert not (tmp_path / JAR.path).exists()


def test_another_content_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HeadwaterError, match="SHA-256"):
        run(monkeypatch, Registry(tmp_path, failures=0, content=b"other"))
    assert not (tmp_path / JAR.path).exists()
