"""What every benchmark stands on: one local stack, places with keyspaces of their own, programs.

A *place* is a home of its own on the stack: registry, keyspace, consumer groups. Programs are
separate processes that print one line of JSON; see `competitors/` and `programs/`.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infra.local.bootstrap import ROOT
from infra.local.stack import LocalStack
from streams import kafka
from streams.schema_store import create_schema, drop_keyspace
from streams.settings import Settings, load_settings
from streams.views import apply_repo
from tests.benchmarks.inputs import BUILD, PARTITIONS, delete_topics

Result = dict[str, Any]


def say(text: str) -> None:
    """Progress, beside the JSON."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


class Place:
    """A home on the stand's services, with schema and registry; see `Stand.place`."""

    def __init__(self, home: Path, environ: dict[str, str]) -> None:
        self.home = home
        self.environ = environ
        self.settings: Settings = load_settings(environ=environ, cwd=ROOT)

    def process_environment(self, **more: str) -> dict[str, str]:
        """The environment of a child process that is to use this place."""
        return dict(os.environ) | self.environ | more

    def run(self, program: str, *arguments: object, python: Path | None = None) -> Result:
        """Run a module of the benchmarks to its end; its last line of output is its result.

        Raises RuntimeError with the end of what it printed.
        """
        command = [str(python or sys.executable), "-m", f"tests.benchmarks.{program}"]
        done = subprocess.run(
            [*command, *map(str, arguments)],
            env=self.process_environment(PYTHONPATH=str(ROOT), PYTHONWARNINGS="ignore"),
            cwd=ROOT, capture_output=True, text=True, timeout=3_600, check=False,
        )  # fmt: skip
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            end = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
            raise RuntimeError(f"{program} ended with {done.returncode}:\n{end}")
        result: Result = json.loads(lines[-1])
        return result


class Stand:
    """The services of one run of the benchmarks, and the rounds' settings."""

    def __init__(self, stack: LocalStack, rounds: int, scale: float) -> None:
        self.stack = stack
        self.rounds = rounds
        self._scale = scale

    def count(self, events: int) -> int:
        """A number of events, or what is left of it in a quick run."""
        return max(20_000, int(events * self._scale))

    def seconds(self, seconds: float) -> float:
        """A duration, or what is left of it in a quick run."""
        return max(10.0, seconds * min(1.0, 4 * self._scale))

    @contextmanager
    def place(self, topic: str = "", repo: Path | None = None, **more: str) -> Iterator[Place]:
        """A new place; `topic` is the events topic, else one of its own is created."""
        name = f"b{secrets.token_hex(4)}"
        home = self.stack.home.root.parent / "places" / name
        home.mkdir(parents=True)
        shutil.copy(self.stack.home.root / "stack.toml", home / "stack.toml")
        environ = {
            "HEADWATER_HOME": str(home),
            "HEADWATER_KAFKA__EVENTS_TOPIC": topic or f"{name}-events",
            "HEADWATER_KAFKA__REFRESH_TOPIC": f"{name}-refresh",
            "HEADWATER_KAFKA__DEAD_LETTERS_TOPIC": f"{name}-dead",
            "HEADWATER_KAFKA__PARTITIONS": str(PARTITIONS),
            "HEADWATER_CASSANDRA__KEYSPACE": name,
            "HEADWATER_SEQUENCE_WORKER__GROUP": f"{name}-sequence",
            "HEADWATER_ENCODER_WORKER__GROUP": f"{name}-encoder",
            **({"HEADWATER_FEATURE_REPO": str(repo)} if repo else {}),
            **more,
        }
        place = Place(home, environ)
        settings = place.settings
        create_schema(settings.cassandra)
        apply_repo(settings)
        kafka.create_topics(settings.kafka)
        try:
            yield place
        finally:
            own = [settings.kafka.refresh_topic, settings.kafka.dead_letters_topic]
            delete_topics(settings, own if topic else [settings.kafka.events_topic, *own])
            drop_keyspace(settings.cassandra)
            shutil.rmtree(home)


@contextmanager
def stand(services: Iterable[str], rounds: int, scale: float) -> Iterator[Stand]:
    """Start the services for one run, in a home that is gone at its end."""
    folder = BUILD / f"run-{os.getpid()}"
    try:
        with LocalStack(
            folder / "home",
            services=tuple(services),
            disposable=True,
            on_progress=lambda service, what: say(f"{service}: {what}"),
        ) as stack:
            yield Stand(stack, rounds, scale)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def interleaved(
    rounds: int, contestants: Mapping[str, Callable[[], Result]]
) -> dict[str, list[Result]]:
    """Every contestant once a round, in turn; one that can't run is left out from then on."""
    results: dict[str, list[Result]] = {name: [] for name in contestants}
    failed: dict[str, str] = {}
    for number in range(rounds):
        for name, run in contestants.items():
            if name in failed:
                continue
            try:
                result = run()
            except RuntimeError as error:
                failed[name] = str(error)
                say(f"{name} can't run: {error}")
                continue
            results[name].append(result)
            say(f"round {number + 1}/{rounds} {name}: {json.dumps(result)}")
    return {name: found for name, found in results.items() if found}
