"""From a checkpoint to a version in Triton's model repository.

    <model repository>/<encoder>/config.pbtxt
    <model repository>/<encoder>/<version>/  model.py  config.json  weights.pt  encoders/…

A version is complete before it is visible, and never changes afterwards: what was computed with it
is stored under its number. Versions are served side by side.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from encoders.checkpoint import draft_beside, read_checkpoint
from encoders.config import EncoderConfig
from encoders.model import UserEncoder, save_encoder
from encoders.parity import check_parity, parity_cases, run_exported
from streams.errors import ConfigError

CONFIG_FILE = "config.pbtxt"
_PACKAGE = Path(__file__).parent
# What the model imports; these modules need torch and the standard library only.
_MODULES = ("__init__.py", "config.py", "layers.py", "model.py")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_INPUTS = {
    "item_hash": "TYPE_INT64",
    "event_type_hash": "TYPE_INT64",
    "surface_hash": "TYPE_INT64",
    "event_time_ms": "TYPE_INT64",
    "value": "TYPE_FP32",
    "offsets": "TYPE_INT64",
}


@dataclass(frozen=True, kw_only=True)
class ServingOptions:
    """How Triton runs the encoder.

    `max_tokens` bounds a request, and so the memory it takes. `environment` names a virtual
    environment with torch, for a server whose own Python has none.
    """

    max_tokens: int = 32_768
    threads: int = 2
    environment: Path | None = None

    def parameters(self) -> dict[str, str]:
        """The `parameters` of config.pbtxt."""
        parameters = {"max_tokens": str(self.max_tokens), "threads": str(self.threads)}
        if self.environment is not None:
            parameters["EXECUTION_ENV_PATH"] = str(self.environment.resolve())
        return parameters

    @property
    def python(self) -> Path | None:
        return None if self.environment is None else self.environment / "bin" / "python"


@dataclass(frozen=True)
class Exported:
    """A published version; `difference` is the largest one from the checkpoint's vectors."""

    encoder: str
    version: int
    directory: Path
    difference: float
    notes: list[str] = field(default_factory=list)


def config_pbtxt(encoder: str, config: EncoderConfig, options: ServingOptions) -> str:
    """Triton's model configuration; the same for all versions of an encoder."""
    inputs = ",\n".join(
        f'  {{ name: "{name}" data_type: {kind} dims: [ -1 ] }}' for name, kind in _INPUTS.items()
    )
    parameters = "\n".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
        for key, value in options.parameters().items()
    )
    return f"""\
# Written by `headwater export`. Requests name the version that they want.
name: "{encoder}"
backend: "python"
max_batch_size: 0
# Sequences are jagged: all events end to end, and where each sequence begins.
input [
{inputs}
]
output [
  {{ name: "representation" data_type: TYPE_FP32 dims: [ -1, {config.dimensions} ] }}
]
instance_group [ {{ count: 1 kind: KIND_AUTO }} ]
version_policy {{ all {{ }} }}
{parameters}
"""


def export_version(
    checkpoint: Path, repository: Path, encoder: str, version: int, options: ServingOptions
) -> Exported:
    """Publish the checkpoint as that version. Raises ConfigError, HeadwaterError; then nothing is.

    The exported files are run in a process of their own and must give the checkpoint's vectors.
    """
    directory = repository / encoder / str(version)
    _check_target(directory, encoder, version)
    trained = read_checkpoint(checkpoint)
    text = config_pbtxt(encoder, trained.config, options)
    notes = _check_config(directory.parent / CONFIG_FILE, text, trained.config)
    with draft_beside(directory) as draft:
        _write_version(draft, trained)
        difference = _verify(draft, trained, options)
        _publish(draft, directory)
    if not (directory.parent / CONFIG_FILE).exists():
        # Last: who sees it, sees a complete model.
        unfinished = directory.parent / f".{CONFIG_FILE}"
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, directory.parent / CONFIG_FILE)
    return Exported(encoder, version, directory, difference, notes)


def holds_checkpoint(checkpoint: Path, repository: Path, encoder: str, version: int) -> bool:
    """Whether exactly this checkpoint is published as that version already."""
    directory = repository / encoder / str(version)
    if not (directory / "model.py").is_file() or not (directory.parent / CONFIG_FILE).is_file():
        return False
    published, trained = read_checkpoint(directory), read_checkpoint(checkpoint)
    weights, wanted = published.state_dict(), trained.state_dict()
    return (
        published.config == trained.config
        and weights.keys() == wanted.keys()
        and all(torch.equal(weights[name], wanted[name]) for name in wanted)
    )


def _check_target(directory: Path, encoder: str, version: int) -> None:
    if not _NAME.fullmatch(encoder):
        raise ConfigError(f"{encoder!r} is no encoder name; use letters, digits, '_', '.' and '-'")
    if version < 1:
        raise ConfigError(f"a version is a number from 1 on, not {version}")
    if directory.exists():
        raise ConfigError(
            f"version {version} of {encoder} exists in {directory.parent} and versions never "
            f"change; export as --version {_newest(directory.parent) + 1}"
        )


def _newest(directory: Path) -> int:
    numbers = (int(path.name) for path in directory.iterdir() if path.name.isdigit())
    return max(numbers, default=0)


def _check_config(path: Path, text: str, config: EncoderConfig) -> list[str]:
    """What there is to say about an existing config.pbtxt, which stays as it is."""
    if not path.exists():
        return []
    existing = path.read_text(encoding="utf-8")
    if existing == text:
        return []
    if f"dims: [ -1, {config.dimensions} ]" not in existing:
        raise ConfigError(
            f"{path} is for vectors of another width than {config.dimensions}; "
            "all versions of an encoder have one: export under another --encoder"
        )
    return [f"{path} stays as it is; edit it to change how the encoder is served"]


def _write_version(directory: Path, trained: UserEncoder) -> None:
    save_encoder(trained, directory)
    shutil.copyfile(_PACKAGE / "model_repository" / "model.py", directory / "model.py")
    package = directory / _PACKAGE.name
    package.mkdir()
    for name in _MODULES:
        shutil.copyfile(_PACKAGE / name, package / name)


def _verify(directory: Path, trained: UserEncoder, options: ServingOptions) -> float:
    cases = parity_cases(trained, options.max_tokens)
    answers = run_exported(
        directory,
        [case.request for case in cases],
        model_config_json(options.parameters()),
        options.python,
    )
    return check_parity(cases, answers, "the exported encoder")


def model_config_json(parameters: Mapping[str, str]) -> str:
    """The part of Triton's model configuration that the exported model reads."""
    values = {key: {"string_value": value} for key, value in parameters.items()}
    return json.dumps({"parameters": values})


def _publish(draft: Path, directory: Path) -> None:
    try:
        draft.rename(directory)
    except OSError as error:
        raise ConfigError(
            f"{directory} can't be made: {error.strerror}; if it exists by now, take the next "
            "--version"
        ) from error
