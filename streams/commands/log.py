"""`headwater log`: whether the events topic is the one that the stored log positions belong to."""

from __future__ import annotations

import asyncio
import json
import time
from typing import NamedTuple

import click

from streams.cassandra import Session
from streams.commands.tables import console, plain_table
from streams.errors import LogMismatch
from streams.kafka import (
    PartitionOffsets,
    TopicIdentity,
    forget_group_offsets,
    group_offsets,
    skip_lost_offsets,
    topic_identity,
)
from streams.log_store import LogEpoch, LogStore
from streams.settings import Settings, load_settings


class LogState(NamedTuple):
    """The topic as it is, the epochs as they are recorded, the group's offsets."""

    identity: TopicIdentity
    epochs: list[LogEpoch]
    offsets: list[PartitionOffsets]

    @property
    def problem(self) -> str | None:
        """Why a worker would refuse to start; None if it wouldn't."""
        if not self.epochs:
            return None
        newest = self.epochs[0]
        if newest.topic_id != self.identity.topic_id:
            return "the topic was recreated: the recorded positions belong to another one"
        if newest.partitions != self.identity.partitions:
            return (
                f"the topic has {self.identity.partitions} partitions, epoch {newest.epoch} "
                f"was opened with {newest.partitions}: users moved between partitions"
            )
        lost = [found.partition for found in self.offsets if _is_lost(found)]
        if lost:
            return f"the broker deleted unread records of partitions {', '.join(map(str, lost))}"
        return None


@click.group(epilog="Examples:\n\n\b\n  headwater log status\n  headwater log open-epoch")
def log() -> None:
    """Compare the events topic with the recorded log positions, open a new epoch."""


@log.command(epilog="Example:\n\n\b\n  headwater log status --json")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def status(as_json: bool) -> int:
    """Show the topic, its epochs and the sequence workers' offsets. Exit code 1 if they differ."""
    settings = load_settings()
    state = _state(settings)
    if as_json:
        click.echo(json.dumps(_as_json(settings, state)))
    else:
        _print(settings, state)
    return 1 if state.problem else 0


@log.command("open-epoch", epilog="Example:\n\n\b\n  headwater log open-epoch --yes")
@click.option("--yes", is_flag=True, help="Don't ask.")
def open_epoch(yes: bool) -> None:
    """Take the topic as it is now: the next epoch, after the topic was recreated or repartitioned.

    Stop the sequence workers first. Stored sequences stay; every record of the new epoch is newer
    than all of them in the order of the log. After a recreation the workers start at the topic's
    beginning; after an expiry of unread records they go on behind the gap.
    """
    settings = load_settings()
    state = _state(settings)
    if state.problem is None and state.epochs:
        click.echo(f"epoch {state.epochs[0].epoch} is this topic's; there is nothing to do")
        return
    click.echo(state.problem or "no epoch is recorded yet")
    if not yes:
        click.confirm("open a new epoch for the topic as it is?", abort=True)
    topic, group = settings.kafka.events_topic, settings.sequence_worker.group
    if state.epochs and state.epochs[0].topic_id != state.identity.topic_id:
        forget_group_offsets(settings.kafka, group, topic)
    for partition, lost in skip_lost_offsets(settings.kafka, group, topic).items():
        click.secho(f"partition {partition}: {lost} records were lost unread", fg="yellow")
    opened = asyncio.run(_open(settings, state.identity))
    click.echo(f"epoch {opened.epoch} is open; start the sequence workers")


async def _open(settings: Settings, identity: TopicIdentity) -> LogEpoch:
    session = Session(settings.cassandra)
    try:
        return await LogStore(session).open_epoch(
            settings.kafka.events_topic,
            identity.topic_id,
            identity.partitions,
            int(time.time() * 1000),
        )
    finally:
        await session.close()


def _state(settings: Settings) -> LogState:
    topic = settings.kafka.events_topic
    identity = topic_identity(settings.kafka, topic)
    offsets = group_offsets(settings.kafka, settings.sequence_worker.group, topic)
    return LogState(identity, asyncio.run(_epochs(settings)), offsets)


async def _epochs(settings: Settings) -> list[LogEpoch]:
    session = Session(settings.cassandra)
    try:
        return await LogStore(session).read_epochs(settings.kafka.events_topic)
    finally:
        await session.close()


def _is_lost(found: PartitionOffsets) -> bool:
    return found.committed is not None and found.committed < found.start


def _as_json(settings: Settings, state: LogState) -> dict[str, object]:
    return {
        "topic": settings.kafka.events_topic,
        "topic_id": state.identity.topic_id,
        "partitions": state.identity.partitions,
        "problem": state.problem,
        "epochs": [
            {
                "epoch": epoch.epoch,
                "topic_id": epoch.topic_id,
                "partitions": epoch.partitions,
                "opened_at": epoch.opened_at,
            }
            for epoch in state.epochs
        ],
        "offsets": [
            {
                "partition": found.partition,
                "start": found.start,
                "committed": found.committed,
                "end": found.end,
                "lag": found.lag,
            }
            for found in state.offsets
        ],
    }


def _print(settings: Settings, state: LogState) -> None:
    identity = state.identity
    click.echo(
        f"topic {settings.kafka.events_topic}: id {identity.topic_id}, "
        f"{identity.partitions} partitions"
    )
    for epoch in state.epochs:
        click.echo(f"epoch {epoch.epoch}: id {epoch.topic_id}, {epoch.partitions} partitions")
    if not state.epochs:
        click.echo("no epoch yet: the first sequence worker opens epoch 1")
    table = plain_table("partition", "start", "committed", "end", "lag")
    for found in state.offsets:
        committed = "-" if found.committed is None else str(found.committed)
        row = (found.partition, found.start, committed, found.end, found.lag)
        table.add_row(*map(str, row))
    console().print(table)
    if state.problem:
        error = LogMismatch(f"{state.problem}; see `headwater log open-epoch --help`")
        click.secho(str(error), fg="red", err=True)
