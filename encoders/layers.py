"""The encoder's layers over jagged sequences: tokens of all sequences in one row, no padding.

Only attention needs sequences side by side: it goes through groups of similar length
(`JaggedLayout`), so that a long sequence doesn't make the short ones pay.
Needs torch only: it is copied into Triton's model repository beside the weights.

Shape suffixes:
    N  tokens of the whole batch        B  sequences        S  sequences of one group
    L  longest sequence of a group      D  model width      H  heads    W  width of a head
    P  rotary pairs of a head (W / 2)   K  hashes of an item
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

# A group spans lengths up to this ratio, so that at most about a third of it is padding;
# a group of fewer tokens than _MIN_GROUP_TOKENS isn't worth a kernel launch of its own.
_MAX_LENGTH_RATIO = 1.5
_MIN_GROUP_TOKENS = 1_024


@dataclass(frozen=True)
class Group:
    """Sequences of similar length side by side. Padding repeats a sequence's newest token."""

    rows_S: Tensor  # (S,) int64, sequences of the batch
    tokens_SL: Tensor  # (S, L) int64, tokens of the batch
    there_SL: Tensor  # (S, L) bool, False on padding


@dataclass(frozen=True)
class JaggedLayout:
    """Where each sequence of a jagged batch lies, and the groups in which attention sees them."""

    offsets_B1: Tensor  # (B + 1,) int64
    position_N: Tensor  # (N,) int64, place within the sequence
    row_N: Tensor  # (N,) int64, the token's sequence
    last_B: Tensor  # (B,) int64, each sequence's newest token
    slot_N: Tensor  # (N,) int64, the token's place in the groups' slots, laid end to end
    groups: tuple[Group, ...]

    @classmethod
    def build(cls, offsets_B1: Tensor) -> JaggedLayout:
        """`offsets_B1` is on the device of the computation; every sequence has a token or more."""
        lengths_B = offsets_B1.diff()
        device, num_tokens = offsets_B1.device, int(offsets_B1[-1])
        rows_B = torch.arange(len(lengths_B), device=device)
        row_N = torch.repeat_interleave(rows_B, lengths_B, output_size=num_tokens)
        position_N = torch.arange(num_tokens, device=device) - offsets_B1[row_N]
        groups, slot_of_row_B, filled = [], torch.empty_like(lengths_B), 0
        for rows_S in _similar_rows(lengths_B):
            group = _group(offsets_B1, lengths_B, rows_S)
            longest = group.tokens_SL.shape[1]
            slot_of_row_B[rows_S] = filled + longest * torch.arange(len(rows_S), device=device)
            filled += group.tokens_SL.numel()
            groups.append(group)
        slot_N = slot_of_row_B[row_N] + position_N
        return cls(offsets_B1, position_N, row_N, offsets_B1[1:] - 1, slot_N, tuple(groups))


def _similar_rows(lengths_B: Tensor) -> Iterator[Tensor]:
    """Sequences of similar length, the longest first."""
    order_B = torch.argsort(lengths_B, descending=True, stable=True)
    lengths = lengths_B[order_B].tolist()
    start = 0
    for end in range(1, len(lengths)):
        worth_it = (end - start) * lengths[start] >= _MIN_GROUP_TOKENS
        if worth_it and lengths[start] > _MAX_LENGTH_RATIO * lengths[end]:
            yield order_B[start:end]
            start = end
    yield order_B[start:]


def _group(offsets_B1: Tensor, lengths_B: Tensor, rows_S: Tensor) -> Group:
    lengths_S1 = lengths_B[rows_S][:, None]
    place_L = torch.arange(int(lengths_S1.max()), device=rows_S.device)
    tokens_SL = offsets_B1[rows_S][:, None] + torch.minimum(place_L, lengths_S1 - 1)
    return Group(rows_S, tokens_SL, place_L < lengths_S1)


class HashedEmbedding(nn.Module):
    """A table for an open vocabulary: sums one row per hash, each chosen by other bits.

    The caller's 64-bit hash is uniform, so disjoint ranges of its bits are independent hashes:
    two items share all their rows with probability buckets ** -num_hashes only.
    """

    def __init__(self, buckets: int, num_hashes: int, width: int) -> None:
        super().__init__()
        self.buckets = buckets
        self.bits = buckets.bit_length() - 1
        self.tables = nn.ModuleList(nn.Embedding(buckets, width) for _ in range(num_hashes))
        for table in self.tables:
            nn.init.normal_(table.weight, std=(width * num_hashes) ** -0.5)

    def forward(self, hash_N: Tensor) -> Tensor:
        """(N,) int64 → (N, D)."""
        rows = (
            table((hash_N >> (self.bits * index)) & (self.buckets - 1))
            for index, table in enumerate(self.tables)
        )
        return torch.stack(tuple(rows)).sum(0)


def log_gaps(event_time_ms_N: Tensor, layout: JaggedLayout, time_scale_seconds: float) -> Tensor:
    """log(1 + gap / scale) to the sequence's previous event, 0 for its first: (N,) float64."""
    gap_ms_N = event_time_ms_N.diff(prepend=event_time_ms_N[:1])
    gap_ms_N = torch.where(layout.position_N == 0, 0, gap_ms_N).clamp_min(0)
    return torch.log1p(gap_ms_N.double() / (1_000 * time_scale_seconds))


