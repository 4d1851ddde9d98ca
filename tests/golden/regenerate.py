"""`python -m tests.golden.regenerate`: write what is generated and checked in.

- `streams/event.schema.json`: the JSON Schema of a record, from the code.
- `tests/golden/blobs.json`: one entry per kind and format of stored value. Entries that are there
  stay as they are, since such blobs lie in stores and logs; only new ones are added.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from streams.chunks import Chunk, StoredEvent, encode_head
from streams.events import json_schema
from streams.representations import RefreshRequest, Representation
from streams.sequences import Mark

GOLDEN = Path(__file__).parent
SCHEMA_FILE = GOLDEN.parents[1] / "streams" / "event.schema.json"
BLOBS_FILE = GOLDEN / "blobs.json"

NAN = float("nan")
# Late and early times, every kind of text, shared and absent surfaces, absent and extreme values.
EVENTS = (
    StoredEvent(0, "a", "item-0", "view", "", NAN),
    StoredEvent(1_700_000_000_000, "e1", "item-1", "click", "feed", 1.5),
    StoredEvent(1_700_000_000_000, "e2", "été 😀\x00", "view", "reels", -0.0),
    StoredEvent(1_700_000_000_001, "é" * 64, "x" * 256, "click", "feed", 3.0),
    StoredEvent(2**53 - 1, "z", "item-1", "like", "", -(2.0**127)),
)
DIRECTORY = [(0, 128), (1_700_000_000_000, 127), (2**53 - 1, 200)]
MARK = Mark(event_time=1_700_000_000_000, event_id="f1", forgotten_at=1_700_000_000_500)
REPRESENTATION = Representation(
    np.array([0.5, -1.25, 0.0, 3.0e38], np.float32), 1_700_000_000_001, (1 << 52) + 768, 5
)
REQUEST = RefreshRequest(
    user_id="été",
    position=(1 << 52) + 768,
    event_time=1_700_000_000_001,
    oldest_event_time=1_700_000_000_000,
    ingested_at=1_700_000_000_002,
    folded_at=1_700_000_000_003,
    stored_at=1_700_000_000_004,
    trigger="event",
    event_id="e1",
)


def chunk_of(events: tuple[StoredEvent, ...]) -> Chunk:
    """A chunk that holds these events."""
    chunk = Chunk()
    for event in events:
        chunk.append_stored(event)
    return chunk


def encoded_now() -> dict[str, bytes]:
    """Every kind of stored value, as this version writes it."""
    return {
        "chunk-1": chunk_of(EVENTS).encode(),
        "head-1": encode_head(DIRECTORY),
        "mark-1": MARK.encode(),
        "representation-1": REPRESENTATION.encode(),
        "refresh-request-1": REQUEST.encode(),
    }


def schema_text() -> str:
    """The JSON Schema file's content."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
    kept: dict[str, Any] = json.loads(BLOBS_FILE.read_text()) if BLOBS_FILE.is_file() else {}
    blobs = {name: blob.hex() for name, blob in encoded_now().items()} | kept
    BLOBS_FILE.write_text(json.dumps(blobs, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
