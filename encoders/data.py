"""Events of the event contract, from a file to columns by user, and batches out of them.

Knows files and arrays, not the model. A sequence is ordered as the platform orders it: by event
time, then event id, one event per id.

Shape suffixes:
    E  events of the table    U  users    N  events of a batch    B  windows of a batch
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet
import torch
from numpy.typing import NDArray

from encoders.model import JaggedBatch
from streams.encoder_input import EncoderInput
from streams.errors import ConfigError
from streams.freshness import CANARY_PREFIX
from streams.sequences import stable_hash

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

_SCHEMA = pa.schema(
    [
        pa.field("event_id", pa.string(), nullable=False),
        pa.field("user_id", pa.string(), nullable=False),
        pa.field("item_id", pa.string(), nullable=False),
        pa.field("event_type", pa.string(), nullable=False),
        pa.field("event_time", pa.int64(), nullable=False),
        pa.field("surface", pa.string()),
        pa.field("value", pa.float32()),
    ]
)
_OPTIONAL = ("surface", "value")


@dataclass(frozen=True, eq=False)
class EventTable:
    """Events sorted by user and time; user u has rows offsets_U1[u:u+1]."""

    user_ids: tuple[str, ...]
    offsets_U1: Ints  # (U + 1,)
    item_hash_E: Ints
    event_type_hash_E: Ints
    surface_hash_E: Ints  # 0 where there is none
    event_time_ms_E: Ints
    value_E: Floats  # NaN where there is none

    def __len__(self) -> int:
        return len(self.item_hash_E)

    def event_users(self) -> Ints:
        """The user of each event."""
        return np.repeat(np.arange(len(self.user_ids)), np.diff(self.offsets_U1))

    def time_at(self, share: float) -> int:
        """The event time (ms) that this share of the events lies before."""
        return int(np.sort(self.event_time_ms_E)[min(int(len(self) * share), len(self) - 1)])

    def before(self, event_time_ms: int) -> EventTable:
        """The same users, and their events before that time."""
        kept_E = self.event_time_ms_E < event_time_ms
        total_E1 = np.concatenate(([0], np.cumsum(kept_E)))
        return EventTable(
            self.user_ids,
            total_E1[self.offsets_U1],
            self.item_hash_E[kept_E],
            self.event_type_hash_E[kept_E],
            self.surface_hash_E[kept_E],
            self.event_time_ms_E[kept_E],
            self.value_E[kept_E],
        )


def read_events(path: Path) -> EventTable:
    """Read a Parquet or JSON-lines file of events. Raises ConfigError with what to do."""
    table = _checked(_read(path), path)
    order = [("event_id", "ascending"), ("event_time", "ascending")]
    table = table.take(pc.sort_indices(table, order))
    # Of two versions of an event the newest event time wins, as in the stream.
    event_id = table["event_id"].combine_chunks()
    differs = pc.not_equal(event_id[1:], event_id[:-1])
    table = table.filter(pa.concat_arrays([differs, pa.array([True])]))
    order = [("user_id", "ascending"), ("event_time", "ascending"), ("event_id", "ascending")]
    table = table.take(pc.sort_indices(table, order))
    user_id = table["user_id"].combine_chunks().dictionary_encode()
    counts_U = np.bincount(user_id.indices.to_numpy())  # in order of appearance, as sorted
    return EventTable(
        user_ids=tuple(user_id.dictionary.to_pylist()),
        offsets_U1=np.concatenate(([0], np.cumsum(counts_U))),
        item_hash_E=_hashes(table["item_id"]),
        event_type_hash_E=_hashes(table["event_type"]),
        surface_hash_E=_hashes(table["surface"]),
        event_time_ms_E=table["event_time"].to_numpy(),
        value_E=pc.fill_null(table["value"], float("nan")).to_numpy(),
    )


def _read(path: Path) -> pa.Table:
    """Parquet by its ending, else JSON lines."""
    wanted = pa.schema([pa.field(field.name, field.type) for field in _SCHEMA])
    parse = pyarrow.json.ParseOptions(explicit_schema=wanted, unexpected_field_behavior="ignore")
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            return pyarrow.parquet.read_table(path)
        return pyarrow.json.read_json(path, parse_options=parse)
    except FileNotFoundError as error:
        raise ConfigError(f"{path} doesn't exist; name a file of events with --events") from error
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(
            f"{path} can't be read: {error}; it must be Parquet (*.parquet) or JSON lines of events"
        ) from error


def _checked(table: pa.Table, path: Path) -> pa.Table:
    for field in _SCHEMA:
        if field.name not in table.column_names:
            if field.name not in _OPTIONAL:
                raise ConfigError(f"{path} has no column {field.name}; it has {table.column_names}")
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    try:
        table = table.select(_SCHEMA.names).cast(_SCHEMA)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise ConfigError(f"{path} doesn't hold events: {error}; expected {_SCHEMA}") from error
    # Nobody learns from the monitor's made-up users, nor ranks their items.
    table = table.filter(pc.invert(pc.starts_with(table["user_id"], CANARY_PREFIX)))
    if table.num_rows == 0:
        raise ConfigError(f"{path} holds no events")
    return table


def _hashes(column: pa.ChunkedArray) -> Ints:
    """Stable hashes of strings, 0 for an absent or empty one."""
    encoded = pc.fill_null(column, "").combine_chunks().dictionary_encode()
    words = encoded.dictionary.to_pylist()
    hashes = np.array([stable_hash(word) if word else 0 for word in words], np.int64)
    picked: Ints = hashes[encoded.indices.to_numpy()]
    return picked


@dataclass(frozen=True, eq=False)
class Targets:
    """What follows each event: the user's next item that is new to them, -1 where there is none."""

    event_E: Ints  # row of the next new item's first event
    value_E: Floats  # the first value that the user's events of that item carry, else NaN


