"""Own acknowledgement: which offset may be committed, given what is done (R3). Pure.

Kafka commits one number per partition: everything below it is done. Batches may end in any order,
so a partition's ledger keeps the ranges that were begun and commits up to the first unfinished one.
"""

from __future__ import annotations

from collections import deque


class Claim:
    """The offsets [first, next) of one batch, from its start until it is finished."""

    __slots__ = ("done", "first", "next")

    def __init__(self, first: int, next_offset: int) -> None:
        self.first = first
        self.next = next_offset
        self.done = False


class PartitionLedger:
    """The batches of one partition during one assignment; dropped with it."""

    __slots__ = ("_claims", "committed", "processed")

    def __init__(self, position: int) -> None:
        self.committed = position
        self.processed = position
        self._claims: deque[Claim] = deque()

    def begin(self, first: int, next_offset: int) -> Claim:
        """A batch is taken. Raises ValueError if it lies before one that was begun."""
        newest = self._claims[-1].next if self._claims else self.processed
        if first < newest or next_offset <= first:
            raise ValueError(f"offsets [{first}, {next_offset}) begin before {newest}")
        claim = Claim(first, next_offset)
        self._claims.append(claim)
        return claim

    def finish(self, claim: Claim) -> None:
        """A batch is done; doing it twice changes nothing."""
        claim.done = True
        while self._claims and self._claims[0].done:
            self.processed = self._claims.popleft().next

    def committable(self) -> int | None:
        """The offset to commit, None if there is nothing new."""
        return self.processed if self.processed > self.committed else None

    def mark_committed(self, offset: int) -> None:
        """The broker took the commit."""
        self.committed = max(self.committed, offset)

    @property
    def unfinished(self) -> int:
        """Batches that were begun and aren't covered by `processed`."""
        return len(self._claims)
