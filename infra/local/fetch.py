"""`python -m infra.local.fetch`: bring every jar of the lock file into the cache, checked.

A jar whose SHA-256 is not the locked one is deleted and ends the run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import requests
from jgo.maven import MavenContext

from infra.local.jars import Jar, read_lock, sha256_of
from infra.local.layout import Cache
from infra.local.repository import maven_context
from streams.errors import HeadwaterError

_DOWNLOADS_AT_ONCE = 8
_PAUSES_SECONDS = (1.0, 3.0, 9.0)


def fetch(jars: list[Jar], folder: Path) -> Iterator[Jar]:
    """Download what is missing; yields each jar when it lies in the folder with its hash."""
    context = maven_context(folder)
    with ThreadPoolExecutor(_DOWNLOADS_AT_ONCE) as pool:
        futures = {pool.submit(_fetch_one, context, jar, folder): jar for jar in jars}
        try:
            for future in as_completed(futures):
                future.result()
                yield futures[future]
        finally:
            pool.shutdown(cancel_futures=True)


def _fetch_one(context: MavenContext, jar: Jar, folder: Path) -> None:
    path = folder / jar.path
    if path.is_file() and sha256_of(path) == jar.sha256:
        return
    _download(context, jar, path)
    found = sha256_of(path)
    if found != jar.sha256:
        path.unlink()
        raise HeadwaterError(
            f"{jar.coordinates} has SHA-256 {found}, not the locked {jar.sha256}; "
            "it was deleted: check your mirror, then run again: make setup"
        )


def _download(context: MavenContext, jar: Jar, path: Path) -> None:
    """jgo itself tries once; a registry that drops a connection now and then is normal."""
    component = context.project(jar.group, jar.artifact).at_version(jar.version)
    for pause_seconds in (*_PAUSES_SECONDS, None):
        path.unlink(missing_ok=True)  # the rest of a download that was cut off
        try:
            component.artifact(jar.classifier, "jar").resolve()
            return
        except (requests.RequestException, RuntimeError) as error:
            path.unlink(missing_ok=True)
            if pause_seconds is None:
                raise HeadwaterError(
                    f"can't download {jar.coordinates} ({type(error).__name__}): check the "
                    "network, or name your mirror of Maven Central in ~/.m2/settings.xml; "
                    "then run again: make setup"
                ) from error
            time.sleep(pause_seconds)


def main() -> int:
    jars = read_lock()
    step = max(1, len(jars) // 4)
    try:
        for done, _jar in enumerate(fetch(jars, Cache().jars), start=1):
            if done % step == 0 or done == len(jars):
                print(f"    {done} of {len(jars)} jars", file=sys.stderr, flush=True)
    except HeadwaterError as error:
        print(f"    {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
