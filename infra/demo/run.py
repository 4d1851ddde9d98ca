"""The demo, from an empty machine to a report: reads like the list of its steps.

Assembles everything; the parts are beside it. Whatever it measures is written down as it is.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from infra.demo import measure, movielens, oracle, readers
from infra.demo.downstream import compare
from infra.demo.programs import Program
from infra.demo.replay import plan
from infra.demo.serving import ServingLog
from infra.demo.steps import Steps, headwater
from infra.demo.stream import Streamed, settled, show, stage_table, stream
from infra.local.layout import Home
from infra.local.ports import free_port
from infra.local.service import Plan
from infra.local.stack import LocalStack, end_programs
from streams.errors import ConfigError, HeadwaterError
from streams.events import Event, encode_record
from streams.producer import EventProducer
from streams.settings import Settings
from streams.views import declared_views, feature_store

ENCODER, VERSION = "user_encoder", "1"
_READ_USERS = 24
_SEED = 7
# Between choosing the stream's start and its first event: the plan is made, stale features read.
_LEAD_MS = 5_000


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
        self.programs: list[Program] = []

    def run(self) -> None:
        """All steps. Services end with it, unless it went well and `keep` was asked for."""
        _clear(self.home)
        with ExitStack() as cleanup:
            stack = LocalStack(self.home, attached=not self.keep)
            cleanup.callback(stack.close)
            cleanup.callback(self._stop_programs)
            self._run(stack)
            if self.keep:
                cleanup.pop_all()

    def _run(self, stack: LocalStack) -> None:
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
            self._train(environment)
        with steps.step("history", "Workers up; the earlier part goes through them as a backlog"):
            self._start_workers(stack)
            history = asyncio.run(self._produce_history(settings, log.earlier))
        urls = [program.address for program in self._workers]
        with steps.step("stream", f"Stream the later part live, {self.pace:.0f} events/s"):
            serving = ServingLog(settings, log.later, self.pace, _SEED)
            start_ms = int(time.time() * 1000) + _LEAD_MS
            streamed, reading = asyncio.run(
                self._stream(settings, log, start_ms, serving, urls, history)
            )
            self._report_stream(history, streamed, reading)
        later = [movielens.moved(event, start_ms) for event in log.later]
        with steps.step("reads", "Read features in three ways, and recompute them"):
            self._check_reads(stack, settings, log.earlier + later)
        with steps.step("downstream", "What fresh features are worth to a small ranker"):
            report = compare(serving.samples, self._checkpoint, log.earlier)
            self.report["downstream"] = report.as_json()
            self.console.print(report.table())
        self._finish()

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

    def _start_workers(self, stack: LocalStack) -> None:
        for role in ("sequence", "encoder"):
            self._start(stack, f"worker-{role}", ["worker", role], "/ready")

    async def _produce_history(self, settings: Settings, events: list[Event]) -> measure.Reading:
        started = time.monotonic()
        async with EventProducer(settings) as producer:
            for event in events:
                await producer.send_raw(event.user_id.encode(), encode_record(event))
        urls = [program.address for program in self._workers]
        reading = await settled(urls, len(events))
        seconds = time.monotonic() - started
        self.steps.say(f"{len(events):,} events caught up, {len(events) / seconds:,.0f} events/s")
        self.steps.say(f"{reading.encoded:,} representations")
        return reading

    async def _stream(
        self,
        settings: Settings,
        log: movielens.Log,
        start_ms: int,
        serving: ServingLog,
        urls: list[str],
        history: measure.Reading,
    ) -> tuple[Streamed, measure.Reading]:
        sendings = plan(log.later, start_ms, self.pace, _SEED)
        try:
            await serving.open()
            await asyncio.sleep(max(0.0, start_ms / 1000 - time.time()))
            streamed, done = Streamed(), asyncio.Event()
            table = asyncio.create_task(show(self.console, urls, streamed, done))
            try:
                await stream(settings, sendings, streamed, serving.before)
                reading = await settled(urls, history.consumed + streamed.produced)
            finally:
                done.set()
                await table
            await serving.finish()
        finally:
            await serving.close()
        return streamed, reading

    def _report_stream(
        self, history: measure.Reading, streamed: Streamed, reading: measure.Reading
    ) -> None:
        live = measure.Reading(reading.sums.since(history.sums), reading.gauges)
        outcomes = live.outcomes()
        self.report["events"] = {"produced": streamed.produced, **outcomes}
        balance = streamed.produced == sum(outcomes.values()) == live.consumed
        self.report["events_balance"] = balance
        self.report["freshness_seconds"] = measure.freshness(live)
        self.report["platform_delay_seconds"] = measure.freshness(live, "ingested_at")
        self.report["stages_seconds"] = measure.stages(live)
        self.report["stream"] = {
            "seconds": round(streamed.seconds, 2),
            "events_per_second": round(streamed.produced / streamed.seconds, 1),
            "encoded": live.encoded,
        }
        self.console.print(stage_table(self.report["stages_seconds"]))
        if not balance:
            raise HeadwaterError(f"events don't balance: {self.report['events']}")

    def _check_reads(self, stack: LocalStack, settings: Settings, events: list[Event]) -> None:
        server = self._start(stack, "feature-server", ["serve"], "/health")
        store = feature_store(settings)
        views = declared_views(store).sequences.values()
        expected = {view.name: oracle.sequences(events, view) for view in views}
        users = sorted({event.user_id for event in events})
        answers = readers.three_ways(settings, store, server.address, users[:_READ_USERS])
        equal = readers.all_equal(answers)
        served = readers.online_sequences(settings, users)
        wrong = readers.differences(served, expected, users)
        self.report["reads_equal"] = equal
        self.report["sequences_equal_recomputation"] = not wrong
        self.steps.say(f"Feast SDK, HTTP feature server and OnlineFeatures agree: {equal}")
        self.steps.say(f"sequences of all {len(users)} users equal the recomputation: {not wrong}")
        for line in wrong[:5]:
            self.steps.say(f"[red]{line}[/]")

    def _finish(self) -> None:
        self.report["seconds"] = self.steps.seconds
        self.report["seconds_total"] = round(sum(self.steps.seconds.values()), 1)
        self.output.parent.mkdir(parents=True, exist_ok=True)
        self.output.write_text(json.dumps(self.report, indent=2) + "\n", encoding="utf-8")
        self.console.print(f"\nAll of it is in [bold]{self.output}[/].")
        if self.keep:
            self.console.print(
                "The stack stays up. Try: headwater status, headwater get 1, "
                "headwater dead-letters list; end it with: headwater down"
            )
        failed = [
            name
            for name in ("events_balance", "reads_equal", "sequences_equal_recomputation")
            if not self.report[name]
        ]
        if failed:
            raise HeadwaterError(f"these checks failed: {', '.join(failed)}")

    # -- programs ------------------------------------------------------------------------------

    @property
    def _build(self) -> Path:
        return self.output.parent / "demo"

    @property
    def _checkpoint(self) -> Path:
        return self._build / "checkpoint"

    @property
    def _workers(self) -> Iterator[Program]:
        return (program for program in self.programs if program.name.startswith("worker-"))

    def _start(self, stack: LocalStack, name: str, command: list[str], ready: str) -> Program:
        home = Home(stack.home.root)
        plan_ = Plan(home, stack.cache, {}, attached=not self.keep)
        program = Program(plan_, name, command, free_port(), ready)
        self.programs.append(program)
        program.start()
        self.steps.say(f"{name:<15} {program.address}")
        return program

    def _stop_programs(self) -> None:
        for program in reversed(self.programs):
            program.stop()


def _clear(home: Path) -> None:
    """Begin with an empty home, but never delete what a demo didn't make."""
    marker = home / "demo"
    if home.is_dir() and any(home.iterdir()):
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
