"""Triton Inference Server out of the nvidia-pytriton wheel, in an environment of its own."""

from __future__ import annotations

from infra.local.probes import triton_answers
from infra.local.service import Service


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
        raise NotImplementedError

    def command(self) -> list[str]:
        raise NotImplementedError

    def probe(self) -> str:
        return triton_answers(self.plan.ports["triton_http"])
