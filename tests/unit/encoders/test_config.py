from __future__ import annotations

import json
from typing import Any

import pytest

from encoders.config import EncoderConfig


def test_json_round_trip() -> None:
    config = EncoderConfig(dimensions=32, max_length=17, value_mean=3.5, value_scale=1.25)
    assert EncoderConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dimensions": 30}, "dimensions must be a multiple of 4"),
        ({"num_layers": 0}, "num_layers must be 1 or more"),
        ({"max_length": -1}, "max_length must be 1 or more"),
        ({"item_buckets": 1000}, "item_buckets must be a power of two"),
        ({"item_buckets": 2**20, "num_item_hashes": 4}, "num_item_hashes must be so few"),
        ({"time_scale_seconds": 0.0}, "time_scale_seconds must be above 0"),
        ({"value_scale": 0.0}, "value_scale must be above 0"),
        ({"value_mean": float("nan")}, "value_mean must be finite"),
        ({"dropout": 1.0}, "dropout must be at least 0"),
    ],
)
def test_says_what_to_write_instead(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EncoderConfig(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 3}, "unknown keys"),
        ({"dimensions": "64"}, "dimensions must be int"),
        ({"dimensions": 64.5}, "dimensions must be int"),
        ({"dropout": True}, "dropout must be float"),
    ],
)
def test_foreign_json_is_refused(change: dict[str, Any], message: str) -> None:
    content = json.loads(EncoderConfig().to_json()) | change
    with pytest.raises(ValueError, match=message):
        EncoderConfig.from_json(json.dumps(content))


def test_json_that_is_no_object_is_refused() -> None:
    with pytest.raises(ValueError, match="one JSON object"):
        EncoderConfig.from_json("[1]")
