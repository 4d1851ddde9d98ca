"""Settings: one frozen value, built once, checked at birth.

Layers, later ones win: defaults < `$HEADWATER_HOME/stack.toml` (addresses chosen by `headwater up`)
< `headwater.toml` (or the file in HEADWATER_CONFIG) < `HEADWATER_SECTION__KEY` variables.
Reads files and the environment mapping it is given; knows nothing of what the values are for.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from streams.errors import ConfigError

Positive = Annotated[int, msgspec.Meta(ge=1)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
# Kafka's rule for topics, within its 249 characters.
Name = Annotated[str, msgspec.Meta(pattern=r"^(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,200}\Z")]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the sections; unknown keys are errors, so that a typing mistake can't hide."""


class KafkaSettings(Section, frozen=True, kw_only=True):
    bootstrap_servers: Text = "127.0.0.1:9092"
    events_topic: Name = "engagement-events"
    refresh_topic: Name = "refresh-requests"
    dead_letters_topic: Name = "engagement-dead-letters"
    partitions: Positive = 8
    replication_factor: Positive = 1
    retention_hours: Positive = 168
    refresh_retention_hours: Positive = 24
    max_record_bytes: Positive = 1_000_000
    max_partition_fetch_bytes: Positive = 1_048_576
    fetch_wait_ms: Positive = 50
    session_timeout_seconds: PositiveFloat = 10.0
    max_poll_interval_seconds: PositiveFloat = 300.0
    commit_interval_seconds: PositiveFloat = 0.5

    def __post_init__(self) -> None:
        topics = (self.events_topic, self.refresh_topic, self.dead_letters_topic)
        if len(set(topics)) < len(topics):
            raise ValueError(f"events, refresh and dead letters need topics of their own: {topics}")


class CassandraSettings(Section, frozen=True, kw_only=True):
    contact_points: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)] = ("127.0.0.1",)
    port: Port = 9042
    local_datacenter: Text = "datacenter1"
    keyspace: Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]{0,47}\Z")] = "headwater"
    replication_factor: Positive = 1
    request_timeout_seconds: PositiveFloat = 2.0
    connect_timeout_seconds: PositiveFloat = 10.0
    max_requests_in_flight: Positive = 256


class TritonSettings(Section, frozen=True, kw_only=True):
    url: Text = "127.0.0.1:8001"
    http_url: Text = "127.0.0.1:8000"
    metrics_url: Text = "http://127.0.0.1:8002/metrics"
    model_repository: str = ""
    request_timeout_seconds: PositiveFloat = 10.0
    load_timeout_seconds: PositiveFloat = 120.0
    max_requests_in_flight: Positive = 4


class ProducerSettings(Section, frozen=True, kw_only=True):
    linger_ms: Annotated[int, msgspec.Meta(ge=0)] = 5
    max_in_flight: Positive = 100_000
    delivery_timeout_seconds: PositiveFloat = 120.0
    metrics_host: Text = "127.0.0.1"
    metrics_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0


class SequenceWorkerSettings(Section, frozen=True, kw_only=True):
    group: Name = "headwater-sequences"
    max_batch_records: Positive = 4_000
    max_cached_users: Positive = 20_000
    max_cached_events: Positive = 2_000_000
    max_packed_bytes: Annotated[int, msgspec.Meta(ge=0)] = 128_000_000
    max_writes_in_flight: Positive = 128
    future_allowance_seconds: PositiveFloat = 60.0
    max_dead_letter_share: Share = 0.5
    dead_letter_window: Positive = 2_000
    catch_up_seconds: PositiveFloat = 60.0
    epoch_check_seconds: PositiveFloat = 10.0
    stall_seconds: PositiveFloat = 60.0
    drain_seconds: PositiveFloat = 20.0
    metrics_host: str = "127.0.0.1"
    metrics_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0


