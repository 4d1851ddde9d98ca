"""A trained encoder on disk: config.json, weights.pt and metrics.json in one directory."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from encoders.model import CONFIG_FILE, WEIGHTS_FILE, UserEncoder, load_encoder, save_encoder
from streams.errors import ConfigError

METRICS_FILE = "metrics.json"
_FILES = {CONFIG_FILE, WEIGHTS_FILE, METRICS_FILE}


def write_checkpoint(directory: Path, encoder: UserEncoder, metrics: Mapping[str, Any]) -> None:
    """Write all of it or nothing. Replaces a checkpoint that is there, and nothing else."""
    check_output(directory)
    with draft_beside(directory) as draft:
        save_encoder(encoder, draft)
        text = json.dumps(metrics, indent=2, allow_nan=False)
        (draft / METRICS_FILE).write_text(text + "\n", encoding="utf-8")
        if directory.is_dir():
            shutil.rmtree(directory)
        draft.rename(directory)


def check_output(directory: Path) -> None:
    """Raises ConfigError if a checkpoint can't be written there."""
    if directory.is_dir():
        if foreign := sorted({file.name for file in directory.iterdir()} - _FILES):
            raise ConfigError(f"{directory} holds {foreign[0]}, no checkpoint; name another --out")
    elif directory.exists():
        raise ConfigError(f"{directory} is a file; name a directory with --out")


def read_checkpoint(directory: Path) -> UserEncoder:
    """The encoder for inference, on the CPU. Raises ConfigError with what to do."""
    try:
        return load_encoder(directory)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{directory} is no checkpoint ({Path(str(error.filename)).name} is missing); "
            "make one with `headwater train`"
        ) from error
    except (OSError, ValueError, RuntimeError, pickle.UnpicklingError) as error:
        raise ConfigError(f"the checkpoint in {directory} can't be read: {error}") from error


def read_metrics(directory: Path) -> dict[str, Any]:
    """What training measured, empty if that isn't known."""
    try:
        metrics = json.loads((directory / METRICS_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{directory / METRICS_FILE} can't be read: {error}") from error
    return metrics if isinstance(metrics, dict) else {}


@contextmanager
def draft_beside(target: Path) -> Iterator[Path]:
    """A new directory on the same disk; rename it to `target`, or it is deleted at the end."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    # mkdtemp makes it for the owner alone, but a server may run as somebody else.
    draft.chmod(0o777 & ~_umask())
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
