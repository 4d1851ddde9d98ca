"""R1 and R2 of the fold: the same sequence and rows, whatever the order and the batches."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from streams.chunks import CHUNK_EVENTS, Chunk, StoredEvent
from streams.events import Event, Forget
from streams.sequences import (
    HEAD,
    Outcome,
    Row,
    SequenceView,
    StoredUser,
    UserFlush,
    UserState,
    ViewSet,
    log_position,
    offset_of,
    sequence_events,
)

Record = Event | Forget
USER = "u"
SHORT = SequenceView(name="short", event_types=("click", "view"), max_length=5, max_age_ms=50)
LONG = SequenceView(name="long", event_types=("click",), max_length=300, max_age_ms=None)
VIEWS = ViewSet([SHORT, LONG])


class Table:
    """The rows of one user with Cassandra's timestamp rules: newest wins, a delete wins a tie."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, int], tuple[int, bytes | None]] = {}
        self.mark: tuple[int, bytes] | None = None
        self.deleted_at = -1

    def write(self, flush: UserFlush) -> None:
        if flush.mark is not None:
            self.deleted_at = max(self.deleted_at, flush.mark_position - 1)
            if self.mark is None or self.mark[0] < flush.mark_position:
                self.mark = (flush.mark_position, flush.mark)
        for write in flush.writes:
            key = (write.view, write.chunk)
            old = self.cells.get(key)
            new = (flush.position, write.value)
            if old is None or new[0] > old[0] or (new[0] == old[0] and new[1] is None):
                self.cells[key] = new
            elif new[0] == old[0] and old[1] is not None:
                assert new[1] == old[1], "two writers disagree at one log position"

    def rows(self) -> list[Row]:
        return [
            Row(view, chunk, value, position)
            for (view, chunk), (position, value) in self.cells.items()
            if value is not None and position > self.deleted_at
        ]

    def load(self) -> StoredUser:
        rows = self.rows()
        newest = []
        for view in VIEWS.names:
            mine = sorted((r for r in rows if r.view == view), key=lambda r: -r.chunk)
            newest += mine[: 2 if mine and mine[0].chunk == HEAD else 1]
        mark = self.mark if self.mark and self.mark[0] > self.deleted_at else None
        return StoredUser(rows=newest, mark=mark and mark[1], mark_position=mark[0] if mark else 0)

    def sequence(self, view: SequenceView) -> list[StoredEvent]:
        return sequence_events([r for r in self.rows() if r.view == view.name], view)

    def chunk(self, view: str, key: int) -> Row:
        position, value = self.cells[(view, key)]
        assert value is not None
        return Row(view, key, value, position)


def fold(
    table: Table,
    records: Sequence[Record],
    batches: list[int] | None = None,
    first_offset: int = 0,
    reload: bool = True,
    state: UserState | None = None,
) -> list[Outcome]:
    """What a worker does with one user's records, in batches of the given sizes; with `state`,
    it holds that one in memory."""
    outcomes = []
    reload = reload and state is None
    state = state or UserState(USER, VIEWS, table.load())
    numbered = list(enumerate(records, first_offset))
    sizes = iter(batches or [])
    while numbered:
        size = next(sizes, 7)
        batch, numbered = numbered[:size], numbered[size:]
        for offset, record in batch:
            position = log_position(1, offset)
            if isinstance(record, Forget):
                for view, key in state.unloaded():
                    state.load_row(table.chunk(view, key), VIEWS)
                outcomes.append(state.forget(record, position, 0, VIEWS))
            else:
                for view, key in state.missing(record, VIEWS):
                    state.load_row(table.chunk(view, key), VIEWS)
                outcomes.append(state.apply(record, position, VIEWS))
        flush = state.flush()
        if flush is not None:
            table.write(flush)
        if reload:
            state = UserState(USER, VIEWS, table.load())
    return outcomes


