"""Feature repositories of the benchmarks: the platform's store, other sequence views."""

from __future__ import annotations

import shutil
from pathlib import Path

from infra.local.bootstrap import ROOT

_HEAD = '''"""Views of a benchmark."""

from feast import Entity, ValueType

from streams.views import representation_view, sequence_view

TYPES = ["impression", "view", "click", "like", "conversion"]
user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.STRING)
'''
_SEQUENCE = """
{name} = sequence_view("{name}", entity=user, event_types=TYPES, max_length={length})
"""
_REPRESENTATION = """
user_representation = representation_view(
    "user_representation", entity=user, encoder="user_encoder", dimensions=64,
    sequences=[{names}], max_length=128,
)
"""


def make_repo(folder: Path, sequences: dict[str, int], *, representation: bool) -> Path:
    """A repository with views of all event types by name and length."""
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "feature_repo" / "feature_store.yaml", folder)
    text = _HEAD + "".join(_SEQUENCE.format(name=n, length=k) for n, k in sequences.items())
    if representation:
        text += _REPRESENTATION.format(names=", ".join(sequences))
    (folder / "features.py").write_text(text, encoding="utf-8")
    return folder
