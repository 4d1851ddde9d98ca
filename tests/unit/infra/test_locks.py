"""The lock files: complete, hashed, and without the address of any registry."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))


def locked(name: str) -> dict[str, str]:
    text = (ROOT / "requirements" / name).read_text()
    return dict(re.findall(r"^([a-z0-9-]+)(?:\[[a-z,-]+\])?==(\S+)", text, re.MULTILINE))


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=~! ]", line)[0].lower() for line in requirements}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_no_address(lock: Path) -> None:
    assert "://" not in lock.read_text()
    assert "index-url" not in lock.read_text()


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_every_package_has_hashes(lock: Path) -> None:
    for block in re.split(r"\n(?=[a-z0-9])", lock.read_text()):
        if "==" in block and not block.startswith("#"):
            assert "--hash=sha256:" in block, block.partition("\n")[0]


def test_every_declared_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert names(project["dependencies"]) | names(extras["local"]) <= locked("main.lock").keys()
    assert names(extras["dev"]) <= locked("dev.lock").keys()


def test_dev_adds_to_main_and_changes_nothing() -> None:
    main = locked("main.lock")
    assert main.items() <= locked("dev.lock").items()


def test_tritons_torch_is_the_one_that_trains() -> None:
    assert locked("triton.lock")["torch"] == locked("main.lock")["torch"]
    assert locked("triton.lock")["numpy"].startswith("1.")
