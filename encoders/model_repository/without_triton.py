"""Runs an exported version in a plain Python process, through the same calls as Triton.

    python -B without_triton.py VERSION_DIRECTORY REQUESTS.npz ANSWERS.npz MODEL_CONFIG_JSON

`REQUESTS.npz` holds `<number>/<tensor>`; `ANSWERS.npz` gets `<number>`, a text where the answer is
an error. Needs numpy and torch only, so that it runs in Triton's environment as well.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BACKEND_MODULE = "triton_python_backend_utils"


@dataclass
class Tensor:
    name: str
    values: Any

    def as_numpy(self) -> Any:
        return self.values


class TritonError:
    INVALID_ARG = 3

    def __init__(self, message: str, code: int = 0) -> None:
        self.text = message
        self.code = code

    def message(self) -> str:
        return self.text


@dataclass
class InferenceResponse:
    output_tensors: list[Tensor]
    error: TritonError | None = None


def stand_in() -> types.ModuleType:
    """A module with what the exported model uses of the python backend's own."""
    module = types.ModuleType(BACKEND_MODULE)
    parts = {
        "Tensor": Tensor,
        "TritonError": TritonError,
        "InferenceResponse": InferenceResponse,
        "get_input_tensor_by_name": lambda request, name: Tensor(name, request[name]),
    }
    vars(module).update(parts)
    return module


def start_model(version_directory: Path, model_config: str) -> Any:
    """The exported model, initialised. The backend's module must be importable."""
    spec = importlib.util.spec_from_file_location("model", version_directory / "model.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"{version_directory} has no model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.TritonPythonModel()
    model.initialize({"model_config": model_config})
    return model


def answer(model: Any, request: dict[str, Any]) -> Any:
    """The vectors, or the text of the error."""
    (response,) = model.execute([request])
    if response.error is not None:
        return np.array(response.error.message())
    return response.output_tensors[0].as_numpy()


def main(version_directory: str, requests: str, answers: str, model_config: str) -> None:
    sys.modules[BACKEND_MODULE] = stand_in()
    model = start_model(Path(version_directory), model_config)
    by_number: dict[str, dict[str, Any]] = {}
    with np.load(requests) as stored:
        for key in stored.files:
            number, _, tensor = key.partition("/")
            by_number.setdefault(number, {})[tensor] = stored[key]
    np.savez(answers, **{number: answer(model, request) for number, request in by_number.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
