"""The cache of users: what it holds, in which form, and what falls out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streams.events import Event
from streams.sequences import SequenceView, UserState, ViewSet, log_position
from streams.workers.users import UserCache

CLICKS = SequenceView(name="clicks", event_types=("click",), max_length=100)
VIEWS = ViewSet([CLICKS])


def touched(cache: UserCache, user_id: str, offset: int) -> UserState:
    """A user of the cache, or a new one, after one more event that is written out."""
    state = cache.get(user_id, VIEWS) or UserState(user_id, VIEWS)
    event = Event(f"e{offset}", user_id, "item", "click", offset)
    state.apply(event, log_position(1, offset), VIEWS)
    state.flush()
    cache.put(state)
    return state


def test_a_user_beyond_the_ready_ones_is_packed_and_comes_back_as_it_was() -> None:
    cache = UserCache(2, 1_000, 100_000)
    alice = touched(cache, "alice", 0)
    touched(cache, "bob", 1)
    assert cache.get("alice", VIEWS) is alice
    touched(cache, "carol", 2)
    assert (len(cache), cache.num_packed) == (3, 1)
    back = cache.get("alice", VIEWS)
    assert back is not None
    assert back is not alice
    assert back.stored() == alice.stored()
    assert (len(cache), cache.num_packed, cache.packed_bytes) == (2, 0, 0)


def test_the_oldest_of_the_packed_users_fall_out() -> None:
    cache = UserCache(1, 1_000, 0)
    touched(cache, "alice", 0)
    touched(cache, "bob", 1)
    assert cache.get("alice", VIEWS) is None
    assert (len(cache), cache.packed_bytes) == (1, 0)


def test_clear_holds_nobody() -> None:
    cache = UserCache(1, 1_000, 100_000)
    for offset, user_id in enumerate(("alice", "bob")):
        touched(cache, user_id, offset)
    cache.clear()
    assert (len(cache), cache.num_events, cache.packed_bytes) == (0, 0, 0)
    assert cache.get("alice", VIEWS) is None
    assert cache.get("bob", VIEWS) is None


@given(
    st.lists(st.integers(0, 12), max_size=120),
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(0, 3_000),
)
def test_bounds_hold_and_no_event_is_lost_from_who_is_held(
    visits: list[int], max_users: int, max_events: int, max_packed_bytes: int
) -> None:
    """R6; the most recently touched user is always ready."""
    cache = UserCache(max_users, max_events, max_packed_bytes)
    num_events: dict[str, int] = {}
    for offset, number in enumerate(visits):
        user_id = f"user-{number}"
        held = cache.get(user_id, VIEWS)
        if held is not None:
            assert held.num_events == num_events[user_id]
            cache.put(held)
        num_events[user_id] = touched(cache, user_id, offset).num_events
        assert num_events[user_id] == (1 if held is None else held.num_events)
        assert cache.get(user_id, VIEWS) is not None
        assert len(cache) - cache.num_packed <= max_users
        assert cache.num_events <= max_events or len(cache) - cache.num_packed == 1
        assert cache.packed_bytes <= max_packed_bytes
