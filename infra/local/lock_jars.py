"""`python -m infra.local.lock_jars`: resolve the services' Maven coordinates into jars.lock.

Run by `make lock` after a version below was changed; reads POM files through jgo, and downloads
every jar once to hash it.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from jgo.maven import Dependency, MavenContext

from infra.local.jars import LOCK_FILE, Jar, sha256_of
from infra.local.layout import Cache
from infra.local.repository import maven_context

ROOTS = {
    "kafka": "org.apache.kafka:kafka_2.13:4.1.1",
    "cassandra": "org.apache.cassandra:cassandra-all:5.0.5",
}
# Jars by themselves: the broker's POM leaves the choice of a log4j binding to its distribution.
# (As a second root, its dependency management would replace versions of the broker's own jars.)
ALONE = {
    "kafka": ("org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",),
    "cassandra": (),
}
_OTHER_SYSTEMS = ("osx", "windows", "riscv")
_HEADER = "# group:artifact[:classifier]:version sha256 services, resolved by `make lock`\n"


def resolve(context: MavenContext, service: str) -> list[Jar]:
    """All jars that the service needs at run time on Linux, without hashes."""
    root = context.create_dependency(ROOTS[service])
    inputs, transitive = context.resolver.resolve([root])
    needed = [*inputs, *(d for d in transitive if d.scope in ("compile", "runtime"))]
    needed += [context.create_dependency(coordinates) for coordinates in ALONE[service]]
    return [_jar(dependency, service) for dependency in needed if _is_for_linux(dependency)]


def _jar(dependency: Dependency, service: str) -> Jar:
    artifact = dependency.artifact
    return Jar(
        dependency.groupId,
        dependency.artifactId,
        artifact.classifier,
        dependency.version,
        "",
        (service,),
    )


def _is_for_linux(dependency: Dependency) -> bool:
    return not any(name in dependency.artifact.classifier for name in _OTHER_SYSTEMS)


def merge(jars: list[Jar]) -> list[Jar]:
    """One entry per jar, with all services that share it."""
    merged: dict[str, Jar] = {}
    for jar in jars:
        known = merged.get(jar.coordinates, replace(jar, services=()))
        merged[jar.coordinates] = replace(known, services=(*known.services, *jar.services))
    return [merged[coordinates] for coordinates in sorted(merged)]


def main() -> int:
    folder = Cache().jars
    context = maven_context(folder)
    jars = merge([jar for service in ROOTS for jar in resolve(context, service)])
    for jar in jars:
        component = context.project(jar.group, jar.artifact).at_version(jar.version)
        component.artifact(jar.classifier, "jar").resolve()
    locked = [replace(jar, sha256=sha256_of(folder / jar.path)) for jar in jars]
    LOCK_FILE.write_text(_HEADER + "".join(f"{jar.line}\n" for jar in locked), encoding="utf-8")
    print(f"{len(locked)} jars locked in {LOCK_FILE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
