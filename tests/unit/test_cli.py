"""The command line: help with an example everywhere, exit codes, and errors that say what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest

from streams import kafka, producer
from streams.cli import headwater, run
from streams.errors import ConfigError, HeadwaterError, StoreUnavailable

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty project, and a stack that isn't there."""
    (tmp_path / "feature_repo").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWATER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HEADWATER_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("HEADWATER_CASSANDRA__PORT", "1")
    monkeypatch.setenv("HEADWATER_CASSANDRA__CONNECT_TIMEOUT_SECONDS", "0.5")
    monkeypatch.setenv("HEADWATER_TRITON__HTTP_URL", "127.0.0.1:1")


def every_command(
    group: click.Group = headwater, words: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """The words of each command, groups before what is in them."""
    context = click.Context(group)
    for name in group.list_commands(context):
        yield (*words, name)
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from every_command(command, (*words, name))


COMMANDS = list(every_command())


def find(words: tuple[str, ...]) -> click.Command:
    command: click.Command = headwater
    for word in words:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None
        command = found
    return command


# -- help ------------------------------------------------------------------------------------------


def test_the_commands_of_the_platform_are_there() -> None:
    assert set(COMMANDS) >= {
        *(("up",), ("down",), ("status",), ("logs",), ("doctor",), ("apply",), ("produce",)),
        *(("forget",), ("worker", "sequence"), ("worker", "encoder"), ("serve",), ("get",)),
        *(("views",), ("dead-letters", "list"), ("dead-letters", "show")),
        *(("dead-letters", "replay"), ("train",), ("export",), ("versions",), ("demo",)),
        ("config",),
    }


@pytest.mark.parametrize("words", [(), *COMMANDS], ids=" ".join)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_every_command_has_help_with_an_example(
    words: tuple[str, ...], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, option]) == 0
    printed = capsys.readouterr().out
    assert "Example" in printed
    assert f"headwater {' '.join(words)}".strip() in printed.partition("Example")[2]
    description = (find(words).help or "").strip()
    assert len(description) > 15
    assert description.split("\n")[0].rstrip(".") in " ".join(printed.split())


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_options_and_their_help(words: tuple[str, ...]) -> None:
    for parameter in find(words).params:
        if isinstance(parameter, click.Option):
            assert all(name.startswith("-") for name in parameter.opts)
            assert parameter.help or parameter.metavar, f"{parameter.name}: say what it is for"


def test_the_list_of_commands_says_a_line_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--help"])
    listed = capsys.readouterr().out.partition("Commands:")[2].partition("Example")[0]
    for line in listed.strip().splitlines():
        name, _, summary = line.strip().partition("  ")
        assert (name,) in COMMANDS
        assert len(summary.strip()) > 15, f"{name}: {summary!r}"