class RotaryTimeEncoding(nn.Module):
    """ROTE (Kunlun, arXiv 2602.10016): queries and keys turn with position and with log time gaps.

    Even pairs turn with the position, odd ones with the sum of the log gaps so far, so what
    attention sees of two events is the number of events and the log time between them: shifting all
    timestamps changes nothing, stretching the gaps does, and no event depends on a later one.
    """

    frequency_P: Tensor

    def __init__(self, head_width: int, longest: int) -> None:
        super().__init__()
        num_pairs = head_width // 2
        exponent_P = torch.arange(num_pairs, dtype=torch.float64) // 2 / max(1, num_pairs // 2)
        self.register_buffer("frequency_P", (4.0 * longest) ** -exponent_P, persistent=False)

    def forward(self, log_gap_N: Tensor, layout: JaggedLayout) -> tuple[Tensor, Tensor]:
        """Cosine and sine of each token's angles, (N, P) float32 each.

        In float64 until the angle is reduced: a sum over a long batch must not cost precision,
        since a user's vector would then depend on who else is in the batch.
        """
        total_N = log_gap_N.cumsum(0)
        total_N = total_N - total_N[layout.offsets_B1[:-1]][layout.row_N]
        clock_N2 = torch.stack((layout.position_N.double(), total_N), dim=-1)
        clock_NP = clock_N2.repeat(1, len(self.frequency_P) // 2)
        angle_NP = torch.remainder(clock_NP * self.frequency_P, 2 * math.pi).float()
        return angle_NP.cos(), angle_NP.sin()


def rotate(x_NHW: Tensor, cos_NP: Tensor, sin_NP: Tensor) -> Tensor:
    """Turn the pairs (w, w + P) of every head by the token's angles."""
    first_NHP, second_NHP = x_NHW.chunk(2, dim=-1)
    cos_N1P, sin_N1P = cos_NP[:, None], sin_NP[:, None]
    return torch.cat(
        (
            first_NHP * cos_N1P - second_NHP * sin_N1P,
            first_NHP * sin_N1P + second_NHP * cos_N1P,
        ),
        dim=-1,
    ).type_as(x_NHW)


class CausalAttention(nn.Module):
    """Multi-head attention of every token, or of the newest ones only, over its sequence's past."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, x_ND: Tensor, turn: tuple[Tensor, Tensor], layout: JaggedLayout) -> Tensor:
        """(N, D) → (N, D)."""
        query_NHW = rotate(self._heads(self.query(x_ND)), *turn)
        key_NHW, value_NHW = self._keys_and_values(x_ND, turn)
        mixed = []
        for group in layout.groups:
            # Padding comes after a sequence's tokens, so the causal mask hides it from all of them.
            mixed_SHLW = functional.scaled_dot_product_attention(
                _side_by_side(query_NHW, group),
                _side_by_side(key_NHW, group),
                _side_by_side(value_NHW, group),
                is_causal=True,
            )
            mixed.append(mixed_SHLW.transpose(1, 2).flatten(0, 1))
        mixed_NHW = torch.cat(mixed).index_select(0, layout.slot_N)
        return self.output(mixed_NHW.flatten(1))

    def newest(self, x_ND: Tensor, turn: tuple[Tensor, Tensor], layout: JaggedLayout) -> Tensor:
        """(N, D) → (B, D): the same, of each sequence's newest token alone."""
        last_B = layout.last_B
        query_BHW = rotate(self._heads(self.query(x_ND[last_B])), *(t[last_B] for t in turn))
        key_NHW, value_NHW = self._keys_and_values(x_ND, turn)
        mixed_BHW = torch.empty_like(query_BHW)
        for group in layout.groups:
            mixed_SH1W = functional.scaled_dot_product_attention(
                query_BHW[group.rows_S][:, :, None],
                _side_by_side(key_NHW, group),
                _side_by_side(value_NHW, group),
                attn_mask=group.there_SL[:, None, None],
            )
            mixed_BHW[group.rows_S] = mixed_SH1W[:, :, 0]
        return self.output(mixed_BHW.flatten(1))

    def _heads(self, x_ND: Tensor) -> Tensor:
        return x_ND.unflatten(-1, (self.num_heads, -1))

    def _keys_and_values(self, x_ND: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        key_ND, value_ND = self.key_value(x_ND).chunk(2, dim=-1)
        return rotate(self._heads(key_ND), *turn), self._heads(value_ND)


def _side_by_side(x_NHW: Tensor, group: Group) -> Tensor:
    """(N, H, W) → (S, H, L, W)."""
    x_SLHW = x_NHW.index_select(0, group.tokens_SL.flatten()).unflatten(0, group.tokens_SL.shape)
    return x_SLHW.transpose(1, 2)


class Block(nn.Module):
    """Attention and feed-forward, each normalised before and added after."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = CausalAttention(width, num_heads)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_ND: Tensor, turn: tuple[Tensor, Tensor], layout: JaggedLayout) -> Tensor:
        """(N, D) → (N, D)."""
        x_ND = x_ND + self.dropout(self.attention(self.attention_norm(x_ND), turn, layout))
        return x_ND + self.dropout(self.feed_forward(x_ND))

    def newest(self, x_ND: Tensor, turn: tuple[Tensor, Tensor], layout: JaggedLayout) -> Tensor:
        """(N, D) → (B, D): the same, of each sequence's newest token alone; for inference."""
        mixed_BD = self.attention.newest(self.attention_norm(x_ND), turn, layout)
        x_BD = x_ND[layout.last_B] + mixed_BD
        return x_BD + self.feed_forward(x_BD)
