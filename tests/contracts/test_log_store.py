"""What every log store does: epochs grow by one per incarnation, whoever opens them."""

from __future__ import annotations

import asyncio

import pytest

from streams.errors import LogMismatch
from streams.log_store import LogEpoch, LogStore, next_epoch
from streams.testing import InMemoryLogStore

Store = LogStore | InMemoryLogStore


async def test_a_new_topic_has_no_epoch(log_store: Store, unique: str) -> None:
    assert await log_store.read_epochs(unique) == []


async def test_the_first_epoch_is_one_and_opening_it_again_finds_it(
    log_store: Store, unique: str
) -> None:
    opened = await log_store.open_epoch(unique, "id-1", 8, 1_700_000_000_123)
    assert opened == LogEpoch(unique, 1, "id-1", 8, 1_700_000_000_123)
    assert await log_store.open_epoch(unique, "id-1", 8, 1_800_000_000_000) == opened
    assert await log_store.read_epochs(unique) == [opened]


@pytest.mark.parametrize(("topic_id", "partitions"), [("id-2", 8), ("id-1", 16)])
async def test_another_incarnation_opens_the_next_epoch(
    log_store: Store, unique: str, topic_id: str, partitions: int
) -> None:
    first = await log_store.open_epoch(unique, "id-1", 8, 1_000)
    assert not first.is_of(topic_id, partitions)
    second = await log_store.open_epoch(unique, topic_id, partitions, 2_000)
    assert second.epoch == 2
    assert await log_store.read_epochs(unique) == [second, first]
    again = await log_store.open_epoch(unique, "id-1", 8, 3_000)
    assert again.epoch == 3


async def test_of_many_openers_one_opens_and_all_find_its_epoch(
    log_store: Store, unique: str
) -> None:
    opened = await asyncio.gather(
        *(log_store.open_epoch(unique, "id-1", 8, 1_000 + number) for number in range(8))
    )
    assert {epoch.epoch for epoch in opened} == {1}
    assert len(await log_store.read_epochs(unique)) == 1


def test_epochs_end(unique: str) -> None:
    with pytest.raises(LogMismatch, match="used up"):
        next_epoch(unique, LogEpoch(unique, 2047, "id", 8, 0))
