"""Faust as it comes: what delivery and push stand against."""

from __future__ import annotations

import sys
import tempfile
import uuid
from collections.abc import Callable
from typing import Any

import faust


def run_agent(servers: str, topic: str, agent: Callable[[Any], Any]) -> None:
    """Consume a topic of JSON from its start, in a consumer group of its own."""
    app = faust.App(
        f"bench-faust-{uuid.uuid4().hex[:8]}",
        broker=f"kafka://{servers}",
        value_serializer="json",
        datadir=tempfile.mkdtemp(),
        topic_allow_declare=False,
        topic_disable_leader=True,
    )
    app.agent(app.topic(topic))(agent)
    sys.argv[1:] = ["worker", "--without-web", "--loglevel", "error"]
    app.main()
