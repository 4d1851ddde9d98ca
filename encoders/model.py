"""The user encoder: a causal transformer from a user's events to one vector of unit length.

It knows hashes, times and values, not where they come from; training and serving build the batch.
Needs torch only: it is copied into Triton's model repository beside the weights.

Shape suffixes:
    N  tokens of the whole batch    B  sequences    D  model width    I  items
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from encoders.config import EncoderConfig
from encoders.layers import Block, HashedEmbedding, JaggedLayout, RotaryTimeEncoding, log_gaps

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "weights.pt"
# Standardised values beyond this are outliers that must not drown the other inputs.
_MAX_VALUE = 8.0


@dataclass(frozen=True)
class JaggedBatch:
    """Sequences of events, oldest first, laid end to end; sequence b has rows offsets[b:b+1]."""

    item_hash_N: Tensor  # (N,) int64
    event_type_hash_N: Tensor  # (N,) int64
    surface_hash_N: Tensor  # (N,) int64, 0 where there is none
    event_time_ms_N: Tensor  # (N,) int64
    value_N: Tensor  # (N,) float32, NaN where there is none
    offsets_B1: Tensor  # (B + 1,) int64, from 0 to N

    def check(self, max_tokens: int | None = None, max_length: int | None = None) -> None:
        """Raises ValueError with what is wrong; what passes can be encoded."""
        num_tokens, offsets_B1 = len(self.item_hash_N), self.offsets_B1
        for field in fields(self)[:5]:
            if (column := getattr(self, field.name)).shape != (num_tokens,):
                shape = tuple(column.shape)
                raise ValueError(f"{field.name[:-2]} has shape {shape}; expected ({num_tokens},)")
        if offsets_B1.ndim != 1 or len(offsets_B1) < 2:
            raise ValueError("offsets must hold one number more than there are sequences")
        if int(offsets_B1[0]) != 0 or int(offsets_B1[-1]) != num_tokens:
            found = f"{int(offsets_B1[0])} to {int(offsets_B1[-1])}"
            raise ValueError(f"offsets must go from 0 to {num_tokens} (all tokens), not {found}")
        if max_tokens is not None and num_tokens > max_tokens:
            raise ValueError(f"{num_tokens} tokens; at most {max_tokens} at once, send less")
        lengths_B = offsets_B1.diff()
        if int(lengths_B.min()) < 1:
            row = int(lengths_B.argmin())
            raise ValueError(f"sequence {row} is empty or its offsets decrease; leave it out")
        if max_length is not None and int(lengths_B.max()) > max_length:
            row, length = int(lengths_B.argmax()), int(lengths_B.max())
            raise ValueError(
                f"sequence {row} has {length} events; keep the newest {max_length} at most"
            )

    def to(self, device: torch.device) -> JaggedBatch:
        moved = {f.name: getattr(self, f.name).to(device) for f in fields(self)}
        return JaggedBatch(**moved)


@dataclass(frozen=True)
class ItemSide:
    """Items in the space of the representations, where a dot product ranks them for a user."""

    next_ID: Tensor  # (I, D) float32 of unit norm: how likely the item is the user's next new one
    value_ID: Tensor  # (I, D) float32: which standardised value the user's event on it carries,
    value_I: Tensor  # (I,) float32: together with this part, which is the same for all users


class UserEncoder(nn.Module):
    """See the module's docstring. `forward` serves; `states` and `items` train and rank."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        width = config.dimensions
        self.item = HashedEmbedding(config.item_buckets, config.num_item_hashes, width)
        self.event_type = HashedEmbedding(config.event_type_buckets, 2, width)
        self.surface = HashedEmbedding(config.surface_buckets, 2, width)
        self.numbers = nn.Sequential(nn.Linear(3, width), nn.GELU(), nn.Linear(width, width))
        self.gate = nn.Linear(width, width)
        self.token_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(config.dropout)
        self.rotary = RotaryTimeEncoding(config.head_width, config.max_length)
        self.blocks = nn.ModuleList(
            Block(width, config.num_heads, config.dropout) for _ in range(config.num_layers)
        )
        self.output = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width))
        self.item_output = nn.Linear(width, width)
        self.item_value = nn.Linear(width, width + 1)
        self.log_sharpness = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, batch: JaggedBatch) -> Tensor:
        """Representations, (B, D) float32 of unit norm. `batch.check()` has passed."""
        layout = JaggedLayout.build(batch.offsets_B1)
        x_ND, turn = self._tokens(batch, layout)
        for block in self.blocks[:-1]:
            x_ND = block(x_ND, turn, layout)
        return self._unit(self.output(self.blocks[-1].newest(x_ND, turn, layout)))

    def states(self, batch: JaggedBatch) -> Tensor:
        """What `forward` would give after each of the events, (N, D) float32 of unit norm."""
        layout = JaggedLayout.build(batch.offsets_B1)
        x_ND, turn = self._tokens(batch, layout)
        for block in self.blocks:
            x_ND = block(x_ND, turn, layout)
        return self._unit(self.output(x_ND))

    def items(self, item_hash_I: Tensor) -> ItemSide:
        """What representations meet when items are ranked."""
        item_ID = self.item(item_hash_I)
        value_ID1 = self.item_value(item_ID).float()
        return ItemSide(self._unit(self.item_output(item_ID)), value_ID1[:, :-1], value_ID1[:, -1])

    def _tokens(
        self, batch: JaggedBatch, layout: JaggedLayout
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        log_gap_N = log_gaps(batch.event_time_ms_N, layout, self.config.time_scale_seconds)
        present_N = batch.value_N.isfinite()
        value_N = (batch.value_N - self.config.value_mean) / self.config.value_scale
        value_N = torch.where(present_N, value_N.clamp(-_MAX_VALUE, _MAX_VALUE), 0.0)
        numbers_N3 = torch.stack((value_N, present_N.float(), log_gap_N.float()), dim=-1)
        event_ND = self.event_type(batch.event_type_hash_N) + self.surface(batch.surface_hash_N)
        event_ND = event_ND + self.numbers(numbers_N3)
        item_ND = self.item(batch.item_hash_N)
        x_ND = item_ND * (1 + self.gate(event_ND)) + event_ND
        return self.dropout(self.token_norm(x_ND)), self.rotary(log_gap_N, layout)

    @staticmethod
    def _unit(x_XD: Tensor) -> Tensor:
        return functional.normalize(x_XD.float(), dim=-1)


def compute_device() -> torch.device:
    """A GPU where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def computing(device: torch.device) -> torch.autocast:
    """The precision to compute in: bfloat16 on a GPU, float32 elsewhere; vectors are float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


def save_encoder(encoder: UserEncoder, directory: Path) -> None:
    """Write config and weights into an existing directory."""
    (directory / CONFIG_FILE).write_text(encoder.config.to_json(), encoding="utf-8")
    torch.save(encoder.state_dict(), directory / WEIGHTS_FILE)


def load_encoder(directory: Path) -> UserEncoder:
    """The encoder for inference, on the CPU. Raises OSError or ValueError if it can't be read."""
    config = EncoderConfig.from_json((directory / CONFIG_FILE).read_text(encoding="utf-8"))
    encoder = UserEncoder(config)
    encoder.load_state_dict(
        torch.load(directory / WEIGHTS_FILE, weights_only=True, map_location="cpu")
    )
    encoder.eval()
    return encoder
