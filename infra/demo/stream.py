"""The live part of the demo: send at a pace, show what happens, log features as a ranker would."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec
from rich.console import Console
from rich.live import Live
from rich.table import Table

from infra.demo import measure
from infra.demo.replay import Sending
from streams.errors import HeadwaterError
from streams.monitor.snapshot import Snapshot
from streams.producer import EventProducer
from streams.settings import Settings

_TABLE_SECONDS = 0.5
_SETTLE_SECONDS = 60.0


class Streamed(msgspec.Struct):
    """What was sent, and what the monitor's canaries added meanwhile."""

    sent: int = 0
    canaries: int = 0
    seconds: float = 0.0

    @property
    def produced(self) -> int:
        return self.sent + self.canaries


async def stream(
    settings: Settings,
    sendings: list[Sending],
    streamed: Streamed,
    before: Callable[[float], None],
) -> None:
    """Send everything at its time; `before(at)` is called ahead of each group of sendings."""
    started = time.monotonic()
    async with EventProducer(settings) as producer:
        for sending in sendings:
            wait = started + sending.at - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            before(sending.at)
            await producer.send_raw(sending.key, sending.value)
            streamed.sent = producer.produced
    streamed.seconds = time.monotonic() - started


async def settled(urls: list[str], expected: int) -> measure.Reading:
    """Wait until the workers have consumed `expected` records and nothing is left to encode."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        reading = await asyncio.to_thread(measure.read, urls)
        idle = reading.gauges.get("headwater_lag_records", 0) == 0
        if reading.consumed >= expected and idle:
            return reading
        if time.monotonic() > deadline:
            raise _unconsumed(reading, expected)
        await asyncio.sleep(0.1)


async def settled_with_canaries(
    urls: list[str], monitor: str, expected: int
) -> tuple[measure.Reading, Snapshot]:
    """Like `settled`, while the monitor goes on sending canaries, which it counts itself.

    The workers are told to have consumed everything once that is what was `expected` and the
    canaries, and still is when the monitor has counted anew: a canary is consumed a little before
    the monitor's next snapshot counts it. Without such a moment: what was read last.
    """
    deadline = time.monotonic() + _SETTLE_SECONDS
    met: tuple[int, int] | None = None  # consumed records, number of the snapshot
    while True:
        reading = await asyncio.to_thread(measure.read, urls)
        seen = await asyncio.to_thread(measure.snapshot, monitor)
        idle = reading.gauges.get("headwater_lag_records", 0) == 0
        if not idle or reading.consumed != expected + seen.canary.num_sent:
            met = None
        elif met is None or met[0] != reading.consumed:
            met = (reading.consumed, seen.number)
        elif seen.number > met[1]:
            return reading, seen
        if time.monotonic() > deadline:
            if reading.consumed < expected or not idle:
                raise _unconsumed(reading, expected)
            return reading, seen
        await asyncio.sleep(0.1)


def _unconsumed(reading: measure.Reading, expected: int) -> HeadwaterError:
    return HeadwaterError(
        f"workers consumed {reading.consumed} of {expected} records in time; see: headwater logs"
    )


async def show(
    console: Console,
    urls: list[str],
    monitor: str,
    base: measure.Reading,
    streamed: Streamed,
    done: asyncio.Event,
) -> None:
    """The live table of what happened since `base`, until `done`."""

    async def look() -> Table:
        reading = await asyncio.to_thread(measure.read, urls)
        seen = await asyncio.to_thread(measure.snapshot, monitor)
        streamed.canaries = seen.canary.num_sent
        recent = measure.Reading(reading.sums.since(base.sums), reading.gauges)
        return _table(recent, streamed)

    with Live(console=console, refresh_per_second=4, transient=not console.is_terminal) as live:
        while not done.is_set():
            live.update(await look())
            try:
                await asyncio.wait_for(done.wait(), _TABLE_SECONDS)
            except TimeoutError:
                continue
        live.update(await look())


def _table(recent: measure.Reading, streamed: Streamed) -> Table:
    outcomes = recent.outcomes()
    table = Table(box=None, pad_edge=False, header_style="dim")
    numbers = {
        "produced": streamed.produced,
        "applied": outcomes["applied"],
        "duplicate": outcomes["duplicate"],
        "dead letters": outcomes["dead_lettered"],
        "users": int(recent.gauges.get("headwater_cached_users", 0)),
        "encoded": recent.encoded,
        "lag": int(recent.gauges.get("headwater_lag_records", 0)),
    }
    for name in numbers:
        table.add_column(name, justify="right")
    delays = measure.freshness(recent) | measure.stages(recent.sums)
    for name in ("sequence", "representation"):
        table.add_column(f"{name} p50 / p99", justify="right")
    row = [f"{value:,}" for value in numbers.values()]
    table.add_row(*row, *(_delay(delays[name]) for name in ("sequence", "representation")))
    return table


def _delay(summary: dict[str, float | int | None]) -> str:
    if summary["p50"] is None or summary["p99"] is None:
        return "-"
    return f"{summary['p50'] * 1000:.0f} / {summary['p99'] * 1000:.0f} ms"


def stage_table(stages: dict[str, dict[str, float | int | None]]) -> Table:
    """Delay of every stage, the slowest in bold."""
    slowest = max(stages, key=lambda name: stages[name]["p99"] or 0)
    table = Table("stage", "p50", "p99", "events", box=None, pad_edge=False, header_style="dim")
    for name, found in stages.items():
        delays = [
            "-" if found[share] is None else f"{found[share] * 1000:.0f} ms"  # type: ignore[operator]
            for share in ("p50", "p99")
        ]
        style = "bold" if name == slowest else None
        table.add_row(name.replace("_", " "), *delays, f"{found['events']:,}", style=style)
    return table
