"""Views: sequences and representations declared as Feast feature views, and read back (R8).

A declaration in feature_repo/ is an ordinary `FeatureView` whose tags say what Feast has no word
for. Workers, readers and training get all they know of a view from the registry, through
`declared_views`; there is no second list.
"""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

import streams.feast_light  # noqa: F401 # isort: skip
from feast import Entity, FeatureStore, FeatureView, Field
from feast.data_source import DataSource
from feast.errors import FeastObjectNotFoundException
from feast.project import Project
from feast.repo_config import RepoConfig, load_repo_config
from feast.repo_contents import RepoContents
from feast.repo_operations import apply_total_with_repo_instance, parse_repo
from feast.types import Array, Float32, Int64, String

from streams.errors import ConfigError
from streams.representations import MAX_DIMENSIONS, RepresentationView
from streams.sequences import SequenceView
from streams.settings import Settings

KIND, SEQUENCE, REPRESENTATION = "headwater.kind", "sequence", "representation"
_SPEC = "headwater.spec"

SEQUENCE_FEATURES: Mapping[str, Any] = {
    "event_time": Array(Int64),
    "item_id": Array(String),
    "event_type": Array(String),
    "surface": Array(String),
    "value": Array(Float32),
}
REPRESENTATION_FEATURES: Mapping[str, Any] = {
    "vector": Array(Float32),
    "as_of": Int64,
    "encoder": String,
    "version": String,
    "encoded_at": Int64,
    "position": Int64,
}
# Cassandra's own limit of a time to live.
_MAX_TTL = timedelta(days=20 * 365)


class _SequenceSpec(msgspec.Struct, frozen=True):
    event_types: tuple[str, ...]
    max_length: int
    max_age_ms: int | None


class _RepresentationSpec(msgspec.Struct, frozen=True):
    encoder: str
    dimensions: int
    sequences: tuple[str, ...]
    max_length: int


class DeclaredViews(msgspec.Struct, frozen=True):
    """All declared sequence and representation views, by name."""

    sequences: dict[str, SequenceView]
    representations: dict[str, RepresentationView]


def sequence_view(
    name: str,
    *,
    entity: Entity,
    event_types: Sequence[str],
    max_length: int,
    max_age: timedelta | None = None,
    ttl: timedelta | None = None,
    source: DataSource | None = None,
    description: str = "",
    owner: str = "",
    tags: Mapping[str, str] | None = None,
) -> FeatureView:
    """A view of a user's newest `max_length` events of some types, newest last.

    Events older than `max_age` before the newest one don't belong to it. With a `ttl`, a sequence
    whose newest event is older than that is answered as expired. Its features are columns, one
    entry per event: event_time (ms), item_id, event_type, surface ("" if absent), value (NaN if
    absent). Raises ConfigError.
    """
    _check(bool(event_types), name, "event_types is empty; name at least one")
    _check(
        all(isinstance(one, str) and 0 < len(one) <= 64 for one in event_types),
        name,
        "an event type is a text of 1 to 64 characters",
    )
    _check(len(set(event_types)) == len(event_types), name, "an event type is named twice")
    _check(max_length >= 1, name, "max_length must be at least 1")
    _check(max_age is None or max_age > timedelta(0), name, "max_age must be positive, or None")
    max_age_ms = None if max_age is None else max_age // timedelta(milliseconds=1)
    return _feature_view(
        name,
        entity,
        SEQUENCE,
        _SequenceSpec(tuple(event_types), max_length, max_age_ms),
        SEQUENCE_FEATURES,
        ttl=ttl,
        source=source,
        description=description,
        owner=owner,
        tags=tags,
    )


def representation_view(
    name: str,
    *,
    entity: Entity,
    encoder: str,
    dimensions: int,
    sequences: Sequence[FeatureView | str],
    max_length: int,
    ttl: timedelta | None = None,
    source: DataSource | None = None,
    description: str = "",
    owner: str = "",
    tags: Mapping[str, str] | None = None,
) -> FeatureView:
    """A view of the vector that `encoder` makes of a user's newest `max_length` events.

    The events are those of the named sequence views together. Stored vectors live for `ttl` after
    they were encoded. Features: vector (`dimensions` floats), as_of and encoded_at (ms), encoder,
    version, position. Raises ConfigError.
    """
    names = tuple(view if isinstance(view, str) else view.name for view in sequences)
    _check(bool(names), name, "sequences is empty; name at least one sequence view")
    _check(bool(encoder), name, "encoder is empty")
    _check(1 <= dimensions <= MAX_DIMENSIONS, name, f"dimensions must be 1 to {MAX_DIMENSIONS}")
    _check(max_length >= 1, name, "max_length must be at least 1")
    return _feature_view(
        name,
        entity,
        REPRESENTATION,
        _RepresentationSpec(encoder, dimensions, names, max_length),
        REPRESENTATION_FEATURES,
        ttl=ttl,
        source=source,
        description=description,
        owner=owner,
        tags=tags,
    )


