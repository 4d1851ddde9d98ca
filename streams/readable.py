"""Whether an event that was produced can be read from its user's sequences by now."""

from __future__ import annotations

from streams.cassandra import Session
from streams.chunks import Chunk, needle_of
from streams.errors import StoreUnavailable
from streams.events import Event, Forget
from streams.sequence_store import SequenceStore
from streams.sequences import HEAD, Mark, StoredUser, ViewSet
from streams.settings import Settings
from streams.views import declared_views, feature_store


class Readable:
    """Asks the store; for `EventProducer.send(wait="readable")`. Belongs to one event loop."""

    def __init__(self, settings: Settings, views: ViewSet | None = None) -> None:
        """`views` default to the declared ones, which are read when first needed."""
        self._settings = settings
        self._views = views
        self._session = Session(settings.cassandra)
        self._store = SequenceStore(self._session)

    async def __call__(self, record: Event | Forget) -> bool:
        """True once the event lies in a view, or the deletion has its mark.

        An event that was pushed out, or is older than the views keep, never gets there. Raises
        ValueError for an event type that no view takes, ConfigError without a registry,
        StoreRejected.
        """
        names = () if isinstance(record, Forget) else self._views_of(record)
        try:
            stored = await self._store.load_all(record.user_id)
        except StoreUnavailable:
            return False
        if isinstance(record, Forget):
            return _is_marked(stored, record)
        needle = needle_of(record.event_id)
        return any(
            row.view in names and row.chunk != HEAD and Chunk.decode(row.value).find(needle) >= 0
            for row in stored.rows
        )

    def _views_of(self, event: Event) -> tuple[str, ...]:
        if self._views is None:
            declared = declared_views(feature_store(self._settings))
            self._views = ViewSet(declared.sequences.values())
        names = tuple(view.name for view in self._views.by_type.get(event.event_type, ()))
        if not names:
            raise ValueError(f"no declared view takes event type {event.event_type!r}")
        return names

    async def close(self) -> None:
        """Close the connection."""
        await self._session.close()


def _is_marked(stored: StoredUser, record: Forget) -> bool:
    return stored.mark is not None and Mark.decode(stored.mark).event_time >= record.event_time
