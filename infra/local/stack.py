"""The local stack: Kafka, Cassandra and Triton as child processes, under one home folder."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import tomli_w

from infra.local.cassandra import CassandraService
from infra.local.kafka import KafkaService
from infra.local.layout import SERVICES, Cache, Home
from infra.local.ports import kept_ports, stack_ports
from infra.local.processes import Record, ask_to_end, read_record, wait_gone
from infra.local.service import Plan, Service, ServiceState
from infra.local.triton import TritonService
from streams.errors import ConfigError
from streams.settings import Settings, load_settings

_POLL_SECONDS = 0.1
Progress = Callable[[str, str], None]  # service, what it does now


def _silent(_service: str, _what: str) -> None:
    return


# A worker drains before it ends; its warden kills it when that takes longer.
_PROGRAM_SECONDS = 60


class LocalStack:
    """A stack that a `with` block or the CLI starts and ends.

    `attached` (the default): every service ends with this process, even if it is killed.
    Otherwise they go on until `stop` or `headwater down`, from any process.
    `disposable`: the home is deleted at the end, and so the services are killed, not drained.
    A home is one stack: services that run there already are used as they are, and only those
    that this object started are ended by it at the end of the `with` block.
    """

    def __init__(
        self,
        home: Path | None = None,
        *,
        services: Collection[str] = SERVICES,
        attached: bool = True,
        disposable: bool = False,
        cache: Cache | None = None,
        on_progress: Progress = _silent,
    ) -> None:
        unknown = sorted(set(services) - set(SERVICES))
        if unknown:
            raise ConfigError(f"unknown service {unknown[0]!r}; there are: {', '.join(SERVICES)}")
        self.home = Home(home.resolve()) if home is not None else Home.from_environment()
        self.home.create()
        self._chosen = tuple(name for name in SERVICES if name in services)
        self._disposable = disposable
        self._on_progress = on_progress
        self._started: list[Service] = []
        with _locked(self.home):
            ports = stack_ports(self.home, in_use_by_us=_running(self.home))
        self.cache = cache or Cache()
        plan = Plan(self.home, self.cache, ports, attached)
        self.kafka = KafkaService(plan)
        self.cassandra = CassandraService(plan)
        self.triton = TritonService(plan)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def services(self) -> list[Service]:
        """The chosen services, in the order in which they are shown."""
        every: dict[str, Service] = {s.name: s for s in (self.kafka, self.cassandra, self.triton)}
        return [every[name] for name in self._chosen]

    @property
    def addresses(self) -> dict[str, str]:
        return {service.name: service.address for service in self.services}

    @property
    def settings(self) -> Settings:
        """The settings that any `headwater` command with this home would see."""
        return load_settings(environ=self.environment)

    @property
    def environment(self) -> dict[str, str]:
        """Variables for a child process that is to use this stack."""
        return dict(os.environ) | {"HEADWATER_HOME": str(self.home.root)}

    def start(self, only: Collection[str] | None = None) -> None:
        """Start the chosen services (or some of them) side by side; return when all are ready."""
        wanted = [s for s in self.services if only is None or s.name in only]
        with _locked(self.home):
            self._write_stack_file()
            began = time.monotonic()
            for service in sorted(wanted, key=_slowest_first):
                if not service.is_running:
                    self._on_progress(service.name, "starting")
                    self._started.append(service)
                    service.start(wait=False)
        self._wait(wanted, began)

    def stop(self) -> None:
        """End the chosen services in good order, whoever started them."""
        self._stop(self.services)

    def close(self) -> None:
        """End the services that this object started."""
        started, self._started = self._started, []
        if self._disposable:
            for service in started:
                service.kill()
            shutil.rmtree(self.home.root)
        else:
            self._stop(started)

    def mend(self) -> None:
        """After injected faults: all that this object started runs and answers again."""
        for service in self._started:
            service.resume()
            service.start()

    def states(self) -> list[ServiceState]:
        return [service.state() for service in self.services]

    def _wait(self, services: Collection[Service], began: float) -> None:
        waiting = list(services)
        while waiting:
            for service in tuple(waiting):
                elapsed = time.monotonic() - began
                if service.is_ready(elapsed):
                    waiting.remove(service)
                    self._on_progress(service.name, f"ready at {service.address} ({elapsed:.1f} s)")
            time.sleep(_POLL_SECONDS if waiting else 0)

    def _stop(self, services: Collection[Service]) -> None:
        with _locked(self.home):
            for service in services:
                if service.is_running:
                    self._on_progress(service.name, "stopping")
                service.begin_stop()
            for service in services:
                service.finish_stop()

    def _write_stack_file(self) -> None:
        text = tomli_w.dumps(
            {
                "kafka": {"bootstrap_servers": self.kafka.address},
                "cassandra": {"contact_points": ["127.0.0.1"], "port": self.cassandra.port},
                "triton": self.triton.settings(),
            }
        )
        draft = self.home.stack_file.with_suffix(".draft")
        draft.write_text("# Written by `headwater up`: the addresses of the local stack.\n" + text)
        draft.replace(self.home.stack_file)


def end_programs(home: Home) -> list[str]:
    """End the workers and servers that run beside the services of this home; their names."""
    ended: dict[str, Record] = {}
    for path in sorted(home.records.glob("*.json")):
        if path.stem in SERVICES:
            continue
        record = read_record(path)
        if record is not None and (record.is_alive or record.warden_is_alive):
            ask_to_end(record)
            ended[path.stem] = record
    for record in ended.values():
        wait_gone(record, _PROGRAM_SECONDS)
    return list(ended)


def service_states(home: Path | None = None) -> list[ServiceState]:
    """Every service of the stack in this home, for `headwater status`; empty if it never ran."""
    place = Home(home.resolve()) if home is not None else Home.from_environment()
    if not place.ports_file.is_file():
        return []
    plan = Plan(place, Cache(), kept_ports(place), attached=False)
    return [kind(plan).state() for kind in (KafkaService, CassandraService, TritonService)]


def _slowest_first(service: Service) -> int:
    return ("cassandra", "triton", "kafka").index(service.name)


def _running(home: Home) -> Collection[str]:
    records: Mapping[str, object] = {
        name: record
        for name in SERVICES
        if (record := read_record(home.record(name))) is not None and record.is_alive
    }
    return records.keys()


@contextmanager
def _locked(home: Home) -> Iterator[None]:
    """One process at a time starts or stops services in a home."""
    with home.lock_file.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