def view_of(table: Any) -> SequenceView | RepresentationView | None:
    """What a feature view declares; None for an ordinary one. Raises ConfigError."""
    tags = table.tags or {}
    kind = tags.get(KIND)
    if kind is None:
        return None
    ttl = table.ttl.total_seconds() if table.ttl else 0
    ttl_seconds = max(1, round(ttl)) if ttl else None
    try:
        if kind == SEQUENCE:
            sequence = msgspec.json.decode(tags[_SPEC], type=_SequenceSpec)
            return SequenceView(
                name=table.name, ttl_seconds=ttl_seconds, **msgspec.structs.asdict(sequence)
            )
        if kind == REPRESENTATION:
            spec = msgspec.json.decode(tags[_SPEC], type=_RepresentationSpec)
            return RepresentationView(
                name=table.name, ttl_seconds=ttl_seconds, **msgspec.structs.asdict(spec)
            )
    except (KeyError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"feature view {table.name}: its tags aren't readable: {error}"
        ) from error
    raise ConfigError(f"feature view {table.name}: tag {KIND} is {kind!r}, which is unknown")


def views_among(tables: Iterable[FeatureView]) -> DeclaredViews:
    """What some feature views declare. Raises ConfigError."""
    sequences: dict[str, SequenceView] = {}
    representations: dict[str, RepresentationView] = {}
    for table in tables:
        view = view_of(table)
        if isinstance(view, SequenceView):
            sequences[view.name] = view
        elif isinstance(view, RepresentationView):
            representations[view.name] = view
    for found in representations.values():
        for name in found.sequences:
            _check(name in sequences, found.name, f"there is no sequence view {name!r}")
    return DeclaredViews(sequences, representations)


def declared_views(store: FeatureStore) -> DeclaredViews:
    """The views in the registry of `store`. Raises ConfigError if it was never applied."""
    try:
        return views_among(store.list_feature_views())
    except (FileNotFoundError, FeastObjectNotFoundException) as error:
        raise ConfigError(
            f"project {store.project} isn't in the registry: run `headwater apply`"
        ) from error


def repo_config(settings: Settings) -> RepoConfig:
    """feature_store.yaml with the addresses and paths of `settings`. Raises ConfigError."""
    folder = Path(settings.feature_repo)
    file = folder / "feature_store.yaml"
    if not file.is_file():
        raise ConfigError(
            f"there is no {file}; run this inside the project, or set HEADWATER_FEATURE_REPO"
        )
    config = load_repo_config(folder, file)
    config.registry.path = str(settings.registry_path)
    config.online_store.use(settings.cassandra)
    return config


def feature_store(settings: Settings) -> FeatureStore:
    """A Feast store on this platform's registry and Cassandra. Raises ConfigError."""
    return FeatureStore(config=repo_config(settings))


def apply_repo(settings: Settings) -> DeclaredViews:
    """What `feast apply` does with feature_repo/, without its output. Raises ConfigError.

    Changes the working directory meanwhile, as Feast's own command does: not for threads.
    """
    store = feature_store(settings)
    folder = Path(settings.feature_repo).resolve()
    with _as_feast_imports(folder), contextlib.redirect_stdout(io.StringIO()):
        repo = _parsed(folder)
        if not repo.projects:
            repo.projects.append(Project(name=store.project))
        views = views_among(repo.feature_views)
        apply_total_with_repo_instance(
            store, store.project, store.registry, repo, skip_source_validation=False
        )
    return views


def _feature_view(
    name: str,
    entity: Entity,
    kind: str,
    spec: msgspec.Struct,
    features: Mapping[str, Any],
    *,
    ttl: timedelta | None,
    tags: Mapping[str, str] | None,
    **options: Any,
) -> FeatureView:
    _check(ttl is None or timedelta(0) < ttl <= _MAX_TTL, name, "ttl must be positive, or None")
    reserved = {KIND: kind, _SPEC: msgspec.json.encode(spec).decode()}
    return FeatureView(
        name=name,
        entities=[entity],
        schema=[Field(name=feature, dtype=dtype) for feature, dtype in features.items()],
        ttl=ttl or timedelta(0),
        tags=dict(tags or {}) | reserved,
        **options,
    )


def _check(holds: bool, view: str, message: str) -> None:
    if not holds:
        raise ConfigError(f"view {view}: {message}")


def _parsed(folder: Path) -> RepoContents:
    try:
        return parse_repo(folder)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{folder} can't be read: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _as_feast_imports(folder: Path) -> Iterator[None]:
    """Feast imports a repo's files as top-level modules, relative to the working directory."""
    modules, path, wrote = set(sys.modules), list(sys.path), sys.dont_write_bytecode
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    try:
        with contextlib.chdir(folder), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        sys.path[:], sys.dont_write_bytecode = path, wrote
        # A declaration may be called like anything, and may have changed at the next apply.
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(f"{folder}/"):
                del sys.modules[name]


def serve_features(store: FeatureStore, host: str, port: int) -> None:
    """Run Feast's HTTP feature server until it is told to end.

    Feast would replace its process after every thousand requests, which resets the connections
    that clients keep and leaves nobody to answer meanwhile.
    """
    store.serve(host=host, port=port, registry_ttl_sec=60, max_requests=0, max_requests_jitter=0)
