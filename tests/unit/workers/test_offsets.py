"""What may be committed: everything below it is done, whatever ends first (R3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.workers.offsets import PartitionLedger


def test_a_slow_batch_holds_back_the_faster_ones_after_it() -> None:
    ledger = PartitionLedger(10)
    slow, fast = ledger.begin(10, 15), ledger.begin(15, 20)
    ledger.finish(fast)
    assert ledger.committable() is None
    ledger.finish(slow)
    assert ledger.committable() == 20
    assert ledger.unfinished == 0


def test_what_is_committed_is_not_due_again() -> None:
    ledger = PartitionLedger(0)
    ledger.finish(ledger.begin(0, 3))
    ledger.mark_committed(3)
    assert ledger.committable() is None
    ledger.mark_committed(1)
    assert ledger.committed == 3


def test_offsets_may_have_gaps_but_never_go_back() -> None:
    ledger = PartitionLedger(0)
    ledger.begin(5, 8)
    with pytest.raises(ValueError, match="before 8"):
        ledger.begin(7, 9)
    with pytest.raises(ValueError, match="begin before"):
        ledger.begin(8, 8)


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=20), data=st.data())
def test_never_past_an_unfinished_batch(sizes: list[int], data: st.DataObject) -> None:
    ledger = PartitionLedger(0)
    claims, position = [], 0
    for size in sizes:
        claims.append(ledger.begin(position, position + size))
        position += size
    order = data.draw(st.permutations(range(len(claims))))
    done: set[int] = set()
    for index in order:
        ledger.finish(claims[index])
        ledger.finish(claims[index])
        done.add(index)
        first_open = next((i for i in range(len(claims)) if i not in done), None)
        expected = position if first_open is None else claims[first_open].first
        assert ledger.processed == expected
    assert ledger.committable() == position
