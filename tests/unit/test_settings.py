"""Settings: the layers and their order, where a value came from, and errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.local.layout import Home
from streams.errors import ConfigError
from streams.settings import (
    Settings,
    load_settings,
    load_settings_with_origins,
    project_root,
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder that counts as a project."""
    (tmp_path / "feature_repo").mkdir()
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def sources(project: Path, environ: dict[str, str] | None = None) -> dict[str, str]:
    _, origins = load_settings_with_origins(None, environ or {}, project)
    return {origin.key: origin.source for origin in origins}


def refused(project: Path, text: str = "", **environ: str) -> str:
    """The message of the ConfigError that these settings raise."""
    write(project / "headwater.toml", text)
    with pytest.raises(ConfigError) as caught:
        load_settings(None, environ, project)
    return str(caught.value)


def test_defaults_need_no_file_and_no_variable(project: Path) -> None:
    settings = load_settings(None, {}, project)
    assert settings == msgspec.structs.replace(
        Settings(), home=str(project / ".headwater"), feature_repo=str(project / "feature_repo")
    )
    assert set(sources(project).values()) == {"default"}


def test_every_layer_wins_over_the_ones_before(project: Path) -> None:
    stack = write(project / ".headwater" / "stack.toml", "[cassandra]\nport = 1\n")
    assert load_settings(None, {}, project).cassandra.port == 1
    config = write(project / "headwater.toml", "[cassandra]\nport = 2\n")
    assert load_settings(None, {}, project).cassandra.port == 2
    variable = {"HEADWATER_CASSANDRA__PORT": "3"}
    assert load_settings(None, variable, project).cassandra.port == 3

    assert sources(project, variable)["cassandra.port"] == "HEADWATER_CASSANDRA__PORT"
    assert sources(project)["cassandra.port"] == str(config)
    config.unlink()
    assert sources(project)["cassandra.port"] == str(stack)


def test_layers_merge_key_by_key(project: Path) -> None:
    write(project / ".headwater" / "stack.toml", '[kafka]\nbootstrap_servers = "stack:1"\n')
    write(project / "headwater.toml", "[kafka]\npartitions = 3\n")
    kafka = load_settings(None, {"HEADWATER_KAFKA__RETENTION_HOURS": "5"}, project).kafka
    assert (kafka.bootstrap_servers, kafka.partitions, kafka.retention_hours) == ("stack:1", 3, 5)


def test_a_named_file_takes_the_place_of_headwater_toml(project: Path) -> None:
    write(project / "headwater.toml", "[kafka]\npartitions = 3\nretention_hours = 9\n")
    other = write(project / "other.toml", "[kafka]\npartitions = 4\n")
    for settings in (
        load_settings(other, {}, project),
        load_settings(None, {"HEADWATER_CONFIG": str(other)}, project),
    ):
        assert (settings.kafka.partitions, settings.kafka.retention_hours) == (4, 168)


def test_a_named_file_must_exist(project: Path) -> None:
    missing = str(project / "missing.toml")
    assert missing in refused(project, HEADWATER_CONFIG=missing)


def test_the_project_is_found_from_any_folder_below_it(project: Path) -> None:
    deep = project / "a" / "b"
    deep.mkdir(parents=True)
    assert project_root(deep) == project
    assert load_settings(None, {}, deep).home_path == project / ".headwater"


def test_without_a_project_the_current_folder_is_the_root(tmp_path: Path) -> None:
    assert load_settings(None, {}, tmp_path).home_path == tmp_path / ".headwater"


@pytest.mark.parametrize("home", ["elsewhere", "/elsewhere", "", None])
def test_settings_and_the_local_stack_mean_the_same_home(project: Path, home: str | None) -> None:
    environ = {} if home is None else {"HEADWATER_HOME": home}
    settings = load_settings(None, environ, project)
    assert settings.home_path == Home.from_environment(environ, project).root
    assert settings.home_path == project / (home or ".headwater")
    assert settings.registry_path.parent == settings.home_path


def test_empty_plain_variables_count_as_unset(project: Path) -> None:
    names = ("HEADWATER_HOME", "HEADWATER_CONFIG", "HEADWATER_FEATURE_REPO")
    assert load_settings(None, dict.fromkeys(names, ""), project) == load_settings(
        None, {}, project
    )


def test_models_lie_in_the_home_unless_said_otherwise(project: Path) -> None:
    assert load_settings(None, {}, project).model_repository_path == project / ".headwater/models"
    elsewhere = load_settings(None, {"HEADWATER_TRITON__MODEL_REPOSITORY": "/models"}, project)
    assert elsewhere.model_repository_path == Path("/models")


def test_contact_points_of_a_variable_are_separated_by_commas(project: Path) -> None:
    environ = {"HEADWATER_CASSANDRA__CONTACT_POINTS": "one, two"}
    assert load_settings(None, environ, project).cassandra.contact_points == ("one", "two")