def oracle(records: Sequence[Record], view: SequenceView) -> list[tuple[int, str]]:
    """R1 in the words of its definition."""
    marks = [r.event_time for r in records if isinstance(r, Forget)]
    mark = max(marks, default=-1)
    distinct = {
        r.event_id: (r.event_time, r.event_id)
        for r in records
        if isinstance(r, Event) and r.event_type in view.event_types and r.event_time > mark
    }
    kept = sorted(distinct.values())[-view.max_length :]
    if view.max_age_ms is not None:
        kept = [k for k in kept if k[0] >= kept[-1][0] - view.max_age_ms]
    return kept


def keys(events: list[StoredEvent]) -> list[tuple[int, str]]:
    return [(e.event_time, e.event_id) for e in events]


def make_event(number: int, event_time: int, event_type: str = "click") -> Event:
    return Event(f"e{number}", USER, f"item-{number}é", event_type, event_time, value=number / 4)


times = st.integers(0, 120) | st.integers(0, 12)
events = st.lists(st.tuples(times, st.sampled_from(["click", "view", "other"])), max_size=60).map(
    lambda pairs: [make_event(n, t, kind) for n, (t, kind) in enumerate(pairs)]
)


@given(events, st.data())
@settings(max_examples=300, deadline=None)
def test_any_order_duplication_and_batching_give_the_same_sequence(
    records: list[Event], data: st.DataObject
) -> None:
    """R1: the sequence is a function of the set of events."""
    doubled = (
        records + data.draw(st.lists(st.sampled_from(records), max_size=20)) if records else []
    )
    shuffled = data.draw(st.permutations(doubled))
    sizes = data.draw(st.lists(st.integers(1, 20), max_size=20))
    table = Table()
    fold(table, shuffled, sizes)
    for view in VIEWS.views.values():
        assert keys(table.sequence(view)) == oracle(records, view)


histories = st.lists(
    st.tuples(st.integers(0, 400), st.sampled_from(["click", "view", "other", "forget"])),
    max_size=400,
)


