"""One event's way, told afterwards from what is stored anyway. Nothing is kept per event.

Exact are: the event's time, its append, and for the batch that it was folded in, as the refresh
request tells it: folded, stored, queued. The representation says up to which record it goes and
when it was encoded; once a newer event has led to a newer one, the older encoding's time is gone,
and the trace says so. The moment of the first read is kept of no event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from streams.errors import InvalidRecord
from streams.events import Event, Forget, decode_record
from streams.kafka import home_partition
from streams.monitor.log import LogRecord, LogWatch
from streams.representations import RefreshRequest
from streams.sample_store import SampledRepresentation
from streams.sequences import Row, SequenceView, log_position, sequence_events

_SLICE = 5_000


class Found(msgspec.Struct, frozen=True):
    """The event's record."""

    partition: int
    offset: int
    ingested_at: int
    record: Event | Forget


class Step(msgspec.Struct, frozen=True):
    """One step of the way. `at` ms, None where it can't be told; `text` says what, or why not."""

    name: str
    at: int | None
    text: str


def find_event(
    watch: LogWatch, topic: str, event_id: str, max_records: int, user_id: str | None = None
) -> Found | None:
    """The first record of an event among the newest `max_records` per partition, newest first.

    With `user_id`, only its home partition is searched. Raises DeliveryFailed.
    """
    bounds = watch.bounds(topic)
    chosen = sorted(bounds) if user_id is None else [home_partition(user_id.encode(), len(bounds))]
    needle = event_id.encode()
    for partition in chosen:
        start, end = bounds[partition]
        stop = max(start, end - max_records)
        while end > stop:
            first = max(stop, end - _SLICE)
            for record in watch.read_records(topic, {partition: (first, end)}).get(partition, ()):
                found = _event(record, needle, event_id)
                if found is not None:
                    return found
            end = first
    return None


def _event(record: LogRecord, needle: bytes, event_id: str) -> Found | None:
    if record.value is None or needle not in record.value:
        return None
    try:
        event = decode_record(record.value)
    except InvalidRecord:
        return None
    if event.event_id != event_id:
        return None
    return Found(record.partition, record.offset, record.appended_at, event)


def find_request(
    watch: LogWatch, topic: str, user_id: str, position: int, max_records: int
) -> tuple[RefreshRequest, int] | None:
    """The first refresh request that covers a log position, and when it was queued (ms)."""
    bounds = watch.bounds(topic)
    partition = home_partition(user_id.encode(), len(bounds))
    start, end = bounds[partition]
    stop, needle = max(start, end - max_records), user_id.encode()
    covering: tuple[RefreshRequest, int] | None = None
    while end > stop:
        first = max(stop, end - _SLICE)
        records = watch.read_records(topic, {partition: (first, end)}).get(partition, ())
        for record in reversed(records):
            if record.key != needle:
                continue
            request = RefreshRequest.decode(record.value)
            if request.position < position:
                return covering
            covering = request, record.appended_at
        end = first
    return covering


def tell(
    found: Found,
    *,
    epoch: int | None,
    acknowledged: bool | None,
    dead_letter: str | None,
    request: tuple[RefreshRequest, int] | None,
    rows: Sequence[Row],
    views: Mapping[str, SequenceView],
    representations: Mapping[tuple[str, str], SampledRepresentation | None],
) -> list[Step]:
    """The steps in order; `acknowledged` None if Kafka couldn't tell. Pure."""
    record = found.record
    steps = [
        Step("produced", record.event_time, "the producer's clock"),
        Step("broker", found.ingested_at, f"partition {found.partition}, offset {found.offset}"),
    ]
    if dead_letter is not None:
        return [*steps, Step("dead letter", None, dead_letter)]
    if not acknowledged and request is None:
        why = "can't tell" if acknowledged is None else "not yet: the sequence worker hasn't"
        return [*steps, Step("folded", None, f"{why} acknowledged it")]
    if request is None:
        text = "its batch's time isn't kept: no refresh request on the topic covers it"
        steps.append(Step("folded", None, text))
        return [*steps, _stored(record, rows, views, None)]
    asked, queued_at = request
    own = asked.event_id == record.event_id
    steps.append(Step("folded", asked.folded_at, "its batch"))
    steps.append(_stored(record, rows, views, asked.stored_at))
    text = "" if own else f"with a newer event of the user, {asked.event_id}"
    steps.append(Step("refresh queued", queued_at, text))
    position = None if epoch is None else log_position(epoch, found.offset)
    for (encoder, version), facts in representations.items():
        steps.append(_encoded(f"{encoder} version {version}", facts, position, asked.position))
    steps.append(Step("first read", None, "not kept per event; canaries and readers measure it"))
    return steps


def _stored(
    record: Event | Forget,
    rows: Sequence[Row],
    views: Mapping[str, SequenceView],
    stored_at: int | None,
) -> Step:
    if isinstance(record, Forget):
        return Step("deleted", stored_at, f"all up to event time {record.event_time}")
    wanted = [view for view in views.values() if record.event_type in view.event_types]
    if not wanted:
        return Step("sequence stored", None, f"no view takes event type {record.event_type!r}")
    holding = [
        view.name
        for view in wanted
        if any(
            kept.event_id == record.event_id
            for kept in sequence_events([row for row in rows if row.view == view.name], view)
        )
    ]
    if holding:
        return Step("sequence stored", stored_at, f"in {', '.join(holding)}")
    return Step(
        "sequence stored",
        stored_at,
        "not in the sequence now: newer events pushed it out, it was too old, or it was forgotten",
    )


def _encoded(
    name: str, facts: SampledRepresentation | None, position: int | None, asked: int
) -> Step:
    if facts is None:
        return Step("encoded", None, f"{name}: the user has no representation")
    if position is None:
        return Step("encoded", None, f"{name}: can't tell, the topic's epoch isn't known")
    if facts.position < position:
        return Step("encoded", None, f"{name}: not yet, the stored one is older")
    if facts.position <= asked:
        return Step("encoded", facts.encoded_at, name)
    newer = datetime.fromtimestamp(facts.encoded_at / 1000, UTC)
    text = f"{name}: earlier; a newer one of {newer:%Y-%m-%d %H:%M:%SZ} took its place"
    return Step("encoded", None, text)
