"""What a batch's records are: entries, dead letters, foreign ones; each exactly one of them."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from streams.errors import DeadLetterLimit
from streams.events import REASONS, Event, Forget, encode_record
from streams.kafka import dead_letter_headers, home_partition
from streams.sequences import log_position
from streams.workers.intake import DeadLetterWatch, Intake, take_in
from tests.unit.workers.records import NOW, PARTITIONS, consumed, users_at_home

USER = users_at_home(0, 1)[0]
KEY = USER.encode()


def taken(*records: Any, epoch: int = 1, allowance_ms: int = 60_000) -> Intake:
    return take_in(
        records,
        epoch=epoch,
        partition=0,
        partitions=PARTITIONS,
        future_allowance_ms=allowance_ms,
    )


def event(number: int = 1, *, event_time: int = NOW, user: str = USER) -> bytes:
    return encode_record(Event(f"e{number}", user, "item", "view", event_time))


def test_good_records_keep_their_order_and_positions() -> None:
    other = users_at_home(0, 2)[1]
    found = taken(
        consumed(event(1), KEY, offset=7),
        consumed(event(2, user=other), other.encode(), offset=8),
        consumed(event(3), KEY, offset=9),
        epoch=3,
    )
    assert [user.user_id for user in found.users.values()] == [USER, other]
    entries = found.users[KEY].entries
    assert [entry[0].event_id for entry in entries] == ["e1", "e3"]
    assert [entry[1] for entry in entries] == [log_position(3, 7), log_position(3, 9)]
    assert {entry[2] for entry in entries} == {NOW}
    assert not found.refused
    assert not found.foreign


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (KEY, None, "null_value"),
        (KEY, b"\xff\xfe", "not_utf8"),
        (KEY, b"{", "not_json"),
        (KEY, b"{}", "missing_field"),
        (None, event(), "key_mismatch"),
        (b"somebody", event(), "key_mismatch"),
        (b"\xff\xff", event(), "key_mismatch"),
        (KEY, event(event_time=NOW + 60_001), "future_event_time"),
        (KEY, encode_record(Forget(USER, "f", NOW + 60_001)), "future_event_time"),
    ],
)
def test_bad_records_are_refused_among_good_ones(
    key: bytes | None, value: bytes | None, reason: str
) -> None:
    bad = consumed(value, key, offset=2)
    for records in ((bad, consumed(event(), KEY)), (consumed(event(), KEY), bad)):
        found = taken(*records)
        assert [(one.record, one.reason) for one in found.refused] == [(bad, reason)]
        assert found.refused[0].detail
        assert reason in REASONS
        assert len(found.users[KEY].entries) == 1


def test_a_key_with_another_users_event_is_refused_after_a_good_one() -> None:
    other = users_at_home(0, 2)[1]
    found = taken(consumed(event(), KEY), consumed(event(2, user=other), KEY))
    assert [one.reason for one in found.refused] == ["key_mismatch"]


def test_the_allowance_is_inclusive() -> None:
    assert not taken(consumed(event(event_time=NOW + 60_000), KEY)).refused


def test_records_of_another_home_are_foreign() -> None:
    stranger = users_at_home(2, 1)[0]
    record = consumed(event(user=stranger), stranger.encode())
    found = taken(record, record)
    assert found.foreign == [record, record]
    assert not found.users


def test_home_is_librdkafkas_default() -> None:
    assert home_partition(b"user-1", 8) == zlib.crc32(b"user-1") % 8


def test_a_copy_keeps_the_brokers_first_time() -> None:
    record = consumed(event(), KEY, headers=(("ingested_at", b"%d" % (NOW - 5)),))
    assert taken(record).users[KEY].entries[0][2] == NOW - 5


def test_headers_of_a_dead_letter_take_any_text() -> None:
    headers = dict(
        dead_letter_headers(
            "not_json",
            "lone \ud800 " + "x" * 9_999,
            topic="t",
            partition=1,
            offset=2,
            timestamp=3,
            failed_at=4,
        )
    )
    assert headers["reason"] == b"not_json"
    assert len(headers["detail"]) <= 2_000
    assert (headers["topic"], headers["partition"], headers["offset"]) == (b"t", b"1", b"2")


def test_the_watch_lets_a_few_bad_records_pass() -> None:
    watch = DeadLetterWatch(0.5, 100)
    watch.check(10, 10)  # few records say little
    watch.check(1_000, 100)
    for _ in range(50):
        watch.check(10, 5)


def test_the_watch_stops_at_its_limit_and_forgets_old_records() -> None:
    watch = DeadLetterWatch(0.5, 100)
    watch.check(10_000, 0)
    watch.check(60, 60)
    with pytest.raises(DeadLetterLimit, match="max_dead_letter_share"):
        watch.check(60, 60)
