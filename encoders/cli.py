"""`headwater train` and `headwater export`: from events to a model that Triton serves."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

# Threads that wait asleep: on a busy machine spinning ones slow training down tenfold. Read when
# torch is loaded, so it has to be said before.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from encoders import training
from encoders.checkpoint import check_output, write_checkpoint
from encoders.config import EncoderConfig
from encoders.data import EventTable, read_events
from encoders.evaluation import RankingReport, evaluate_next_item
from encoders.export import ServingOptions, export_version, holds_checkpoint
from encoders.serving import Publication, take_into_service
from streams.errors import ConfigError
from streams.settings import load_settings

_HEAD_WIDTH = 32
# Evaluation and writing get the rest of the time that was given.
_TRAINING_SHARE = 0.9


@click.command(
    epilog="Example:\n\n\b\n  headwater train --events events.parquet --out build/checkpoint"
)
@click.option(
    "--events",
    "events_file",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Parquet (*.parquet) or JSON lines of events.",
)
@click.option(
    "--out",
    "out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Directory of the checkpoint; one that is there is replaced.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=60,
    show_default=True,
    help="At most so long.",
)
@click.option(
    "--epochs",
    type=click.IntRange(min=1),
    default=12,
    show_default=True,
    help="Passes over the events, if the time is enough.",
)
@click.option(
    "--dimensions",
    type=click.IntRange(min=4),
    default=64,
    show_default=True,
    help="Width of the representation.",
)
@click.option(
    "--max-length",
    type=click.IntRange(min=2),
    default=128,
    show_default=True,
    help="Newest events of a user that are encoded.",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="The same seed, the same encoder.",
)
@click.option(
    "--holdout",
    type=click.FloatRange(0, 0.9),
    default=0.1,
    show_default=True,
    help="Newest share of the events that is kept out of training and measured on.",
)
def train(
    events_file: Path,
    out: Path,
    seconds: float,
    epochs: int,
    dimensions: int,
    max_length: int,
    seed: int,
    holdout: float,
) -> None:
    """Train the user encoder on a file of events and write a checkpoint.

    Ends after the planned epochs or when the time is up, whichever comes first; the same seed
    gives the same encoder on the same machine if it was the epochs.
    """
    config = _config(dimensions, max_length)
    check_output(out)
    console = Console(stderr=True)
    options = training.TrainingOptions(seconds=seconds * _TRAINING_SHARE, epochs=epochs, seed=seed)
    table = read_events(events_file)
    cut = table.time_at(1 - holdout) if holdout else None
    seen = table if cut is None else table.before(cut)
    trained = _train(seen, config, options, console)
    ranking = None
    if cut is not None:
        ranking = evaluate_next_item(trained.encoder, trained.catalogue, table, cut, seed=seed)
    write_checkpoint(out, trained.encoder, _metrics(table, seen, trained, ranking, options))
    _show(trained.report, ranking, out, console)


def _config(dimensions: int, max_length: int) -> EncoderConfig:
    try:
        return EncoderConfig(
            dimensions=dimensions,
            max_length=max_length,
            num_heads=max(1, dimensions // _HEAD_WIDTH),
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _train(
    table: EventTable,
    config: EncoderConfig,
    options: training.TrainingOptions,
    console: Console,
) -> training.Trained:
    columns = (
        TextColumn("training"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %  epoch {task.fields[epoch]}"),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("training", total=1.0, epoch=0, loss=float("nan"))

        def show(progress: training.Progress) -> None:
            bar.update(task, completed=progress.share, epoch=progress.epoch, loss=progress.loss)

        trained = training.train_encoder(table, config, options, time.monotonic, show)
        bar.update(task, completed=1.0)
    return trained


def _metrics(
    table: EventTable,
    seen: EventTable,
    trained: training.Trained,
    ranking: RankingReport | None,
    options: training.TrainingOptions,
) -> dict[str, Any]:
    measured = ranking is not None and ranking.questions > 0
    return {
        "events": len(table),
        "training_events": len(seen),
        "users": len(table.user_ids),
        "items": len(trained.catalogue),
        "options": dataclasses.asdict(options),
        "training": dataclasses.asdict(trained.report),
        "held_out": dataclasses.asdict(ranking) if ranking is not None and measured else None,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def _show(
    report: training.TrainingReport, ranking: RankingReport | None, out: Path, console: Console
) -> None:
    console.print(
        f"{report.steps} steps, {report.epochs} epochs in {report.seconds:.1f} s "
        f"(ended by {report.stopped_by}); checkpoint in {out}"
    )
    if ranking is None or not ranking.questions:
        console.print("nothing held out to measure on")
        return
    title = f"next new item of {ranking.questions} held-out events"
    table = Table("", f"recall@{ranking.k}", f"NDCG@{ranking.k}", title=title, box=None)
    table.add_row("encoder", f"{ranking.recall:.3f}", f"{ranking.ndcg:.3f}")
    table.add_row(
        "popularity", f"{ranking.popularity_recall:.3f}", f"{ranking.popularity_ndcg:.3f}"
    )
    console.print(table)


@click.command(
    epilog="Example:\n\n\b\n  headwater export --checkpoint build/checkpoint --version 1 --load "
    "--activate"
)
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Directory that `headwater train` wrote.",
)
@click.option(
    "--version",
    type=click.IntRange(min=1),
    required=True,
    help="A new number; what exists is never changed.",
)
@click.option("--encoder", default="user_encoder", show_default=True, help="The model's name.")
@click.option(
    "--load",
    is_flag=True,
    help="Have Triton load it, wait until it serves, try it, and list it in `headwater versions`.",
)
@click.option("--activate", is_flag=True, help="With --load: workers write and readers read it.")
@click.option(
    "--model-repository",
    type=click.Path(path_type=Path, file_okay=False),
    help="Default: the running stack's.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=32_768,
    show_default=True,
    help="Events that one request may hold.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Processor threads of the model.",
)
@click.option(
    "--execution-env",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Virtual environment with torch, for a Triton whose own Python has none.",
)
def export(
    checkpoint: Path,
    version: int,
    encoder: str,
    load: bool,
    activate: bool,
    model_repository: Path | None,
    max_tokens: int,
    threads: int,
    execution_env: Path | None,
) -> None:
    """Publish a checkpoint as a version of the encoder in Triton's model repository.

    The exported files must give the checkpoint's vectors before they appear there; with --load,
    Triton must give them too. Again with --load, it goes on where it was interrupted.
    """
    if activate and not load:
        raise click.UsageError("--activate needs --load")
    settings = load_settings()
    repository = model_repository or settings.model_repository_path
    options = ServingOptions(max_tokens=max_tokens, threads=threads, environment=execution_env)
    if load and holds_checkpoint(checkpoint, repository, encoder, version):
        click.echo(f"{encoder} version {version} is in {repository} already")
    else:
        exported = export_version(checkpoint, repository, encoder, version, options)
        click.echo(
            f"{encoder} version {version} is in {exported.directory}; "
            f"largest difference from the checkpoint {exported.difference:.1e}"
        )
        for note in exported.notes:
            click.echo(note, err=True)
    if load:
        publication = Publication(checkpoint, encoder, str(version), max_tokens, activate)
        difference = asyncio.run(take_into_service(settings, publication, time.time))
        click.echo(
            f"Triton at {settings.triton.url} serves it; "
            f"largest difference from the checkpoint {difference:.1e}"
        )
        click.echo(f"{encoder} version {version} is {'active' if activate else 'ready'}")
