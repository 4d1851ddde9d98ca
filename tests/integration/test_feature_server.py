"""`headwater serve` as a process: Feast's feature server over our store."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from infra.local.bootstrap import ROOT
from infra.local.ports import free_port
from tests.worker_platform import Platform, wait_until

# Feast's own default replaces the server's process after 1,000 requests, give or take 50.
REQUESTS = 1_200


@pytest.fixture
def port(platform: Platform) -> Iterator[int]:
    """Of a running server."""
    chosen = free_port()
    environ = dict(os.environ) | platform.environ | {"HEADWATER_SERVE__PORT": str(chosen)}
    with (platform.home / "serve.log").open("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "streams.cli", "serve"],
            env=environ, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            wait_until(lambda: process.poll() is not None or _answers(chosen), 60, "it answers")
            assert process.poll() is None, (platform.home / "serve.log").read_text()
            yield chosen
        finally:
            process.terminate()
            process.wait(30)


def _answers(port: int) -> bool:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False


def test_a_kept_connection_outlives_many_requests(port: int) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.connect()
        kept = connection.sock
        for _ in range(REQUESTS):
            connection.request("GET", "/health")
            answer = connection.getresponse()
            assert answer.read() is not None
            assert answer.status == 200
        question = {"features": ["engagement:item_id"], "entities": {"user_id": ["nobody"]}}
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/get-online-features", json.dumps(question), headers)
        told = json.loads(connection.getresponse().read())
        assert told["metadata"]["feature_names"] == ["user_id", "item_id"]
        assert connection.sock is kept
