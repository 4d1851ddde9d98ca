"""What a process read: outcomes, and how long representations waited for their first reader."""

from __future__ import annotations

from streams.metrics import FIRST_READ_SECONDS, REPRESENTATION_READS
from streams.monitor.exposition import Exposed, parse
from streams.reads import FirstReads, ReadCounts

BEGAN = 1_000.0  # seconds


def ms(seconds: float) -> int:
    return round(seconds * 1000)


def exposed(reads: ReadCounts) -> Exposed:
    return parse(reads.exposition(BEGAN).decode())


def test_a_representations_first_read_is_timed_and_later_ones_are_counted() -> None:
    reads = ReadCounts()
    reads.representations("e", "2", [], BEGAN)
    first = [("alice", 1, ms(BEGAN + 10)), ("bob", 2, ms(BEGAN + 14))]
    for read_at in (BEGAN + 20, BEGAN + 30, BEGAN + 40):
        reads.representations("e", "2", first, read_at)
    # A newer one waits anew.
    reads.representations("e", "2", [("alice", 3, ms(BEGAN + 49))], BEGAN + 50)
    found = exposed(reads)
    assert found.counters[REPRESENTATION_READS.name, ("e", "2")] == 7
    assert found.histograms[FIRST_READ_SECONDS.name, ("e", "2")].sum() == 3
    assert found.sums[FIRST_READ_SECONDS.name, ("e", "2")] == 10 + 6 + 1


def test_what_was_encoded_before_this_process_read_may_have_had_another_reader() -> None:
    reads = ReadCounts()
    reads.representations("e", "2", [("alice", 1, ms(BEGAN - 3_600))], BEGAN)
    assert FIRST_READ_SECONDS.name not in {name for name, _ in exposed(reads).histograms}


def test_a_later_read_is_never_taken_for_a_first_one_however_many_there_are() -> None:
    first_reads = FirstReads(ms(BEGAN), max_remembered=10)
    stored = [(("e", "2", f"user-{n}"), ms(BEGAN + 1 + n)) for n in range(30)]
    assert all(first_reads.is_first(key, at) for key, at in stored)
    for _ in range(3):
        assert not any(first_reads.is_first(key, at) for key, at in stored)
    assert first_reads.is_first(("e", "2", "new"), ms(BEGAN + 70))
