"""The declared views as workers use them, and whether `headwater apply` changed them meanwhile."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from streams.representations import RepresentationView
from streams.sequences import SequenceView, ViewSet
from streams.settings import Settings
from streams.views import declared_views, feature_store


class Views:
    """One set of declarations. `sources` are the sequence views that feed a representation,
    `source_types` the event types that those take."""

    def __init__(
        self, sequences: Iterable[SequenceView], representations: Iterable[RepresentationView]
    ) -> None:
        self.set = ViewSet(sequences)
        self.representations = tuple(representations)
        feeding = {name for view in self.representations for name in view.sequences}
        self.sources = frozenset(feeding & set(self.set.names))
        self.source_types = frozenset(
            event_type
            for event_type, views in self.set.by_type.items()
            if any(view.name in self.sources for view in views)
        )

    @property
    def digest(self) -> str:
        """Two workers with the same one fold the same; shown by /state."""
        text = msgspec.json.encode([self.set.views, self.representations])
        return hashlib.blake2b(text, digest_size=8).hexdigest()

    def same_as(self, other: Views) -> bool:
        """Whether both declare the same."""
        return self.set.views == other.set.views and self.representations == other.representations


def read_views(settings: Settings) -> Views:
    """The views in the registry. Raises ConfigError if `headwater apply` never ran; blocks."""
    declared = declared_views(feature_store(settings))
    return Views(declared.sequences.values(), declared.representations.values())


class Declarations:
    """The current views; looks at the registry's file, and reads it when that has changed."""

    def __init__(self, settings: Settings, views: Views) -> None:
        self._settings = settings
        self._seen = self._look()
        self.views = views

    async def refresh(self) -> bool:
        """True if `views` is another one than before. Raises ConfigError."""
        seen = self._look()
        if seen == self._seen:
            return False
        views = await asyncio.to_thread(read_views, self._settings)
        self._seen = seen
        if views.same_as(self.views):
            return False
        self.views = views
        return True

    def _look(self) -> Any:
        try:
            found = self._settings.registry_path.stat()
        except FileNotFoundError:
            return None  # between two moments of its replacement, or views given by a test
        return found.st_ino, found.st_mtime_ns, found.st_size
