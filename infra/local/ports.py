"""Chooses a stack's ports once and keeps them, so that addresses survive restarts.

Ports lie below the kernel's ephemeral range: inside it, any client's outgoing connection could
take a stopped service's port before it comes back.
"""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Collection, Iterator

from infra.local.layout import Home
from streams.errors import HeadwaterError

NAMES = (
    "kafka",
    "kafka_controller",
    "cassandra",
    "cassandra_storage",
    "triton_grpc",
    "triton_http",
    "triton_metrics",
)
_RANGE = range(20_000, 32_000)


def is_free(port: int) -> bool:
    """Whether a server could listen on the port of the loopback address now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port that is free now and that no outgoing connection takes by chance."""
    return next(_candidates(str(random.random()), taken=set()))


def stack_ports(home: Home, in_use_by_us: Collection[str] = ()) -> dict[str, int]:
    """The home's ports by name; chosen on the first call, replaced where a stranger took one.

    `in_use_by_us` names the services that run now, whose ports are busy for a good reason.
    """
    kept = kept_ports(home)
    candidates = _candidates(str(home.root), taken=set(kept.values()))
    ports = {}
    for name in NAMES:
        ours = name.partition("_")[0] in in_use_by_us
        port = kept.get(name)
        ports[name] = port if port and (ours or is_free(port)) else next(candidates)
    if ports != kept:
        home.ports_file.write_text(json.dumps(ports, indent=1) + "\n", encoding="utf-8")
    return ports


def kept_ports(home: Home) -> dict[str, int]:
    """The ports that were chosen for this home; empty before its first start."""
    if not home.ports_file.is_file():
        return {}
    ports: dict[str, int] = json.loads(home.ports_file.read_text(encoding="utf-8"))
    return ports


def _candidates(seed: str, taken: set[int]) -> Iterator[int]:
    """Free ports; another order for each home, so that stacks starting together don't collide."""
    order = random.Random(seed).sample(_RANGE, len(_RANGE))
    for port in order:
        if port not in taken and is_free(port):
            taken.add(port)
            yield port
    raise HeadwaterError(
        f"no free port between {_RANGE.start} and {_RANGE.stop}; stop some servers, then try again"
    )