def test_other_variables_are_left_alone(project: Path) -> None:
    environ = {"PATH": "x", "HEADWATERS": "x", "headwater_kafka__partitions": "x"}
    assert load_settings(None, environ, project) == load_settings(None, {}, project)


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("HEADWATER_KAFKA__PARTITIONS", "0", ">= 1"),
        ("HEADWATER_KAFKA__PARTITIONS", "many", "Expected `int`"),
        ("HEADWATER_SERVE__PORT", "70000", "<= 65535"),
        ("HEADWATER_CASSANDRA__REQUEST_TIMEOUT_SECONDS", "nan", "> 0"),
        ("HEADWATER_CASSANDRA__REQUEST_TIMEOUT_SECONDS", "inf", "<= 1000000000"),
        ("HEADWATER_CASSANDRA__KEYSPACE", "no-dash", "matching"),
        ("HEADWATER_CASSANDRA__CONTACT_POINTS", "", "length >= 1"),
        ("HEADWATER_KAFKA__BOOTSTRAP_SERVERS", "", "length >= 1"),
        ("HEADWATER_KAFKA__EVENTS_TOPIC", "..", "matching"),
        ("HEADWATER_KAFKA__EVENTS_TOPIC", "line\n", "matching"),
        ("HEADWATER_SEQUENCE_WORKER__MAX_DEAD_LETTER_SHARE", "1.5", "<= 1"),
        ("HEADWATER_KAFKA__PARTITONS", "8", "unknown field `partitons`"),
        ("HEADWATER_KAFKAS__PARTITIONS", "8", "unknown field `kafkas`"),
        ("HEADWATER_PARTITIONS", "8", "write HEADWATER_SECTION__KEY"),
    ],
)
def test_a_bad_variable_is_named_with_what_it_should_be(
    project: Path, variable: str, value: str, expected: str
) -> None:
    message = refused(project, **{variable: value})
    assert variable in message
    assert expected in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[kafka\n", "not valid TOML"),
        ("kafka = 1\n", "Expected `object`"),
        ("unknown = 1\n", "setting unknown "),
        ("[kafka]\nunknown = 1\n", "setting kafka.unknown "),
        ("[kafka.deeper]\nx = 1\n", "setting kafka.deeper "),
        ("[kafka]\npartitions = 8.5\n", "setting kafka.partitions "),
        ("[producer]\nlinger_ms = true\n", "setting producer.linger_ms "),
        ('[cassandra]\ncontact_points = ["a", ""]\n', "contact_points[1] "),
        ('home = "x"\n', "set HEADWATER_HOME"),
        ('feature_repo = "x"\n', "set HEADWATER_FEATURE_REPO"),
    ],
)
def test_a_bad_file_is_named_with_the_key(project: Path, text: str, expected: str) -> None:
    message = refused(project, text)
    assert str(project / "headwater.toml") in message
    assert expected in message


def test_a_file_that_is_not_utf8_is_named(project: Path) -> None:
    (project / "headwater.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"headwater\.toml is not valid TOML"):
        load_settings(None, {}, project)


def test_a_file_that_can_not_be_read_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    write(project / "headwater.toml", "")
    monkeypatch.setattr(Path, "read_text", fail)
    with pytest.raises(ConfigError, match=r"headwater\.toml can't be read: Permission denied"):
        load_settings(None, {}, project)


def test_a_value_where_a_section_belongs_is_refused(project: Path) -> None:
    message = refused(project, "kafka = 1\n", HEADWATER_KAFKA__PARTITIONS="3")
    assert "not a section" in message


def test_topics_must_differ(project: Path) -> None:
    message = refused(project, HEADWATER_KAFKA__REFRESH_TOPIC="engagement-events")
    assert "topics of their own" in message


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Settings().kafka.partitions = 9  # type: ignore[misc]


def test_every_setting_survives_toml_and_variables(project: Path) -> None:
    """Each default, written as a variable, is accepted and changes nothing."""
    settings, origins = load_settings_with_origins(None, {}, project)
    environ = {
        f"HEADWATER_{origin.key.upper().replace('.', '__')}": (
            ",".join(origin.value) if isinstance(origin.value, tuple) else str(origin.value)
        )
        for origin in origins
        if "." in origin.key
    }
    assert len(environ) > 40
    assert load_settings(None, environ, project) == settings


KEYS = [
    f"{section}__{key}".upper()
    for section, values in msgspec.to_builtins(Settings()).items()
    if isinstance(values, dict)
    for key in values
]


@given(st.dictionaries(st.sampled_from(KEYS), st.text() | st.integers().map(str), max_size=2))
def test_any_values_give_settings_or_a_config_error(values: dict[str, str]) -> None:
    environ = {f"HEADWATER_{key}": value for key, value in values.items()}
    try:
        settings = load_settings(None, environ, Path("/nonexistent"))
    except ConfigError:
        return
    assert settings.kafka.partitions >= 1
    assert settings.kafka.bootstrap_servers