@given(histories, st.lists(st.integers(1, 90), max_size=30))
@settings(max_examples=100, deadline=None)
def test_a_written_out_state_is_what_the_store_would_answer(
    history: list[tuple[int, str]], sizes: list[int]
) -> None:
    """What a worker packs into its cache goes on exactly as a state that was read again."""
    records: list[Record] = [
        Forget(USER, f"e{n}", t // 8) if kind == "forget" else make_event(n, t, kind)
        for n, (t, kind) in enumerate(history)
    ]
    table, offset = Table(), 0
    state = UserState(USER, VIEWS)
    for size in [*sizes, len(records)]:
        fold(table, records[offset : offset + size], [size], offset, state=state)
        offset += size
        kept, read = state.stored(), table.load()
        assert {row[:3] for row in kept.rows} == {row[:3] for row in read.rows}
        assert (kept.mark, kept.mark_position) == (read.mark, read.mark_position)
        for view in VIEWS.names:
            newest = [
                max((row.position for row in rows if row.view == view), default=None)
                for rows in (kept.rows, read.rows)
            ]
            assert newest[0] == newest[1]


@given(
    st.lists(st.integers(0, 400) | st.integers(150, 160), min_size=200, max_size=700),
    st.lists(st.integers(1, 90), max_size=30),
)
@settings(max_examples=60, deadline=None)
def test_long_sequences_over_many_chunks(event_times: list[int], sizes: list[int]) -> None:
    """R1 where events fall into sealed chunks, split them and push others out."""
    records = [make_event(n, t) for n, t in enumerate(event_times)]
    table = Table()
    fold(table, records, sizes)
    for view in VIEWS.views.values():
        assert keys(table.sequence(view)) == oracle(records, view)
    chunks = [r for r in table.rows() if r.view == "long" and r.chunk != HEAD]
    decoded = [Chunk.decode(r.value) for r in chunks]
    assert all(len(c) <= CHUNK_EVENTS or len(set(c.times)) == 1 for c in decoded)
    assert sum(map(len, decoded)) <= LONG.max_length + 2 * CHUNK_EVENTS


@given(
    st.lists(st.integers(0, 400), min_size=100, max_size=500),
    st.lists(st.integers(1, 90), max_size=30),
    st.lists(st.integers(1, 90), max_size=30),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_two_writers_write_the_same_rows(
    event_times: list[int], sizes: list[int], other_sizes: list[int], data: st.DataObject
) -> None:
    """R2: rows are a function of the log prefix, so a zombie and a replay change nothing."""
    records = [make_event(n, t) for n, t in enumerate(event_times)]
    alone, together = Table(), Table()
    fold(alone, records, sizes)
    fold(together, records[: data.draw(st.integers(0, len(records)))], sizes)
    replay_from = data.draw(st.integers(0, len(records)))
    outcomes = fold(together, records[:replay_from], other_sizes)
    assert Outcome.FILTERED not in outcomes
    fold(together, records, other_sizes, reload=False)
    assert {k: v for k, (_, v) in together.cells.items() if v} == {
        k: v for k, (_, v) in alone.cells.items() if v
    }


@given(events, st.lists(st.tuples(st.integers(0, 60), times), min_size=1, max_size=3), st.data())
@settings(max_examples=200, deadline=None)
def test_what_is_older_than_the_mark_never_comes_back(
    records: list[Event], forgets: list[tuple[int, int]], data: st.DataObject
) -> None:
    """R1 with deletions at any place, then a full replay under new offsets."""
    log: list[Record] = list(records)
    for number, (place, event_time) in enumerate(forgets):
        log.insert(place, Forget(USER, f"f{number}", event_time))
    table = Table()
    fold(table, log, data.draw(st.lists(st.integers(1, 20), max_size=20)))
    for view in VIEWS.views.values():
        assert keys(table.sequence(view)) == oracle(log, view)
    fold(table, [r for r in log if isinstance(r, Event)], first_offset=len(log))
    for view in VIEWS.views.values():
        assert keys(table.sequence(view)) == oracle(log, view)


def test_outcomes_name_what_became_of_each_record() -> None:
    table = Table()
    records = [make_event(n, 1000 + n) for n in range(5)]
    assert set(fold(table, records)) == {Outcome.APPLIED}
    again = fold(
        table, [records[3], make_event(9, 100, "view"), make_event(10, 1, "other")], None, 5
    )
    assert again == [Outcome.DUPLICATE, Outcome.TOO_OLD, Outcome.FILTERED]
    late = fold(table, [Forget(USER, "f", 2000), make_event(11, 1500)], None, 8)
    assert late == [Outcome.APPLIED, Outcome.FORGOTTEN]
    assert table.sequence(LONG) == []
    replayed = fold(table, [Forget(USER, "f", 2000)], None, 8)
    assert replayed == [Outcome.DUPLICATE]


def test_a_newer_version_of_an_event_replaces_the_older_one() -> None:
    for order in ([5, 9], [9, 5]):
        table = Table()
        fold(table, [make_event(1, t) for t in order] + [make_event(2, 7)])
        assert keys(table.sequence(LONG)) == [(7, "e2"), (9, "e1")]


def test_an_append_rewrites_the_newest_chunk_only() -> None:
    table = Table()
    fold(table, [make_event(n, n) for n in range(260)], [260])
    state = UserState(USER, VIEWS, table.load())
    state.apply(make_event(999, 999), log_position(1, 999), VIEWS)
    flush = state.flush()
    assert flush is not None
    assert [w.chunk for w in flush.writes if w.view == "long"] == [256]


def test_log_positions_order_by_epoch_then_offset_then_revision() -> None:
    assert log_position(1, 2**44 - 1, 255) < log_position(2, 0)
    assert log_position(1, 5, 1) < log_position(1, 6)
    assert offset_of(log_position(3, 77, 9)) == (3, 77)