def test_the_list_of_commands_comes_without_heavy_imports() -> None:
    code = (
        "import sys; from streams.cli import run; run(['--help'])\n"
        "heavy = {'torch', 'feast', 'faust', 'pandas', 'pyarrow', 'acsylla'} & sys.modules.keys()\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("headwater, version 0.")


# -- exit codes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nonsense"], "No such command 'nonsense'. Known commands: "),
        (["worker", "nonsense"], "Known commands: sequence, encoder"),
        (["status", "--nonsense"], "No such option"),
        (["get"], "Missing argument"),
        (["forget"], "Missing argument"),
        (["produce"], "Missing argument"),
        (["produce", "missing.jsonl"], "missing.jsonl is no file"),
        (["produce", "events.xml"], "--format"),
        (["produce", "-", "--map", "user_id"], "write field=something"),
        (["produce", "-", "--map", "user=u"], "'user' is no event field"),
        (["produce", "-", "--rate", "0"], "--rate"),
        (["produce", "-", "--format", "xml"], "'jsonl', 'csv', 'parquet'"),
        (["forget", "alice", "--up-to", "yesterday"], "--up-to"),
        (["up", "--only", "kafka,nonsense"], "'nonsense' is not one of"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_wrong_use_is_exit_code_2(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("events.xml").touch()
    assert run(arguments) == 2
    assert expected in " ".join(capsys.readouterr().err.split())


NEED_SETTINGS = [
    *(["config"], ["apply"], ["views"], ["get", "alice"], ["status"], ["forget", "alice"]),
    *(["worker", "sequence"], ["worker", "encoder"], ["dead-letters", "list"], ["log", "status"]),
    *(["versions"], ["produce", "events.jsonl"], ["serve"]),
]


@pytest.mark.parametrize("arguments", NEED_SETTINGS, ids=" ".join)
@pytest.mark.parametrize(
    ("variable", "value"),
    [("HEADWATER_KAFKA__PARTITIONS", "none"), ("HEADWATER_KAFKA__NONSENSE", "1")],
)
def test_a_wrong_setting_is_exit_code_2(
    arguments: list[str],
    variable: str,
    value: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("events.jsonl").touch()
    monkeypatch.setenv(variable, value)
    assert run(arguments) == 2
    assert variable in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        *(["versions"], ["dead-letters", "list"], ["dead-letters", "purge", "--yes"]),
        *(["log", "status"], ["produce", "events.jsonl"], ["forget", "alice"], ["apply"]),
    ],
    ids=" ".join,
)
def test_a_service_that_is_away_is_exit_code_1_and_a_sentence(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At once: where nobody listens, librdkafka would go on trying for ten seconds and more."""
    monkeypatch.setattr(kafka, "AdminClient", _must_not_be_made)
    monkeypatch.setattr(producer, "Producer", _must_not_be_made)
    Path("events.jsonl").write_text("{}\n")
    assert run(arguments) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("Error: ")
    assert "Traceback" not in printed


def _must_not_be_made(*_: object) -> None:
    raise AssertionError("a Kafka client was made, which has nobody to talk to")


@pytest.fixture
def fail_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], int]:
    """Run a command that raises this; answers the exit code."""

    def fail(error: BaseException) -> int:
        module = ModuleType("failing_command")

        @click.command
        def failing() -> None:
            raise error

        module.__dict__["failing"] = failing
        monkeypatch.setitem(sys.modules, "failing_command", module)
        monkeypatch.setattr(headwater, "lazy", {"fail": ("failing_command:failing", "Fail.")})
        return run(["fail"])

    return fail


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("write something else"), 2),
        (HeadwaterError("look at it"), 1),
        (StoreUnavailable("try again"), 1),
        (click.ClickException("no"), 1),
        (click.UsageError("no"), 2),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
        (click.exceptions.Exit(3), 3),
    ],
    ids=repr,
)
def test_errors_have_their_exit_codes(
    error: BaseException, code: int, fail_with: Callable[[BaseException], int]
) -> None:
    assert fail_with(error) == code


def test_a_fault_of_ours_is_not_hidden(fail_with: Callable[[BaseException], int]) -> None:
    with pytest.raises(ZeroDivisionError):
        fail_with(ZeroDivisionError())


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    script = f"{sys.executable} -m streams.cli config --json | head -1"
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        check=True,
    )
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


# -- config ----------------------------------------------------------------------------------------


def config_of(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, tuple[object, str]]:
    assert run(["config", "--json", *options]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {line["key"]: (line["value"], line["from"]) for line in lines}


def test_config_tells_every_value_and_where_it_comes_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("headwater.toml").write_text("[kafka]\nretention_hours = 24\n")
    found = config_of(capsys)
    assert found["cassandra.port"] == (1, "HEADWATER_CASSANDRA__PORT")
    assert found["kafka.retention_hours"] == (24, str(Path("headwater.toml").resolve()))
    assert found["kafka.events_topic"] == ("engagement-events", "default")
    assert {key for key, (_, source) in found.items() if source != "default"} == set(
        config_of(capsys, "--changed")
    )


def test_config_is_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config"]) == 0
    assert "kafka.bootstrap_servers" in capsys.readouterr().out
