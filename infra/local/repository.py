"""Which Maven repository jars come from: the user's own choice, else jgo's default.

A company's mirror is honoured where Maven users keep it (`~/.m2/settings.xml`) and where jgo
users do (`~/.config/jgo.conf`, section `[repositories]`).
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from jgo.config import GlobalSettings
from jgo.maven import MavenContext

from streams.errors import ConfigError

_TIMEOUT_SECONDS = 60


def maven_context(folder: Path) -> MavenContext:
    """jgo's context that downloads to `folder` (it needs neither `mvn` nor `java` for that)."""
    chosen = GlobalSettings.load().repositories or settings_mirror(
        Path.home() / ".m2" / "settings.xml"
    )
    return MavenContext(repo_cache=folder, remote_repos=chosen or None, timeout=_TIMEOUT_SECONDS)


def settings_mirror(path: Path) -> dict[str, str]:
    """The mirror of the central repository in Maven's settings file; empty when there is none."""
    if not path.is_file():
        return {}
    try:
        tree = ElementTree.parse(path)
    except ElementTree.ParseError as error:
        raise ConfigError(f"{path} is not valid XML: {error}") from error
    for mirror in tree.iterfind(".//{*}mirrors/{*}mirror"):
        of = {part.strip() for part in mirror.findtext("{*}mirrorOf", "").split(",")}
        url = mirror.findtext("{*}url", "").strip()
        if url and of & {"central", "*", "external:*"} and "!central" not in of:
            return {"mirror": url.rstrip("/")}
    return {}
