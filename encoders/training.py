"""Training: windows of users' sequences, two objectives, a learning rate that ends at zero.

Reproducible by seed on one machine, as long as the epochs end before the seconds do; the report
says which of them ended it. Reads no clock and no file: both are given.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from encoders.config import EncoderConfig
from encoders.data import (
    EventTable,
    Ints,
    Targets,
    jagged_batch,
    next_new_items,
    rows_of_windows,
    training_windows,
)
from encoders.model import UserEncoder, compute_device, computing
from encoders.objectives import Catalogue, next_item_loss, value_loss
from streams.errors import ConfigError

_MAX_GRADIENT_NORM = 1.0
_LEAST_RATE = 0.02


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How to train. `seconds` is a limit, `epochs` the plan. Raises ConfigError."""

    seconds: float = 60.0
    epochs: int = 12
    tokens_per_batch: int = 2_048
    learning_rate: float = 5e-3
    weight_decay: float = 0.01
    warmup_steps: int = 100
    max_candidates: int = 2_048
    value_weight: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("seconds", "epochs", "tokens_per_batch", "learning_rate", "max_candidates"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be above 0, not {getattr(self, name)}")


@dataclass(frozen=True)
class Progress:
    """Where training stands: `share` of the plan that is done, smoothed loss of both objectives."""

    share: float
    epoch: int
    loss: float


@dataclass(frozen=True)
class TrainingReport:
    """What happened. `stopped_by` is "epochs" or "seconds"; losses are means of the last epoch."""

    stopped_by: str
    epochs: int
    steps: int
    seconds: float
    next_item_loss: float
    value_loss: float


@dataclass(frozen=True)
class Trained:
    encoder: UserEncoder
    catalogue: Catalogue
    report: TrainingReport


def fitted_config(table: EventTable, config: EncoderConfig) -> EncoderConfig:
    """The config with the scales of the data: mean and spread of values, the usual time gap."""
    value = table.value_E[np.isfinite(table.value_E)].astype(np.float64)
    spread = float(value.std()) if len(value) else 0.0
    gap_ms = np.diff(table.event_time_ms_E)[np.diff(table.event_users()) == 0]
    gap_ms = gap_ms[gap_ms > 0]
    seconds = float(np.median(gap_ms)) / 1_000 if len(gap_ms) else config.time_scale_seconds
    return dataclasses.replace(
        config,
        value_mean=float(value.mean()) if len(value) else 0.0,
        value_scale=spread if spread > 0 else 1.0,
        time_scale_seconds=seconds,
    )


def train_encoder(
    table: EventTable,
    config: EncoderConfig,
    options: TrainingOptions,
    clock: Callable[[], float],
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Trained:
    """Train on all of the table. `clock` counts seconds, `on_progress` is called after every step.

    Raises ConfigError if there is nothing to learn from.
    """
    targets = next_new_items(table)
    catalogue = Catalogue.of(table, targets)
    if len(catalogue) < 2:
        raise ConfigError("nothing to learn: no user has events of two items; give more events")
    torch.manual_seed(options.seed)
    encoder = UserEncoder(fitted_config(table, config)).to(compute_device())
    run = _Run(table, targets, catalogue, encoder, options)
    report = run.train(clock, on_progress)
    return Trained(encoder.cpu().eval(), catalogue, report)


class _Run:
    """One training run's moving parts."""

    def __init__(
        self,
        table: EventTable,
        targets: Targets,
        catalogue: Catalogue,
        encoder: UserEncoder,
        options: TrainingOptions,
    ) -> None:
        self.table = table
        self.targets = targets
        self.catalogue = catalogue
        self.encoder = encoder
        self.options = options
        self.rng = np.random.default_rng(options.seed)
        self.generator = torch.Generator().manual_seed(options.seed)
        self.target_place_E = np.where(
            targets.event_E >= 0, catalogue.index(table.item_hash_E[targets.event_E]), -1
        )
        self.optimizer = torch.optim.AdamW(
            encoder.parameters(), betas=(0.9, 0.98), weight_decay=options.weight_decay, fused=True
        )

    def train(
        self, clock: Callable[[], float], on_progress: Callable[[Progress], None]
    ) -> TrainingReport:
        options, start, steps = self.options, clock(), 0
        share, epoch, losses = 0.0, 0, np.zeros((0, 2))
        while epoch < options.epochs and share < 1.0:
            epoch_losses = []
            batches = list(self._batches())
            for number, (rows_N, offsets_B1) in enumerate(batches):
                planned = (epoch + number / len(batches)) / options.epochs
                share = max(planned, (clock() - start) / options.seconds)
                if share >= 1.0:
                    break
                epoch_losses.append(self._step(rows_N, offsets_B1, self._rate(steps, share)))
                steps += 1
                on_progress(Progress(share, epoch + 1, float(np.sum(epoch_losses[-20:], 1).mean())))
            else:
                epoch += 1
            losses = np.array(epoch_losses) if epoch_losses else losses
        return TrainingReport(
            stopped_by="epochs" if epoch == options.epochs else "seconds",
            epochs=epoch,
            steps=steps,
            seconds=clock() - start,
            next_item_loss=float(losses[:, 0].mean()),
            value_loss=float(losses[:, 1].mean()),
        )

    def _rate(self, steps: int, share: float) -> float:
        """A short rise, then half a cosine down to a small rest, on whichever ends first."""
        rise = min(1.0, (steps + 1) / self.options.warmup_steps)
        fall = 0.5 * (1 + math.cos(math.pi * share))
        return self.options.learning_rate * rise * max(_LEAST_RATE, fall)

    def _batches(self) -> Iterator[tuple[Ints, Ints]]:
        """Windows in random order, packed until the next one would exceed the token budget."""
        length = self.encoder.config.max_length
        starts_W, ends_W = training_windows(self.table, length, self.rng)
        first, tokens = 0, 0
        for place, size in enumerate(ends_W - starts_W):
            if tokens and tokens + size > self.options.tokens_per_batch:
                yield rows_of_windows(starts_W[first:place], ends_W[first:place])
                first, tokens = place, 0
            tokens += size
        yield rows_of_windows(starts_W[first:], ends_W[first:])

    def _step(self, rows_N: Ints, offsets_B1: Ints, rate: float) -> tuple[float, float]:
        """One update; returns both losses."""
        with_target = np.flatnonzero(self.target_place_E[rows_N] >= 0)
        if not len(with_target):
            return 0.0, 0.0
        self.encoder.train()
        device = next(self.encoder.parameters()).device
        rows_T = rows_N[with_target]
        with computing(device):
            state_ND = self.encoder.states(jagged_batch(self.table, rows_N, offsets_B1).to(device))
        state_TD = state_ND[torch.from_numpy(with_target).to(device)]
        place_T = torch.from_numpy(self.target_place_E[rows_T])
        next_item = next_item_loss(
            self.encoder,
            state_TD,
            place_T,
            self.catalogue,
            self.options.max_candidates,
            self.generator,
        )
        value_T = torch.from_numpy(self.targets.value_E[rows_T]).to(device)
        item_hash_T = self.catalogue.item_hash_M[place_T].to(device)
        value = value_loss(self.encoder, state_TD, item_hash_T, value_T)
        self._update(next_item + self.options.value_weight * value, rate)
        return next_item.item(), value.item()

    def _update(self, loss: torch.Tensor, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.encoder.parameters(), _MAX_GRADIENT_NORM)
        self.optimizer.step()