class EncoderWorkerSettings(Section, frozen=True, kw_only=True):
    group: Name = "headwater-encoder"
    max_batch_records: Positive = 2_000
    max_users_per_request: Positive = 128
    max_tokens_per_request: Positive = 16_384
    max_cached_users: Positive = 200_000
    max_reads_in_flight: Positive = 64
    version_check_seconds: PositiveFloat = 2.0
    catch_up_seconds: PositiveFloat = 60.0
    stall_seconds: PositiveFloat = 60.0
    drain_seconds: PositiveFloat = 20.0
    metrics_host: str = "127.0.0.1"
    metrics_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0


class ServeSettings(Section, frozen=True, kw_only=True):
    host: Text = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 6566
    metrics_host: Text = "127.0.0.1"
    metrics_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0


class MonitorSettings(Section, frozen=True, kw_only=True):
    host: Text = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 9400
    # Who may look when `host` isn't this machine alone; empty: only loopback is allowed.
    token: str = ""
    # HOST:PORT of the workers' metrics, a name stands for all its addresses. Empty: the workers
    # that this machine's home knows.
    targets: tuple[Text, ...] = ()
    interval_seconds: PositiveFloat = 2.0
    timeout_seconds: PositiveFloat = 2.0
    window_seconds: PositiveFloat = 60.0
    cost_window_seconds: PositiveFloat = 900.0
    sequence_objective_seconds: PositiveFloat = 1.0
    representation_objective_seconds: PositiveFloat = 5.0
    objective_target: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.99
    stall_seconds: PositiveFloat = 30.0
    max_clock_offset_seconds: PositiveFloat = 1.0
    # 0 sends none; they are spread over the partitions.
    canary_users: Annotated[int, msgspec.Meta(ge=0, le=64)] = 4
    canary_interval_seconds: PositiveFloat = 5.0
    canary_timeout_seconds: PositiveFloat = 30.0
    sample_users: Positive = 300
    sample_interval_seconds: PositiveFloat = 30.0
    active_window_seconds: PositiveFloat = 86_400.0


class Settings(Section, frozen=True, kw_only=True):
    home: str = ".headwater"
    feature_repo: str = "feature_repo"
    kafka: KafkaSettings = KafkaSettings()
    cassandra: CassandraSettings = CassandraSettings()
    triton: TritonSettings = TritonSettings()
    producer: ProducerSettings = ProducerSettings()
    sequence_worker: SequenceWorkerSettings = SequenceWorkerSettings()
    encoder_worker: EncoderWorkerSettings = EncoderWorkerSettings()
    serve: ServeSettings = ServeSettings()
    monitor: MonitorSettings = MonitorSettings()

    @property
    def home_path(self) -> Path:
        return Path(self.home)

    @property
    def registry_path(self) -> Path:
        return self.home_path / "registry.db"

    @property
    def model_repository_path(self) -> Path:
        configured = self.triton.model_repository
        return Path(configured) if configured else self.home_path / "models"


class Origin(msgspec.Struct, frozen=True):
    """Where a setting's value came from."""

    key: str
    value: Any
    source: str


ENV_PREFIX = "HEADWATER_"
# Variables with the prefix that are not settings of a section; an empty one counts as unset.
_PLAIN_VARIABLES = {
    "HEADWATER_HOME",
    "HEADWATER_CONFIG",
    "HEADWATER_FEATURE_REPO",
    "HEADWATER_FAULT",
}
# Variables that hold several values, with commas between them.
_LISTS = {("cassandra", "contact_points"), ("monitor", "targets")}
_FOLDERS = {"home": "HEADWATER_HOME", "feature_repo": "HEADWATER_FEATURE_REPO"}


def project_root(start: Path) -> Path:
    """The nearest folder at or above `start` that holds `feature_repo/`, else `start` itself."""
    for folder in (start, *start.parents):
        if (folder / "feature_repo").is_dir():
            return folder
    return start


