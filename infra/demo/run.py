"""The demo, from an empty machine to a report: reads like the list of its steps.

Assembles everything; the parts are beside it. Whatever it measures is written down as it is.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from rich.console import Console

from infra.demo import measure, movielens
from infra.demo.programs import Program, Programs, say_goodbye
from infra.demo.replay import plan
from infra.demo.steps import Steps, headwater
from infra.demo.stream import (
    Streamed,
    settled,
    settled_with_canaries,
    show,
    stage_table,
    stream,
)
from infra.local.layout import Home
from infra.local.stack import LocalStack, end_programs
from streams.commands.freshness_table import freshness_picture
from streams.errors import ConfigError, HeadwaterError
from streams.events import Event, encode_record
from streams.monitor.snapshot import Snapshot
from streams.producer import EventProducer
from streams.settings import Settings

if TYPE_CHECKING:
    from infra.demo.readers import Checked
    from infra.demo.serving import ServingLog

VERSION = "1"
_SEED = 7
# With Feast and torch, whose imports take seconds: they are had while the encoder trains.
_HEAVY = ("infra.demo.readers", "infra.demo.serving", "infra.demo.downstream")
# Between choosing the stream's start and its first event: the plan is made.
_LEAD_MS = 2_000
# More canaries than the monitor sends by default, since the demo is over soon; no more often than
# it counts them (monitor.interval_seconds), so that the counts of the records can be compared.
_CANARIES = {"HEADWATER_MONITOR__CANARY_INTERVAL_SECONDS": "3"}


class Demo:
    """One run of the demo in one home."""

    def __init__(
        self, home: Path, output: Path, *, pace: float, train_seconds: int, keep: bool
    ) -> None:
        self.home = home
        self.output = output
        self.pace = pace
        self.train_seconds = train_seconds
        self.keep = keep
        self.console = Console()
        self.steps = Steps(self.console)
        self.report: dict[str, Any] = {}

    def run(self) -> None:
        """All steps. Services end with it, unless it went well and `keep` was asked for."""
        clear_home(self.home)
        with ExitStack() as cleanup:
            stack = LocalStack(self.home, attached=not self.keep)
            cleanup.callback(stack.close)
            programs = Programs(stack, attached=not self.keep, on_ready=self._show_program)
            cleanup.callback(programs.stop)
            self._run(stack, programs)
            if self.keep:
                cleanup.pop_all()

    def _run(self, stack: LocalStack, programs: Programs) -> None:
        steps = self.steps
        with steps.step("stack", "Start Kafka, Cassandra and Triton"):
            stack.start()
            for name, address in stack.addresses.items():
                steps.say(f"{name:<10} {address}")
        environment, settings = stack.environment, stack.settings
        with steps.step("apply", "Create topics and tables, apply the feature declarations"):
            headwater(["apply"], environment, movielens.CHECKOUT)
        with steps.step("data", "Real input: MovieLens-100K as events, split by time"):
            log = self._data(stack)
        with steps.step("train", "Train an encoder on the earlier part, export it as version 1"):
            imports = Thread(target=lambda: [import_module(name) for name in _HEAVY], daemon=True)
            imports.start()
            self._train(environment)
            imports.join()
        from infra.demo import downstream, readers, serving  # noqa: PLC0415 - see _HEAVY

        with steps.step("history", "Workers up; the earlier part goes through them as a backlog"):
            for role in ("sequence", "encoder"):
                programs.start(f"worker-{role}", ["worker", role], "/ready")
            programs.wait_ready()
            history = asyncio.run(self._produce_history(settings, programs, log.earlier))
        with steps.step("stream", f"Stream the later part live, {self.pace:.0f} events/s"):
            # It gets ready, which takes seconds of imports, while the stream is prepared.
            monitor = programs.start("monitor", ["monitor"], "/healthz", _CANARIES).address
            served = serving.ServingLog(settings, log.later, self.pace, _SEED)
            start_ms, streamed, reading, seen = asyncio.run(
                self._stream(settings, log, served, programs, monitor, history)
            )
            self._report_stream(history, streamed, reading, monitor, seen)
        later = [movielens.moved(event, start_ms) for event in log.later]
        with steps.step("reads", "Read features in three ways, and recompute them"):
            server = programs.start("feature-server", ["serve"], "/health").address
            programs.wait_ready()
            self._report_reads(readers.check(settings, server, log.earlier + later))
        with steps.step("downstream", "What fresh features are worth to a small ranker"):
            worth = downstream.compare(served.samples, self._checkpoint, log.earlier)
            self.report["downstream"] = worth.as_json()
            self.console.print(worth.table())
        self._finish(monitor, seen)

    # -- steps ---------------------------------------------------------------------------------

    def _data(self, stack: LocalStack) -> movielens.Log:
        ratings = movielens.read_ratings(movielens.fetch(stack.cache.root))
        log = movielens.make_log(ratings, int(time.time() * 1000), self.pace)
        movielens.write_events(log.earlier, self._build / "earlier.parquet")
        users = len({event.user_id for event in log.earlier + log.later})
        self.steps.say(
            f"{len(ratings):,} ratings of {users} users: {len(log.earlier):,} earlier events, "
            f"{len(log.later):,} later ones"
        )
        return log

    def _train(self, environment: dict[str, str]) -> None:
        checkout = movielens.CHECKOUT
        train = ["train", "--events", str(self._build / "earlier.parquet")]
        train += ["--out", str(self._checkpoint), "--seconds", str(self.train_seconds)]
        headwater(train, environment, checkout)
        export = ["export", "--checkpoint", str(self._checkpoint), "--version", VERSION, "--load"]
        headwater([*export, "--activate"], environment, checkout)

    async def _produce_history(
        self, settings: Settings, programs: Programs, events: list[Event]
    ) -> measure.Reading:
        started = time.monotonic()
        async with EventProducer(settings) as producer:
            for event in events:
                await producer.send_raw(event.user_id.encode(), encode_record(event))
        reading = await settled(programs.workers, len(events))
        seconds = time.monotonic() - started
        self.steps.say(f"{len(events):,} events caught up, {len(events) / seconds:,.0f} events/s")
        self.steps.say(f"{reading.encoded:,} representations")
        return reading

    async def _stream(
        self,
        settings: Settings,
        log: movielens.Log,
        serving: ServingLog,
        programs: Programs,
        monitor: str,
        history: measure.Reading,
    ) -> tuple[int, Streamed, measure.Reading, Snapshot]:
        """(start in ms, what was sent, what the workers counted, the monitor's last snapshot)."""
        urls = programs.workers
        try:
            await serving.open()
            await asyncio.to_thread(programs.wait_ready)
            start_ms = int(time.time() * 1000) + _LEAD_MS
            sendings = plan(log.later, start_ms, self.pace, _SEED)
            self.steps.say(f"watch it live: [bold]{monitor}[/]")
            await asyncio.sleep(max(0.0, start_ms / 1000 - time.time()))
            streamed, done = Streamed(), asyncio.Event()
            table = asyncio.create_task(show(self.console, urls, monitor, history, streamed, done))
            try:
                await stream(settings, sendings, streamed, serving.before)
                expected = history.consumed + streamed.sent
                reading, seen = await settled_with_canaries(urls, monitor, expected)
            finally:
                done.set()
                await table
            streamed.canaries = seen.canary.num_sent
            await serving.finish()
        finally:
            await serving.close()
        return start_ms, streamed, reading, seen

    def _report_stream(
        self,
        history: measure.Reading,
        streamed: Streamed,
        reading: measure.Reading,
        monitor: str,
        seen: Snapshot,
    ) -> None:
        live = measure.Reading(reading.sums.since(history.sums), reading.gauges)
        outcomes = live.outcomes()
        self.report["events"] = {"produced": streamed.produced, **outcomes}
        balance = streamed.produced == sum(outcomes.values()) == live.consumed
        self.report["events_balance"] = balance
        self.report["freshness_seconds"] = measure.freshness(live)
        self.report["platform_delay_seconds"] = measure.freshness(live, "ingested_at")
        self.report["stages_seconds"] = measure.stages(live.sums, measure.read([monitor]).sums)
        self.report["stream"] = {
            "seconds": round(streamed.seconds, 2),
            "events_per_second": round(streamed.sent / streamed.seconds, 1),
            "sent": streamed.sent,
            "canaries": streamed.canaries,
            "encoded": live.encoded,
        }
        self.report["monitor"] = measure.monitored(seen)
        self.console.print(stage_table(self.report["stages_seconds"]))
        if not balance:
            self.steps.say(f"[red]events don't balance: {self.report['events']}[/]")

    def _report_reads(self, found: Checked) -> None:
        equal, right = found.reads_equal, not found.differences
        self.report["reads_equal"] = equal
        self.report["sequences_equal_recomputation"] = right
        self.steps.say(f"Feast SDK, HTTP feature server and OnlineFeatures agree: {equal}")
        self.steps.say(f"sequences of all {found.num_users} users equal the recomputation: {right}")
        for line in found.differences[:5]:
            self.steps.say(f"[red]{line}[/]")

    def _finish(self, monitor: str, seen: Snapshot) -> None:
        self.report["seconds"] = self.steps.seconds
        self.report["seconds_total"] = round(self.steps.elapsed, 1)
        self.output.parent.mkdir(parents=True, exist_ok=True)
        self.output.write_text(json.dumps(self.report, indent=2) + "\n", encoding="utf-8")
        self.console.print("\n[bold]How fresh it was[/]")
        origin = f"the monitor at {monitor}, over the stream's last minute"
        self.console.print(freshness_picture(seen, origin))
        self.console.print(f"\nAll of it is in [bold]{self.output}[/].")
        failed = [
            name
            for name in ("events_balance", "reads_equal", "sequences_equal_recomputation")
            if not self.report[name]
        ]
        if failed:
            raise HeadwaterError(f"these checks failed: {', '.join(failed)}")
        say_goodbye(self.console, self.home, monitor, keep=self.keep)

    def _show_program(self, program: Program) -> None:
        self.steps.say(f"{program.name:<15} {program.address}")

    # -- files ---------------------------------------------------------------------------------

    @property
    def _build(self) -> Path:
        return self.output.parent / "demo"

    @property
    def _checkpoint(self) -> Path:
        return self._build / "checkpoint"


def clear_home(home: Path) -> None:
    """Begin with an empty home, but never delete what a demo didn't make."""
    marker = home / "demo"
    # Commands that only read leave a registry, so that a home with nothing else is nobody's stack.
    if home.is_dir() and {entry.name for entry in home.iterdir()} - {"registry.db"}:
        if not marker.is_file():
            raise ConfigError(
                f"{home} holds a stack that isn't a demo's; give the demo a home of its own with "
                "--home, or delete that one: headwater down, then remove the folder"
            )
        end_programs(Home(home))
        LocalStack(home).stop()
        shutil.rmtree(home)
    home.mkdir(parents=True, exist_ok=True)
    marker.write_text("made by `headwater demo`, which deletes this folder when it starts\n")
