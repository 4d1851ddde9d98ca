"""bytewax: parse, key by user, append to the user's list.

Its fastest operators for it: parsing by batch (`flat_map_batch`), state that emits nothing.
"""

from __future__ import annotations

import json
from typing import Any

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main

from tests.benchmarks.competitors.clock import EventClock, arguments


class _Nowhere(StatelessSinkPartition[Any]):
    def write_batch(self, items: list[Any]) -> None:
        """Nothing arrives here."""


class _NowhereSink(DynamicSink[Any]):
    def build(self, step_id: str, worker_index: int, worker_count: int) -> _Nowhere:  # noqa: ARG002
        return _Nowhere()


def main() -> None:
    """Consume the topic from its start to its end."""
    servers, topic, events, _ = arguments()
    clock = EventClock(events)

    def parse(messages: list[Any]) -> list[tuple[str, Any]]:
        clock.start()
        parsed = [json.loads(message.value) for message in messages]
        return [(event["user_id"], event) for event in parsed]

    def append(state: list[Any] | None, event: Any) -> tuple[list[Any], list[Any]]:
        found = [] if state is None else state
        found.append(event)
        clock.left -= 1
        if not clock.left:
            clock.report_and_exit()
        return found, []

    flow = Dataflow("bench")
    source = KafkaSource([servers], [topic], tail=False, batch_size=1_000)
    messages = op.input("in", flow, source)
    keyed = op.flat_map_batch("parse", messages, parse)
    grouped = op.stateful_flat_map("group", keyed, append)
    op.output("out", grouped, _NowhereSink())
    run_main(flow)


if __name__ == "__main__":
    main()
