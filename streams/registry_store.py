"""Feast's registry as a file at the path that the settings name.

feature_store.yaml can't follow HEADWATER_HOME by itself, so that it names this class.
"""

from __future__ import annotations

from pathlib import Path

import streams.feast_light  # noqa: F401 # isort: skip
from feast.infra.registry.file import FileRegistryStore
from feast.protos.feast.core.Registry_pb2 import Registry as RegistryProto
from feast.repo_config import RegistryConfig

from streams.settings import load_settings


class HeadwaterRegistryStore(FileRegistryStore):  # type: ignore[misc]
    """A file registry that is replaced in one step, so that a reader or a crash sees a whole one.

    A relative path stands for the settings' path; an absolute one is taken as it is.
    """

    def __init__(self, registry_config: RegistryConfig, repo_path: Path) -> None:
        super().__init__(registry_config, repo_path)
        if not Path(registry_config.path).is_absolute():
            self._filepath = load_settings(cwd=Path(repo_path)).registry_path

    def _write_registry(self, registry_proto: RegistryProto) -> None:
        target = self._filepath
        target.parent.mkdir(parents=True, exist_ok=True)
        self._filepath = target.with_name(f"{target.name}.draft")
        try:
            super()._write_registry(registry_proto)
            self._filepath.replace(target)
        finally:
            self._filepath = target
