from __future__ import annotations

import json
from pathlib import Path

import pytest

from encoders.checkpoint import METRICS_FILE, read_checkpoint, write_checkpoint
from encoders.model import CONFIG_FILE, WEIGHTS_FILE, UserEncoder
from streams.errors import ConfigError


def test_round_trip_and_replacement(encoder: UserEncoder, tmp_path: Path) -> None:
    target = tmp_path / "new" / "checkpoint"
    for number in (1, 2):
        write_checkpoint(target, encoder, {"number": number})
    assert read_checkpoint(target).config == encoder.config
    assert json.loads((target / METRICS_FILE).read_text()) == {"number": 2}
    assert [path.name for path in target.parent.iterdir()] == ["checkpoint"]


def test_foreign_files_are_never_replaced(encoder: UserEncoder, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match=r"thesis.txt.*name another --out"):
        write_checkpoint(tmp_path, encoder, {})
    with pytest.raises(ConfigError, match="is a file"):
        write_checkpoint(tmp_path / "thesis.txt", encoder, {})
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_what_is_no_checkpoint_is_told(encoder: UserEncoder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{CONFIG_FILE} is missing.*headwater train"):
        read_checkpoint(tmp_path / "none")
    target = tmp_path / "checkpoint"
    write_checkpoint(target, encoder, {})
    (target / WEIGHTS_FILE).write_bytes(b"damaged")
    with pytest.raises(ConfigError, match="can't be read"):
        read_checkpoint(target)
    (target / CONFIG_FILE).write_text("{}")
    with pytest.raises(ConfigError, match="can't be read"):
        read_checkpoint(target)
