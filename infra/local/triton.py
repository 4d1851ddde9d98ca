"""Triton Inference Server out of the nvidia-pytriton wheel, in an environment of its own.

The wheel carries the server and the python backend; its packages (numpy below 2) don't fit the
main environment. Models are loaded and unloaded by name through the repository API.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

from infra.local.bootstrap import libpython_folder
from infra.local.probes import triton_answers, triton_models
from infra.local.service import Service, ServiceState
from streams.errors import HeadwaterError

_STUB = "triton_python_backend_stub"
_SHARED_MEMORY = Path("/dev/shm")
_PINNED_POOL_BYTES = 16 << 20


class TritonService(Service):
    """The server; `headwater export` loads models through its repository API."""

    name = "triton"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.plan.ports['triton_grpc']}"

    def settings(self) -> dict[str, str]:
        """The [triton] section of stack.toml."""
        ports = self.plan.ports
        return {
            "url": self.address,
            "http_url": f"127.0.0.1:{ports['triton_http']}",
            "metrics_url": f"http://127.0.0.1:{ports['triton_metrics']}/metrics",
            "model_repository": str(self.plan.home.models),
        }

    def prepare(self) -> None:
        if not self._server.is_file():
            raise HeadwaterError("Triton's environment is missing; run: make setup")
        self.plan.home.models.mkdir(parents=True, exist_ok=True)
        self.plan.home.data(self.name).mkdir(parents=True, exist_ok=True)
        place_stub(self._packages)
        self.clean()

    def clean(self) -> None:
        """Delete the shared memory that a killed server left behind."""
        for region in _SHARED_MEMORY.glob(f"{self._region_prefix}*"):
            region.unlink(missing_ok=True)

    def command(self) -> list[str]:
        ports = self.plan.ports
        options = {
            "model-repository": self.plan.home.models,
            "model-control-mode": "explicit",
            # Ready means that the server answers; each model has a readiness of its own.
            "strict-readiness": "false",
            "exit-on-error": "false",
            "backend-directory": self._backends,
            "grpc-address": "127.0.0.1",
            "grpc-port": ports["triton_grpc"],
            "http-address": "127.0.0.1",
            "http-port": ports["triton_http"],
            "metrics-address": "127.0.0.1",
            "metrics-port": ports["triton_metrics"],
            "http-thread-count": 2,
            "buffer-manager-thread-count": 1,
            "pinned-memory-pool-byte-size": _PINNED_POOL_BYTES,
            "exit-timeout-secs": 5,
            "log-warning": "true",
        }
        return [
            str(self._server),
            *(f"--{name}={value}" for name, value in options.items()),
            f"--backend-config=python,shm-region-prefix-name={self._region_prefix}",
            *(f"--load-model={name}" for name in self.models()),
        ]

    def models(self) -> list[str]:
        """The models in the repository; all are loaded when the server starts."""
        return sorted(file.parent.name for file in self.plan.home.models.glob("*/config.pbtxt"))

    def environment(self) -> dict[str, str]:
        """The python backend's interpreter finds the environment as `python3` on PATH does."""
        environment = super().environment()
        env = self.plan.cache.triton_env
        libraries = [str(self._packages / "nvidia_pytriton.libs"), str(libpython_folder())]
        if outer := environment.get("LD_LIBRARY_PATH"):
            libraries.append(outer)
        for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
            environment.pop(name, None)
        return environment | {
            "LD_LIBRARY_PATH": ":".join(libraries),
            "PATH": f"{env / 'bin'}:{environment.get('PATH', os.defpath)}",
            "MALLOC_ARENA_MAX": "2",
        }

    def probe(self) -> str:
        return triton_answers(self._http_port)

    def state(self) -> ServiceState:
        """The detail counts the models and says why one is not available."""
        state = super().state()
        if state.state != "ready":
            return state
        models = triton_models(self._http_port)
        broken = [f"{name}: {why}" for name, (status, why) in models.items() if status != "READY"]
        ready = len(models) - len(broken)
        return state._replace(detail="; ".join([f"{ready} model(s) ready", *broken]))

    @property
    def _http_port(self) -> int:
        return self.plan.ports["triton_http"]

    @property
    def _region_prefix(self) -> str:
        return f"headwater-{self._http_port}-"

    @property
    def _packages(self) -> Path:
        version = sysconfig.get_python_version()
        return self.plan.cache.triton_env / "lib" / f"python{version}" / "site-packages"

    @property
    def _server(self) -> Path:
        return self._packages / "pytriton" / "tritonserver" / "bin" / "tritonserver"

    @property
    def _backends(self) -> Path:
        return self._packages / "pytriton" / "tritonserver" / "backends"


def place_stub(packages: Path) -> None:
    """Put the stub of this Python's version beside the python backend's library.

    The wheel has one per version; the backend only looks in its own folder.
    """
    server = packages / "pytriton" / "tritonserver"
    source = server / "python_backend_stubs" / sysconfig.get_python_version() / _STUB
    target = server / "backends" / "python" / _STUB
    if target.is_file() and target.stat().st_size == source.stat().st_size:
        return
    draft = target.with_name(f"{_STUB}.{os.getpid()}")
    shutil.copy(source, draft)
    draft.replace(target)
