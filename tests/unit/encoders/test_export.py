"""What `headwater export` writes, run as Triton runs it, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelVersionPolicy

from encoders import export
from encoders.checkpoint import write_checkpoint
from encoders.config import EncoderConfig
from encoders.export import (
    CONFIG_FILE,
    ServingOptions,
    config_pbtxt,
    export_version,
    holds_checkpoint,
    model_config_json,
)
from encoders.model import UserEncoder
from encoders.parity import check_parity, parity_cases, run_exported
from streams.encoder_input import EncoderInput
from streams.errors import ConfigError, HeadwaterError

OPTIONS = ServingOptions(max_tokens=512, threads=1)


@pytest.fixture
def checkpoint(encoder: UserEncoder, tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "checkpoint", encoder, {})
    return tmp_path / "checkpoint"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one version, for the tests that only read."""
    root = tmp_path_factory.mktemp("published")
    torch.manual_seed(7)
    small = UserEncoder(EncoderConfig(dimensions=32, max_length=64, item_buckets=256))
    write_checkpoint(root / "checkpoint", small.eval(), {})
    export_version(root / "checkpoint", root / "models", "user_encoder", 1, OPTIONS)
    return root


@pytest.fixture
def _trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips the trial run, for tests of something else."""
    monkeypatch.setattr("encoders.export._verify", lambda *_: 0.0)


def test_config_is_the_encoders(config: EncoderConfig) -> None:
    """Read with Triton's own schema, so a field that it doesn't know fails here."""
    environment = Path("/opt/environment")
    options = ServingOptions(max_tokens=99, threads=3, environment=environment)
    parsed = text_format.Parse(config_pbtxt("some_encoder", config, options), ModelConfig())
    assert parsed.name == "some_encoder"
    assert parsed.backend == "python"
    assert parsed.max_batch_size == 0
    request = parity_cases(UserEncoder(config), 64, sizes=(1,))[0].request
    tensors = request._asdict()
    assert {tensor.name for tensor in parsed.input} == set(tensors)
    types = {np.dtype(np.int64): "TYPE_INT64", np.dtype(np.float32): "TYPE_FP32"}
    kinds = type(parsed.input[0]).DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    for tensor in parsed.input:
        assert kinds[tensor.data_type].name == types[tensors[tensor.name].dtype]
        assert list(tensor.dims) == [-1]
    (output,) = parsed.output
    assert (output.name, list(output.dims)) == ("representation", [-1, config.dimensions])
    assert parsed.version_policy == ModelVersionPolicy(all=ModelVersionPolicy.All())
    values = {key: parameter.string_value for key, parameter in parsed.parameters.items()}
    assert values == {"max_tokens": "99", "threads": "3", "EXECUTION_ENV_PATH": str(environment)}


def test_a_server_with_torch_needs_no_environment(config: EncoderConfig) -> None:
    assert "EXECUTION_ENV_PATH" not in config_pbtxt("user_encoder", config, OPTIONS)


def test_version_holds_what_it_needs(published: Path) -> None:
    version = published / "models" / "user_encoder" / "1"
    files = {str(path.relative_to(version)) for path in version.rglob("*") if path.is_file()}
    modules = {f"encoders/{name}.py" for name in ("__init__", "config", "layers", "model")}
    assert files == {"model.py", "config.json", "weights.pt"} | modules
    assert {path.name for path in version.parent.iterdir()} == {"1", CONFIG_FILE}


def test_exported_modules_need_only_numpy_and_torch(published: Path) -> None:
    """Triton's environment has neither the project nor its other dependencies."""
    version = published / "models" / "user_encoder" / "1"
    script = (
        "import sys, torch, numpy\n"
        f"sys.path.insert(0, {str(version)!r})\n"
        "before = set(sys.modules)\n"
        "import encoders.model\n"
        f"assert encoders.model.__file__.startswith({str(version)!r}), encoders.model.__file__\n"
        "outside = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(outside - set(sys.stdlib_module_names) - {'torch', 'encoders'}))\n"
    )
    command = [sys.executable, "-B", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.usefixtures("_trusted")
def test_versions_lie_side_by_side_and_never_change(checkpoint: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    first = export_version(checkpoint, repository, "user_encoder", 1, OPTIONS)
    weights = (first.directory / "weights.pt").read_bytes()
    config_text = (repository / "user_encoder" / CONFIG_FILE).read_text()
    torch.manual_seed(8)
    other = UserEncoder(EncoderConfig(dimensions=32, max_length=16, item_buckets=256)).eval()
    write_checkpoint(checkpoint, other, {})
    with pytest.raises(ConfigError, match=r"never change; export as --version 2"):
        export_version(checkpoint, repository, "user_encoder", 1, OPTIONS)
    second = export_version(checkpoint, repository, "user_encoder", 2, OPTIONS)
    assert not second.notes
    assert (first.directory / "weights.pt").read_bytes() == weights
    assert (second.directory / "weights.pt").read_bytes() != weights
    assert (repository / "user_encoder" / CONFIG_FILE).read_text() == config_text


def test_what_is_published_is_known_again(checkpoint: Path, published: Path) -> None:
    models = published / "models"
    assert holds_checkpoint(published / "checkpoint", models, "user_encoder", 1)
    assert not holds_checkpoint(published / "checkpoint", models, "user_encoder", 2)
    torch.manual_seed(99)
    other = UserEncoder(EncoderConfig(dimensions=32, max_length=64, item_buckets=256))
    write_checkpoint(checkpoint, other, {})
    assert not holds_checkpoint(checkpoint, models, "user_encoder", 1)


@pytest.mark.usefixtures("_trusted")
def test_an_existing_config_stays(published: Path, config: EncoderConfig, tmp_path: Path) -> None:
    model = tmp_path / "user_encoder"
    model.mkdir()
    edited = config_pbtxt("user_encoder", config, ServingOptions(threads=7))
    (model / CONFIG_FILE).write_text(edited)
    exported = export_version(published / "checkpoint", tmp_path, "user_encoder", 1, OPTIONS)
    assert "stays as it is" in exported.notes[0]
    assert (model / CONFIG_FILE).read_text() == edited


def test_another_width_is_another_encoder(published: Path, tmp_path: Path) -> None:
    model = tmp_path / "user_encoder"
    model.mkdir()
    wider = EncoderConfig(dimensions=64)
    (model / CONFIG_FILE).write_text(config_pbtxt("user_encoder", wider, OPTIONS))
    with pytest.raises(ConfigError, match=r"another width than 32.*another --encoder"):
        export_version(published / "checkpoint", tmp_path, "user_encoder", 1, OPTIONS)
    assert {path.name for path in model.iterdir()} == {CONFIG_FILE}


@pytest.mark.parametrize("name", ["", "../evil", "a/b", ".hidden", "white space"])
def test_names_are_checked(published: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="no encoder name"):
        export_version(published / "checkpoint", tmp_path, name, 1, OPTIONS)


def test_versions_count_from_one(published: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="from 1 on"):
        export_version(published / "checkpoint", tmp_path, "user_encoder", 0, OPTIONS)


@pytest.mark.parametrize("fault", ["difference", "crash"])
def test_nothing_is_published_that_differs(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    def spoil(directory: Path, trained: UserEncoder) -> None:
        original(directory, trained)
        model = directory / "model.py"
        text = model.read_text()
        right, wrong = {
            "difference": (".cpu().numpy()", ".cpu().numpy() * 1.001"),
            "crash": ("import torch", "import no_such_module"),
        }[fault]
        assert right in text
        model.write_text(text.replace(right, wrong, 1))

    original = export._write_version
    monkeypatch.setattr(export, "_write_version", spoil)
    message = {"difference": "differs from the checkpoint by", "crash": "no_such_module"}[fault]
    with pytest.raises(HeadwaterError, match=message):
        export_version(checkpoint, tmp_path / "models", "user_encoder", 1, OPTIONS)
    assert list((tmp_path / "models").rglob("*.p*")) == []


def test_bad_requests_are_told(published: Path) -> None:
    """Each with an answer of its own, and the good ones among them are answered."""
    version = published / "models" / "user_encoder" / "1"
    small = UserEncoder(EncoderConfig(dimensions=32, max_length=64, item_buckets=256))
    good = parity_cases(small, 64, sizes=(1,))[0].request
    nine, twice = (
        EncoderInput._make([np.tile(column, times) for column in good]) for times in (9, 2)
    )
    requests = [
        good._replace(offsets=np.array([0, 0, 64])),
        good._replace(value=good.value[:-1]),
        good._replace(offsets=np.array([0, 70, 64])),
        good,
        nine._replace(offsets=np.arange(0, 577, 64)),
        twice._replace(offsets=np.array([0, 128])),
    ]
    answers = run_exported(version, requests, model_config_json(OPTIONS.parameters()), None)
    texts = [str(answer) for answer in answers]
    assert "sequence 0 is empty" in texts[0]
    assert "value has shape (63,); expected (64,)" in texts[1]
    assert "sequence 1 is empty or its offsets decrease" in texts[2]
    assert answers[3].shape == (1, 32)
    assert "576 tokens; at most 512 at once" in texts[4]
    assert "sequence 0 has 128 events; keep the newest 64" in texts[5]


def test_parity_counts_what_is_not_a_number(encoder: UserEncoder) -> None:
    cases = parity_cases(encoder, 64, sizes=(2,))
    with pytest.raises(HeadwaterError, match="here differs from the checkpoint by nan"):
        check_parity(cases, [np.full((2, 32), np.nan, np.float32)], "here")
    with pytest.raises(HeadwaterError, match=r"here answers \(\): too bad"):
        check_parity(cases, [np.array("too bad")], "here")
    assert check_parity(cases, [cases[0].expected_BD], "here") == 0.0
