"""Refresh requests of a batch: decoded, and one per user. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import msgspec

from streams.errors import InvalidRecord
from streams.kafka import ConsumedRecord
from streams.representations import RefreshRequest
from streams.workers.intake import Refused


class Refresh(msgspec.Struct):
    """What one user's requests of a batch come to.

    `position` is the newest one asked for; the times (ms) are of the request that has waited
    longest, so that the measured delay is the worst one.
    """

    user_id: str
    position: int
    event_time: int
    ingested_at: int
    requested_at: int
    forget: bool
    is_live: bool


def coalesce(records: Sequence[ConsumedRecord]) -> tuple[list[Refresh], list[Refused]]:
    """One refresh per user, in the order of their first request, and what is no request."""
    users: dict[str, Refresh] = {}
    refused: list[Refused] = []
    for record in records:
        try:
            request = RefreshRequest.decode(record.value)
        except InvalidRecord as error:
            refused.append(Refused(record, error.reason, error.detail))
            continue
        known = users.get(request.user_id)
        if known is None:
            users[request.user_id] = _refresh(request, record.timestamp)
        else:
            known.position = max(known.position, request.position)
            known.forget |= request.trigger == "forget"
            known.is_live |= request.trigger != "rebuild"
    return list(users.values()), refused


def _refresh(request: RefreshRequest, requested_at: int) -> Refresh:
    return Refresh(
        request.user_id,
        request.position,
        request.event_time,
        request.ingested_at,
        requested_at,
        request.trigger == "forget",
        request.trigger != "rebuild",
    )


class KnownPositions:
    """Up to which position a user's stored representation is known to reflect the log; bounded.

    Keys are (encoder, version, user): what is true of one version says nothing of another.
    """

    def __init__(self, max_users: int) -> None:
        self._max_users = max_users
        self._positions: OrderedDict[tuple[str, str, str], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._positions)

    def reaches(self, encoder: str, version: str, refresh: Refresh) -> bool:
        """Whether what is asked for is stored already."""
        found = self._positions.get((encoder, version, refresh.user_id), -1)
        return found >= refresh.position

    def put(self, encoder: str, version: str, users: Iterable[tuple[str, int]]) -> None:
        """These users' representations at these positions are stored, or known to be none."""
        for user_id, position in users:
            key = (encoder, version, user_id)
            self._positions[key] = max(position, self._positions.get(key, -1))
            self._positions.move_to_end(key)
        while len(self._positions) > self._max_users:
            self._positions.popitem(last=False)
