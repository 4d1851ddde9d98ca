"""Intake: what the records of a batch are, before anything is looked up. Pure.

Each record becomes exactly one of: an entry of a user's work, a dead letter (R5), or a foreign
record, which lies outside the home partition of its key and is sent there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from streams.errors import DeadLetterLimit, InvalidRecord
from streams.events import Event, Forget, decode_record
from streams.kafka import ConsumedRecord, first_ingested_at, home_partition
from streams.sequences import log_position

# One good record, its log position, and the broker's time (ms). A plain tuple: one per event.
Entry = tuple[Event | Forget, int, int]


class Refused(NamedTuple):
    """One bad record and what is wrong with it."""

    record: ConsumedRecord
    reason: str
    detail: str


class UserEntries:
    """The good records of one user, in log order."""

    __slots__ = ("entries", "user_id")

    def __init__(self, user_id: str) -> None:
        self.user_id = user_id
        self.entries: list[Entry] = []


class Intake:
    """The sorted records of one batch; users by their key, in the order of their first record."""

    __slots__ = ("foreign", "refused", "users")

    def __init__(self) -> None:
        self.users: dict[bytes, UserEntries] = {}
        self.refused: list[Refused] = []
        self.foreign: list[ConsumedRecord] = []


def take_in(
    records: Sequence[ConsumedRecord],
    *,
    epoch: int,
    partition: int,
    partitions: int,
    future_allowance_ms: int,
) -> Intake:
    """Sort a partition's records, which are in log order, by what they are."""
    intake = Intake()
    users, refused = intake.users, intake.refused
    base = log_position(epoch, 0)
    for record in records:
        try:
            event = decode_record(record.value)
        except InvalidRecord as error:
            refused.append(Refused(record, error.reason, error.detail))
            continue
        ingested_at = record.timestamp
        if event.event_time > ingested_at + future_allowance_ms:
            refused.append(_future(record, event, ingested_at))
            continue
        user_id, key = event.user_id, record.key
        if key is None:
            refused.append(_wrong_key(record, user_id))
            continue
        user = users.get(key)
        if user is None or user.user_id != user_id:
            if user is not None or key != user_id.encode():
                refused.append(_wrong_key(record, user_id))
                continue
            if home_partition(key, partitions) != partition:
                intake.foreign.append(record)
                continue
            user = users[key] = UserEntries(user_id)
        if record.headers:
            ingested_at = first_ingested_at(record.headers, ingested_at)
        user.entries.append((event, base | record.offset << 8, ingested_at))
    return intake


def _future(record: ConsumedRecord, event: Event | Forget, ingested_at: int) -> Refused:
    ahead = (event.event_time - ingested_at) / 1000
    return Refused(
        record,
        "future_event_time",
        f"event_time {event.event_time} is {ahead:.0f} s after the broker took the record",
    )


def _wrong_key(record: ConsumedRecord, user: str) -> Refused:
    found = "no key" if record.key is None else repr(record.key[:80])
    return Refused(record, "key_mismatch", f"the key is {found}, user_id is {user[:80]!r}")


class DeadLetterWatch:
    """Watches the share of bad records among the newest ones, over all partitions.

    A bad deployment must not empty the log into the dead letters: past the limit a person looks.
    """

    def __init__(self, max_share: float, window: int) -> None:
        self._max_share = max_share
        self._window = window
        self._batches: deque[tuple[int, int]] = deque()
        self._records = 0
        self._bad = 0

    def check(self, records: int, bad: int) -> None:
        """Take a batch into the window. Raises DeadLetterLimit, before it is dead-lettered."""
        self._batches.append((records, bad))
        self._records += records
        self._bad += bad
        while self._records - self._batches[0][0] >= self._window:
            old_records, old_bad = self._batches.popleft()
            self._records -= old_records
            self._bad -= old_bad
        share = self._bad / self._records
        if self._records >= self._window and share > self._max_share:
            raise DeadLetterLimit(
                f"{self._bad} of the last {self._records} records are bad ({share:.0%}, limit "
                f"{self._max_share:.0%}): nothing more goes to the dead letters. See `headwater "
                "dead-letters list`; if they are to go, raise "
                "sequence_worker.max_dead_letter_share and start the worker again"
            )
