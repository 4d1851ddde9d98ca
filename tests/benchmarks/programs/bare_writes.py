"""The bounds of `ingest.durable`: aiokafka, msgspec, acsylla and nothing else.

    TOPIC EVENTS ROWS ROW_BYTES IN_FLIGHT READS REQUESTS

Fetches and decodes the topic and writes as many rows of the same size as the platform did, spread
evenly over the events; with READS and REQUESTS it also reads as many users and sends as many
records of a refresh request's size. Answers when everything is acknowledged.
"""

from __future__ import annotations

import asyncio
import secrets
import sys

import acsylla
import confluent_kafka
import msgspec
import uvloop
from aiokafka import AIOKafkaConsumer

from streams.settings import load_settings
from tests.benchmarks.competitors.clock import EventClock


class _Event(msgspec.Struct, gc=False):
    event_id: str
    user_id: str
    item_id: str
    event_type: str
    event_time: int
    surface: str | None = None
    value: float | None = None


_REQUEST = b"x" * 250


async def _run(
    topic: str, events: int, rows: int, row_bytes: int, in_flight: int, reads: int, requests: int
) -> None:
    settings = load_settings()
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": settings.kafka.bootstrap_servers, "linger.ms": 1, "acks": "all"}
    )
    cluster = acsylla.create_cluster(
        list(settings.cassandra.contact_points), port=settings.cassandra.port
    )
    session = await cluster.create_session(keyspace=settings.cassandra.keyspace)
    insert = await session.create_prepared(
        "INSERT INTO user_sequence (user_id, feature_view, chunk, value) "
        "VALUES (?, ?, ?, ?) USING TIMESTAMP ?"
    )
    select = await session.create_prepared(
        "SELECT feature_view, chunk, value, WRITETIME(value), mark, WRITETIME(mark) "
        "FROM user_sequence WHERE user_id = ? LIMIT 5"
    )
    decode = msgspec.json.Decoder(_Event).decode
    value = secrets.token_bytes(row_bytes)
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=settings.kafka.bootstrap_servers,
        group_id=f"bench-{secrets.token_hex(4)}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_wait_ms=settings.kafka.fetch_wait_ms,
        max_partition_fetch_bytes=settings.kafka.max_partition_fetch_bytes,
    )
    await consumer.start()
    clock = EventClock(events)
    done = {"rows": 0, "reads": 0, "requests": 0}

    async def write(left: list[tuple[str, int]]) -> None:
        while left:
            user, position = left.pop()
            await session.execute(insert.bind([user, "engagement", 1, value, position]))

    async def read(left: list[tuple[str, int]]) -> None:
        while left:
            await session.execute(select.bind([left.pop()[0]]))

    def due(what: str, total: int, users: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """The users of a batch whose turn it is, so that `total` come over all events."""
        count = (events - clock.left) * total // events - done[what]
        done[what] += count
        step = max(1, len(users) // count) if count else 1
        return (users * (count // len(users) + 1))[: count * step : step][:count]

    while clock.left > 0:
        for batch in (await consumer.getmany(timeout_ms=1_000)).values():
            clock.start()
            users = [(decode(record.value).user_id, record.offset) for record in batch]
            clock.left -= len(users)
            wanted = due("reads", reads, users)
            await asyncio.gather(*(read(wanted) for _ in range(in_flight)))
            wanted = due("rows", rows, users)
            await asyncio.gather(*(write(wanted) for _ in range(in_flight)))
            for user, _ in due("requests", requests, users):
                producer.produce(settings.kafka.refresh_topic, _REQUEST, user)
        if requests:
            await asyncio.to_thread(producer.flush, 30)
        await consumer.commit()
    clock.report_and_exit(**done)


def main() -> None:
    """Consume the topic from its start."""
    topic, *numbers = sys.argv[1:]
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(_run(topic, *map(int, numbers)))


if __name__ == "__main__":
    main()