def next_new_items(table: EventTable) -> Targets:
    """A repeated item, such as a view that became a like, is no news and so no target."""
    num_events, users_E = len(table), table.event_users()
    pairs = np.stack((users_E, table.item_hash_E), axis=1)
    _, first_P, pair_E = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    is_new_E = np.zeros(num_events, bool)
    is_new_E[first_P] = True
    row_E = np.where(is_new_E, np.arange(num_events), num_events)
    following_E = np.append(np.minimum.accumulate(row_E[::-1])[::-1][1:], num_events)
    last_E = table.offsets_U1[users_E + 1]
    event_E = np.where(following_E < last_E, following_E, -1)
    pair_E = pair_E.reshape(-1)
    valued = np.flatnonzero(np.isfinite(table.value_E))[::-1]
    value_P = np.full(len(first_P), np.nan, np.float32)
    value_P[pair_E[valued]] = table.value_E[valued]
    value_E = np.where(event_E >= 0, value_P[pair_E[event_E]], np.float32("nan"))
    return Targets(event_E, value_E.astype(np.float32))


def as_batch(events: EncoderInput) -> JaggedBatch:
    """The platform's encoder input as tensors, which share its memory."""
    return JaggedBatch(
        item_hash_N=torch.from_numpy(events.item_hash),
        event_type_hash_N=torch.from_numpy(events.event_type_hash),
        surface_hash_N=torch.from_numpy(events.surface_hash),
        event_time_ms_N=torch.from_numpy(events.event_time_ms),
        value_N=torch.from_numpy(events.value),
        offsets_B1=torch.from_numpy(events.offsets),
    )


def rows_of_windows(starts_B: Ints, ends_B: Ints) -> tuple[Ints, Ints]:
    """Table rows of the windows laid end to end (N,), and the windows' offsets (B + 1,)."""
    lengths_B = ends_B - starts_B
    offsets_B1 = np.concatenate(([0], np.cumsum(lengths_B)))
    rows_N = np.arange(offsets_B1[-1]) + np.repeat(starts_B - offsets_B1[:-1], lengths_B)
    return rows_N, offsets_B1


def jagged_batch(table: EventTable, rows_N: Ints, offsets_B1: Ints) -> JaggedBatch:
    """The encoder's input of those rows."""
    return JaggedBatch(
        item_hash_N=torch.from_numpy(table.item_hash_E[rows_N]),
        event_type_hash_N=torch.from_numpy(table.event_type_hash_E[rows_N]),
        surface_hash_N=torch.from_numpy(table.surface_hash_E[rows_N]),
        event_time_ms_N=torch.from_numpy(table.event_time_ms_E[rows_N]),
        value_N=torch.from_numpy(table.value_E[rows_N]),
        offsets_B1=torch.from_numpy(offsets_B1),
    )


def training_windows(table: EventTable, length: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Starts and ends of windows that cover all events, in random order.

    Sequences longer than `length` are cut at places that differ from epoch to epoch, so that every
    event is seen with long and short histories.
    """
    starts, ends = [], []
    for first, last in zip(table.offsets_U1[:-1], table.offsets_U1[1:], strict=True):
        if last - first <= length:
            cuts = np.array([first, last])
        else:
            inner = np.arange(first + rng.integers(1, length + 1), last, length)
            cuts = np.concatenate(([first], inner, [last]))
        starts.append(cuts[:-1])
        ends.append(cuts[1:])
    starts_W, ends_W = np.concatenate(starts), np.concatenate(ends)
    order_W = rng.permutation(np.flatnonzero(ends_W > starts_W))
    return starts_W[order_W], ends_W[order_W]