def load_settings(
    path: Path | None = None, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Settings:
    """Build the settings. Raises ConfigError, naming the key, its source and what it should be."""
    return load_settings_with_origins(path, environ, cwd)[0]


def load_settings_with_origins(
    path: Path | None = None, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> tuple[Settings, list[Origin]]:
    """Like `load_settings`, and for every key in force where its value came from."""
    environ = os.environ if environ is None else environ
    root = project_root((cwd or Path.cwd()).resolve())
    merged: dict[str, Any] = {
        key: str((root / (environ.get(variable) or getattr(Settings(), key))).resolve())
        for key, variable in _FOLDERS.items()
    }
    sources = {
        key: variable if environ.get(variable) else "default" for key, variable in _FOLDERS.items()
    }
    for source, layer in _layers(Path(merged["home"]), root, path, environ):
        _merge(merged, sources, layer, source)
    settings = _checked(merged, sources)
    flat = _flatten(msgspec.to_builtins(settings))
    return settings, [Origin(k, v, sources.get(k, "default")) for k, v in flat.items()]


def _layers(
    home: Path, root: Path, path: Path | None, environ: Mapping[str, str]
) -> list[tuple[str, dict[str, Any]]]:
    layers: list[tuple[str, dict[str, Any]]] = []
    stack_file = home / "stack.toml"
    if stack_file.is_file():
        layers.append((str(stack_file), _read_toml(stack_file)))
    variable = environ.get("HEADWATER_CONFIG")
    named = path or (Path(variable) if variable else None)
    if named is not None and not named.is_file():
        raise ConfigError(f"settings file {named} doesn't exist; name an existing TOML file")
    config = named or root / "headwater.toml"
    if config.is_file():
        layers.append((str(config), _read_toml(config)))
    layers.extend(
        (variable, _from_variable(variable, environ[variable]))
        for variable in sorted(environ)
        if variable.startswith(ENV_PREFIX) and variable not in _PLAIN_VARIABLES
    )
    return layers


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error


def _from_variable(variable: str, text: str) -> dict[str, Any]:
    section, separator, key = variable.removeprefix(ENV_PREFIX).lower().partition("__")
    if not separator:
        raise ConfigError(
            f"{variable} is not a setting; write HEADWATER_SECTION__KEY, "
            "for example HEADWATER_KAFKA__BOOTSTRAP_SERVERS"
        )
    value: Any = text
    if (section, key) in _LISTS:
        value = [part.strip() for part in text.split(",") if part.strip()]
    return {section: {key: value}}


def _merge(
    merged: dict[str, Any], sources: dict[str, str], layer: dict[str, Any], source: str
) -> None:
    for key, value in layer.items():
        if isinstance(value, dict):
            section = merged.setdefault(key, {})
            if not isinstance(section, dict):
                raise ConfigError(f"{source}: {key!r} is a value, not a section")
            for name, item in value.items():
                section[name] = item
                sources[f"{key}.{name}"] = source
        elif key in _FOLDERS:
            raise ConfigError(f"{source}: {key} can't be set in a file; set {_FOLDERS[key]}")
        else:
            merged[key] = value
            sources[key] = source


def _checked(merged: dict[str, Any], sources: dict[str, str]) -> Settings:
    try:
        return msgspec.convert(merged, Settings, strict=False)
    except msgspec.ValidationError as error:
        text = str(error)
        where = text.rpartition(" - at `$.")[2].rstrip("`") if " - at `$." in text else ""
        if "unknown field `" in text:
            unknown = text.partition("unknown field `")[2].partition("`")[0]
            where = f"{where}.{unknown}" if where else unknown
        source = _source_of(where, sources)
        origin = f" (from {source})" if source else ""
        raise ConfigError(f"setting {where or '?'}{origin}: {text}") from error


def _source_of(where: str, sources: dict[str, str]) -> str:
    """Where the value came from that an error names by its path, `cassandra.contact_points[0]`."""
    where = where.partition("[")[0]
    inside = (source for key, source in sources.items() if key.startswith(f"{where}."))
    return sources.get(where) or next(inside, "")


def _flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
