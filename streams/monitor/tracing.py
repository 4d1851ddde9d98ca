"""Gathers what `trace.tell` needs: from Kafka, Cassandra and the declared views."""

from __future__ import annotations

import asyncio

from streams.errors import HeadwaterError
from streams.kafka import list_dead_letters
from streams.log_store import LogStore
from streams.monitor.log import LogWatch
from streams.monitor.trace import Found, Step, find_event, find_request, tell
from streams.representations import VersionState
from streams.sample_store import SampledRepresentation, SampleStore
from streams.sequences import log_position
from streams.settings import Settings
from streams.stores import Stores, store_pool
from streams.views import DeclaredViews, declared_views, feature_store

_KAFKA_SECONDS = 10.0
_DEAD_LETTERS = 1_000


async def trace_event(
    settings: Settings, event_id: str, user_id: str | None, max_records: int
) -> list[Step] | None:
    """The event's way; None if its record isn't found. Raises HeadwaterError."""
    watch = LogWatch(settings.kafka, _KAFKA_SECONDS)
    pool = store_pool(settings.cassandra)
    try:
        topic = settings.kafka.events_topic
        found = await asyncio.to_thread(find_event, watch, topic, event_id, max_records, user_id)
        if found is None:
            return None
        declared = await asyncio.to_thread(lambda: declared_views(feature_store(settings)))
        return await _tell(settings, watch, pool.stores(), declared, found, max_records)
    finally:
        watch.close()
        await pool.close()


async def _tell(
    settings: Settings,
    watch: LogWatch,
    stores: Stores,
    declared: DeclaredViews,
    found: Found,
    max_records: int,
) -> list[Step]:
    kafka, user_id = settings.kafka, found.record.user_id
    epochs = await LogStore(stores.session).read_epochs(kafka.events_topic)
    epoch = epochs[0].epoch if epochs else None
    request = None
    if epoch is not None:
        request = await asyncio.to_thread(
            find_request, watch, kafka.refresh_topic, user_id,
            log_position(epoch, found.offset), max_records,
        )  # fmt: skip
    stored = await stores.sequences.load_all(user_id)
    return tell(
        found,
        epoch=epoch,
        acknowledged=await _acknowledged(settings, watch, found),
        dead_letter=await _dead_letter(settings, found),
        request=request,
        rows=stored.rows,
        views=declared.sequences,
        representations=await _representations(stores, declared, user_id),
    )


async def _acknowledged(settings: Settings, watch: LogWatch, found: Found) -> bool | None:
    group, topic = settings.sequence_worker.group, settings.kafka.events_topic
    try:
        reading = await asyncio.to_thread(watch.read_group, group, topic)
    except HeadwaterError:
        return None  # the trace says that it can't tell
    by_partition = {row.partition: row for row in reading.partitions}
    return by_partition[found.partition].position > found.offset


async def _dead_letter(settings: Settings, found: Found) -> str | None:
    letters = await asyncio.to_thread(list_dead_letters, settings.kafka, _DEAD_LETTERS)
    for letter in letters:
        if (letter.origin_partition, letter.origin_offset) == (found.partition, found.offset):
            return f"{letter.reason}: {letter.detail}"
    return None


async def _representations(
    stores: Stores, declared: DeclaredViews, user_id: str
) -> dict[tuple[str, str], SampledRepresentation | None]:
    sample = SampleStore(stores.session)
    found: dict[tuple[str, str], SampledRepresentation | None] = {}
    for encoder in sorted({view.encoder for view in declared.representations.values()}):
        for version in await stores.representations.read_versions(encoder):
            if version.state is not VersionState.RETIRED:
                read = await sample.read_representations(encoder, version.version, [user_id])
                found[encoder, version.version] = read[0]
    return found
