"""The encoder's shape and vocabulary sizes: a frozen value, checked at birth, JSON in and out.

Needs the standard library only: it is copied into Triton's model repository beside the weights.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from typing import Any

HASH_BITS = 64


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """What it takes to build the encoder and read its weights.

    `value_mean` and `value_scale` standardise an event's value; training sets them from its data.
    `time_scale_seconds` is the gap from which on time counts logarithmically (ROTE's `t_scale`).
    Raises ValueError with what to write instead.
    """

    dimensions: int = 64
    num_layers: int = 2
    num_heads: int = 2
    max_length: int = 128
    item_buckets: int = 8_192
    num_item_hashes: int = 2
    event_type_buckets: int = 64
    surface_buckets: int = 64
    time_scale_seconds: float = 60.0
    dropout: float = 0.2
    value_mean: float = 0.0
    value_scale: float = 1.0

    def __post_init__(self) -> None:
        for name in ("dimensions", "num_layers", "num_heads", "max_length", "num_item_hashes"):
            _require(getattr(self, name) >= 1, name, "1 or more", getattr(self, name))
        for name in ("item_buckets", "event_type_buckets", "surface_buckets"):
            size = getattr(self, name)
            _require(size >= 2 and size & (size - 1) == 0, name, "a power of two", size)
        bits = self.num_item_hashes * (self.item_buckets.bit_length() - 1)
        _require(
            bits <= HASH_BITS, "num_item_hashes", f"so few that they share {HASH_BITS} bits", bits
        )
        _require(
            self.dimensions % (4 * self.num_heads) == 0,
            "dimensions",
            f"a multiple of 4 * num_heads = {4 * self.num_heads}",
            self.dimensions,
        )
        _require(
            self.time_scale_seconds > 0, "time_scale_seconds", "above 0", self.time_scale_seconds
        )
        _require(math.isfinite(self.value_mean), "value_mean", "finite", self.value_mean)
        _require(self.value_scale > 0, "value_scale", "above 0", self.value_scale)
        _require(0 <= self.dropout < 1, "dropout", "at least 0 and below 1", self.dropout)

    @property
    def head_width(self) -> int:
        return self.dimensions // self.num_heads

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> EncoderConfig:
        """Raises ValueError on anything that isn't exactly such a config."""
        content: Any = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("an encoder's config.json holds one JSON object")
        kinds = {field.name: type(field.default) for field in fields(cls)}
        if unknown := sorted(content.keys() - kinds.keys()):
            raise ValueError(
                f"unknown keys {unknown} in the encoder's config; known: {sorted(kinds)}"
            )
        for name, value in content.items():
            accepted = (int, float) if kinds[name] is float else (int,)
            if isinstance(value, bool) or not isinstance(value, accepted):
                raise ValueError(f"{name} must be {kinds[name].__name__}, not {value!r}")
        return cls(**content)


def _require(holds: bool, name: str, wanted: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{name} must be {wanted}, not {value}")
