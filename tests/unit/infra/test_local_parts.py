"""The parts of the local stack that need no service: ports, jars, mirrors, logs, wardens."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.local import probes, warden
from infra.local.bootstrap import Step
from infra.local.jars import parse_line, read_lock
from infra.local.layout import Home
from infra.local.log_files import Tail, last_lines
from infra.local.ports import is_free, stack_ports
from infra.local.processes import ask_to_end, kill_group, read_record, spawn, wait_gone
from infra.local.repository import settings_mirror
from infra.local.stack import end_programs
from streams.errors import ConfigError, HeadwaterError
from streams.monitor.running import announced
from streams.settings import load_settings


@pytest.fixture
def home(tmp_path: Path) -> Home:
    place = Home(tmp_path / "home")
    place.create()
    return place


class TestPorts:
    def test_are_kept(self, home: Home) -> None:
        ports = stack_ports(home)
        assert len(set(ports.values())) == 7
        assert stack_ports(home) == ports

    def test_lie_below_the_ephemeral_range(self, home: Home) -> None:
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        assert max(stack_ports(home).values()) < low

    def test_a_port_that_a_stranger_took_is_replaced(self, home: Home) -> None:
        ports = stack_ports(home)
        with socket.create_server(("127.0.0.1", ports["kafka"])):
            assert not is_free(ports["kafka"])
            now = stack_ports(home)
        assert now["kafka"] not in ports.values()
        assert {k: v for k, v in now.items() if k != "kafka"} == {
            k: v for k, v in ports.items() if k != "kafka"
        }

    def test_a_port_that_our_service_holds_is_kept(self, home: Home) -> None:
        ports = stack_ports(home)
        with socket.create_server(("127.0.0.1", ports["kafka_controller"])):
            assert stack_ports(home, in_use_by_us={"kafka"}) == ports

    def test_homes_differ(self, home: Home, tmp_path: Path) -> None:
        other = Home(tmp_path / "other")
        other.create()
        assert not set(stack_ports(home).values()) & set(stack_ports(other).values())


class TestJars:
    def test_the_lock_file_is_complete(self) -> None:
        jars = read_lock()
        assert len({jar.path for jar in jars}) == len(jars) > 100
        assert all(len(jar.sha256) == 64 for jar in jars)
        assert {s for jar in jars for s in jar.services} == {"kafka", "cassandra"}

    def test_paths_follow_mavens_layout(self) -> None:
        jar = parse_line(f"io.netty:netty-all:linux-x86_64:4.1 {'0' * 64} cassandra")
        assert str(jar.path) == "io/netty/netty-all/4.1/netty-all-4.1-linux-x86_64.jar"
        assert parse_line(jar.line) == jar


class TestMirror:
    @pytest.mark.parametrize(
        ("mirror_of", "expected"),
        [
            ("central", {"mirror": "https://mirror.example/maven"}),
            ("*", {"mirror": "https://mirror.example/maven"}),
            ("*,!central", {}),
            ("other", {}),
        ],
    )
    def test_of_mavens_settings(
        self, tmp_path: Path, mirror_of: str, expected: dict[str, str]
    ) -> None:
        path = tmp_path / "settings.xml"
        path.write_text(
            '<settings xmlns="http://maven.apache.org/SETTINGS/1.0.0"><mirrors><mirror>'
            f"<id>a</id><mirrorOf>{mirror_of}</mirrorOf><url>https://mirror.example/maven/</url>"
            "</mirror></mirrors></settings>"
        )
        assert settings_mirror(path) == expected

    def test_no_file(self, tmp_path: Path) -> None:
        assert settings_mirror(tmp_path / "settings.xml") == {}

    def test_a_damaged_file_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "settings.xml"
        path.write_text("<settings>")
        with pytest.raises(ConfigError, match=str(path)):
            settings_mirror(path)


class TestLogs:
    def test_a_full_log_is_rotated_once(self, tmp_path: Path) -> None:
        log = warden.CappedLog(tmp_path / "a.log", max_bytes=100)
        for number in range(50):
            log.write(f"line {number}\n".encode())
        assert (tmp_path / "a.log").stat().st_size <= 100
        assert (tmp_path / "a.log.1").stat().st_size <= 100
        assert last_lines(tmp_path / "a.log", 1) == ["line 49"]

    def test_a_tail_goes_on_after_rotation(self, tmp_path: Path) -> None:
        path = tmp_path / "a.log"
        path.write_text("old\n")
        tail = Tail(path)
        with path.open("a") as file:
            file.write("first\nsec")
        assert tail.new_lines() == ["first"]
        with path.open("a") as file:
            file.write("ond\n")
        path.rename(tmp_path / "a.log.1")
        path.write_text("third\n")
        assert tail.new_lines() == ["second", "third"]


def _eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _spawn(home: Home, *argv: str, attached: bool = True, grace: float = 5.0) -> None:
    spawn(
        argv,
        record=home.record("one"),
        log=home.log("one"),
        environment=os.environ,
        cwd=home.root,
        attached=attached,
        grace_seconds=grace,
    ).returncode = 0  # the warden is reaped by the tests' wait, not by this object


class TestWarden:
    def test_logs_and_records_the_exit_code(self, home: Home) -> None:
        _spawn(home, "/bin/sh", "-c", "echo to stdout; echo to stderr >&2; exit 7")
        _eventually(lambda: (r := read_record(home.record("one"))) is not None and r.exit_code == 7)
        text = home.log("one").read_text()
        assert "to stdout\n" in text
        assert "to stderr\n" in text

    def test_a_program_that_is_missing(self, home: Home) -> None:
        _spawn(home, "/nonexistent/program")
        record = read_record(home.record("one"))
        assert record is not None
        assert record.exit_code == 127
        assert "can't start" in home.log("one").read_text()

    def test_ends_the_whole_group_also_when_it_is_paused(self, home: Home) -> None:
        _spawn(home, "/bin/sh", "-c", "sleep 60 & echo $!; kill -STOP $$; wait")
        _eventually(lambda: len(home.log("one").read_text().splitlines()) > 1)
        child = int(home.log("one").read_text().splitlines()[1])
        record = read_record(home.record("one"))
        assert record is not None
        ask_to_end(record)
        wait_gone(record, 10)
        _eventually(lambda: warden.start_time(child) is None)

    def test_kills_what_ignores_sigterm(self, home: Home) -> None:
        _spawn(home, "/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.1; done", grace=0.3)
        record = read_record(home.record("one"))
        assert record is not None
        ask_to_end(record)
        wait_gone(record, 10)

    def test_a_kill_is_recorded_as_not_asked_for(self, home: Home) -> None:
        _spawn(home, "/bin/sleep", "60")
        record = read_record(home.record("one"))
        assert record is not None
        kill_group(record)
        wait_gone(record, 10)
        after = read_record(home.record("one"))
        assert after is not None
        assert (after.exit_code, after.asked) == (-9, False)

    @pytest.mark.parametrize("attached", [True, False])
    def test_ends_with_its_parent_only_when_attached(self, home: Home, attached: bool) -> None:
        script = (
            "import os, sys; from pathlib import Path; from infra.local.layout import Home;"
            "from infra.local.processes import spawn; home = Home(Path(sys.argv[1]));"
            "spawn(['/bin/sleep', '60'], record=home.record('one'), log=home.log('one'),"
            f"environment=os.environ, cwd=home.root, attached={attached}, grace_seconds=5);"
            "os.kill(os.getpid(), 9)"
        )
        subprocess.run([sys.executable, "-c", script, str(home.root)], check=False)
        record = read_record(home.record("one"))
        assert record is not None
        if attached:
            wait_gone(record, 10)
        else:
            assert record.is_alive
            ask_to_end(record)
            wait_gone(record, 10)

    def test_a_stale_record_is_not_taken_for_another_process(self, home: Home) -> None:
        facts = {"warden": os.getpid(), "warden_started": 1, "attached_to": None}
        home.record("one").write_text(json.dumps(facts | {"pid": os.getpid(), "started": 1}))
        record = read_record(home.record("one"))
        assert record is not None
        assert not record.is_alive
        assert not record.warden_is_alive

    def test_a_damaged_record_says_what_to_do(self, home: Home) -> None:
        home.record("one").write_text("{")
        with pytest.raises(HeadwaterError, match="delete it"):
            read_record(home.record("one"))


class TestPrograms:
    """What runs beside the services, such as the demo's workers."""

    def test_are_ended_and_named(self, home: Home) -> None:
        _spawn(home, "/bin/sleep", "60")
        record = read_record(home.record("one"))
        assert record is not None
        assert end_programs(home) == ["one"]
        assert not record.is_alive
        assert end_programs(home) == []

    def test_the_address_of_a_monitor_is_no_record_of_one(self, home: Home) -> None:
        settings = load_settings(environ={"HEADWATER_HOME": str(home.root)})
        with announced(settings, "http://127.0.0.1:9400"):
            assert end_programs(home) == []
            assert read_record(home.record("monitor")) is None


class TestProbes:
    def test_nothing_listens(self, home: Home) -> None:
        port = stack_ports(home)["kafka"]
        for probe in (probes.kafka_answers, probes.cassandra_answers, probes.triton_answers):
            assert probe(port) == "nothing listens on its port"

    def test_a_server_that_never_answers(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            for probe in (probes.kafka_answers, probes.cassandra_answers, probes.triton_answers):
                assert probe(port, 0.1) == "no answer in time"


class TestSetupSteps:
    def test_a_step_is_done_again_when_its_input_changed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("infra.local.bootstrap.CACHE", tmp_path)
        lock = tmp_path / "some.lock"
        lock.write_text("a==1")
        step = Step("some step", (lock,), proof=lock, run=lambda: None)
        assert not step.is_done()
        step.stamp.parent.mkdir()
        step.stamp.write_text(step.fingerprint())
        assert step.is_done()
        lock.write_text("a==2")
        assert not step.is_done()
