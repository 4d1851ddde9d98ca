"""Examples of what the monitor shows: an incident with one of each state, for tests and the page.

Made up, and marked as such where it is served (`headwater monitor --example`); nothing measured.
"""

from __future__ import annotations

import math

from streams.monitor.answers import (
    History,
    HistoryPoint,
    RepresentationRead,
    SequenceRead,
    Series,
    UserLookup,
)
from streams.monitor.snapshot import (
    Arrow,
    Bin,
    Box,
    Canary,
    Clock,
    Cost,
    Coverage,
    CoverageOfVersion,
    DeadLetter,
    DeadLetters,
    EncoderVersion,
    Freshness,
    Headline,
    Objective,
    Partition,
    Partitions,
    ReadOutcome,
    SequenceLength,
    Snapshot,
    Source,
    Staleness,
    State,
    Worker,
)

_ENCODER = "user_encoder"
_OBJECTIVES = {"sequence": 1.0, "representation": 5.0}


def example_snapshot(at: int = 1_790_000_000_000, number: int = 240) -> Snapshot:
    """An encoder that is away: representations are behind, sequences fresh, one source unknown."""
    return Snapshot(
        number=number,
        at=at,
        started_at=at - 3_600_000,
        interval_seconds=2.0,
        window_seconds=60.0,
        cost_window_seconds=900.0,
        headline=Headline(
            state=State.BEHIND,
            text="Representations are 42 s behind: stuck at the encoder worker "
            "(no member in group headwater-encoder). Sequences are fresh.",
            stage="requested_to_encoded",
            box="encoder_worker",
        ),
        slowest_stage="requested_to_encoded",
        boxes=_boxes(),
        arrows=_arrows(),
        staleness=_staleness(at),
        objectives=_objectives(),
        freshness=_freshness(),
        coverage=_coverage(at),
        cost=_cost(),
        partitions=_partitions(),
        workers=_workers(at),
        dead_letters=_dead_letters(at),
        versions=_versions(at),
        clocks=_clocks(),
        canary=_canary(at),
        sources=_sources(at),
    )


def _boxes() -> tuple[Box, ...]:
    ok, down, idle = State.OK, State.DOWN, State.IDLE
    return (
        Box(id="producers", label="Producers", kind="producers", state=ok,
            detail="512 events/s arrive"),
        Box(id="events", label="engagement-events", kind="topic", state=ok,
            detail="8 partitions, all have a leader", facts=(("lag", "96 records"),)),
        Box(id="sequence_worker", label="Sequence worker", kind="worker", state=ok,
            detail="2 of 2 workers take records", num_instances=2,
            facts=(("partitions", "8"), ("waiting", "0.2 s"))),
        Box(id="sequences", label="Sequences", kind="store", state=ok,
            detail="Cassandra answers in 3 ms"),
        Box(id="refresh_requests", label="refresh-requests", kind="topic", state=ok,
            detail="8 partitions, all have a leader", facts=(("lag", "18,204 requests"),)),
        Box(id="encoder_worker", label="Encoder worker", kind="worker", state=down,
            detail="no member in group headwater-encoder; the oldest request waits for 42 s",
            num_instances=0, facts=(("partitions", "8"), ("waiting", "42 s"))),
        Box(id="encoder", label="Encoder (Triton)", kind="encoder", state=State.UNKNOWN,
            detail="can't tell: no answer within 2 s",
            facts=(("model", "user_encoder version 2"),)),
        Box(id="representations", label="Representations", kind="store", state=ok,
            detail="Cassandra answers in 3 ms"),
        Box(id="readers", label="Readers", kind="readers", state=idle,
            detail="no read in the last 60 s"),
    )  # fmt: skip


def _arrows() -> tuple[Arrow, ...]:
    unknown = "can't tell: no encoder worker answers"
    rows = (
        ("produced_to_broker", "produced → broker", "producers", "events", 0.004, 0.021),
        ("broker_to_folded", "broker → folded", "events", "sequence_worker", 0.038, 0.140),
        ("folded_to_stored", "folded → sequence stored", "sequence_worker", "sequences",
         0.012, 0.055),
        ("stored_to_requested", "sequence stored → refresh queued", "sequences",
         "refresh_requests", 0.006, 0.019),
    )  # fmt: skip
    return (
        *(
            Arrow(stage=stage, label=label, source=source, target=target, state=State.OK,
                  rate=512.0, catch_up_rate=0.0, p50_seconds=p50, p99_seconds=p99)
            for stage, label, source, target, p50, p99 in rows
        ),
        Arrow(stage="requested_to_encoded", label="refresh queued → encoded",
              source="refresh_requests", target="encoder_worker", state=State.BEHIND,
              rate=0.0, catch_up_rate=0.0, problem="the oldest request waits for 42 s"),
        Arrow(stage="encoded_to_stored", label="encoded → representation stored",
              source="encoder_worker", target="representations", state=State.UNKNOWN,
              problem=unknown),
        Arrow(stage="stored_to_read", label="representation stored → first read",
              source="representations", target="readers", state=State.IDLE, rate=0.0,
              catch_up_rate=0.0),
    )  # fmt: skip


def _staleness(at: int) -> tuple[Staleness, ...]:
    return (
        Staleness(feature="sequence", group="headwater-sequences", state=State.OK, seconds=0.31,
                  waiting_seconds=0.24, own_seconds=0.24, oldest_event_time=at - 310,
                  oldest_partition=3, lag_records=96, num_partitions_behind=2, num_members=2),
        Staleness(feature="representation", group="headwater-encoder", state=State.BEHIND,
                  seconds=42.4, waiting_seconds=42.3, own_seconds=42.1,
                  oldest_event_time=at - 42_400, oldest_partition=5, lag_records=18_204,
                  num_partitions_behind=8, num_members=0),
    )  # fmt: skip


def _objectives() -> tuple[Objective, ...]:
    return (
        Objective(feature="sequence", seconds=1.0, target=0.99, good_share=0.9994,
                  burn_rates=((300, 0.1), (3600, 0.06), (21600, 0.05), (259200, None))),
        Objective(feature="representation", seconds=5.0, target=0.99, good_share=0.982,
                  burn_rates=((300, 16.2), (3600, 2.4), (21600, 1.8), (259200, None))),
    )  # fmt: skip


def _freshness() -> tuple[Freshness, ...]:
    def row(
        feature: str, since: str, version: str, count: int, p50: float | None, p99: float | None
    ) -> Freshness:
        encoder = _ENCODER if version else ""
        return Freshness(
            feature=feature, since=since, encoder=encoder, version=version, count=count,
            p50_seconds=p50, p99_seconds=p99,
            within_objective=None if p99 is None else p99 <= _OBJECTIVES[feature],
        )  # fmt: skip

    return (
        row("sequence", "event_time", "", 30_720, 0.064, 0.236),
        row("sequence", "ingested_at", "", 30_720, 0.058, 0.211),
        row("representation", "event_time", "1", 0, None, None),
        row("representation", "event_time", "2", 9_312, 0.71, 6.2),
        row("representation", "ingested_at", "2", 9_312, 0.69, 6.1),
    )


def _coverage(at: int) -> Coverage:
    labels = ((60.0, "≤ 1 min"), (600.0, "≤ 10 min"), (3600.0, "≤ 1 h"), (86400.0, "≤ 1 day"),
              (None, "older"))  # fmt: skip

    def ages(*counts: int) -> tuple[Bin, ...]:
        return tuple(
            Bin(label=label, upper_seconds=upper, count=count)
            for (upper, label), count in zip(labels, counts, strict=True)
        )

    def version(
        number: str, is_active: bool, covered: int, current: int, bins: tuple[Bin, ...]
    ) -> CoverageOfVersion:
        return CoverageOfVersion(
            view="user_representation", encoder=_ENCODER, version=number, is_active=is_active,
            num_active_users=412, num_covered=covered, num_current=current, share=covered / 412,
            ages=bins,
        )  # fmt: skip

    return Coverage(
        sampled_at=at - 12_000,
        num_sampled_users=500,
        active_window_seconds=3600.0,
        versions=(
            version("1", False, 398, 12, ages(0, 8, 60, 330, 0)),
            version("2", True, 405, 377, ages(40, 160, 190, 15, 0)),
        ),
        lengths=(
            SequenceLength(view="user_views", max_length=256, num_users=500, mean_length=104.2,
                           p50_length=81, p99_length=256, share_full=0.11),
            SequenceLength(view="user_likes", max_length=4096, num_users=470, mean_length=57.8,
                           p50_length=41, p99_length=388, share_full=0.0),
        ),
        reads=(
            ReadOutcome(view="user_representation", outcome="found", rate=118.0, share=0.944),
            ReadOutcome(view="user_representation", outcome="absent", rate=6.0, share=0.048),
            ReadOutcome(view="user_representation", outcome="expired", rate=1.0, share=0.008),
            ReadOutcome(view="user_representation", outcome="failed", rate=0.0, share=0.0),
        ),
    )  # fmt: skip


def _cost() -> tuple[Cost, ...]:
    return (
        Cost(encoder=_ENCODER, version="2", representations_per_second=141.0,
             encoder_seconds_per_representation=0.0042, bytes_per_representation=293.0,
             reads_per_representation=0.84, share_never_read=0.37,
             first_read_p50_seconds=31.0, first_read_p99_seconds=840.0, num_shared=5_214,
             num_shed=0),
    )  # fmt: skip


def _partitions() -> Partitions:
    return Partitions(
        num_partitions=16,
        num_ok=8,
        num_behind=7,
        num_stalled=1,
        worst=tuple(
            Partition(group="headwater-encoder", topic="refresh-requests", partition=number,
                      state=State.DOWN if number == 5 else State.BEHIND, end_offset=48_200 + number,
                      committed_offset=45_924, processed_offset=None,
                      lag_records=2276 + number, waiting_seconds=42.1 - number / 10)
            for number in (5, 0, 1, 2, 3, 4, 6, 7)
        ),
    )  # fmt: skip


def _workers(at: int) -> tuple[Worker, ...]:
    return (
        Worker(id="sequence-4711", role="sequence", address="127.0.0.1:40411", state=State.OK,
               started_at=at - 3_500_000, num_partitions=4, rate=260.0, lag_records=40,
               memory_bytes=188_743_680, clock_offset_seconds=0.0004),
        Worker(id="sequence-4712", role="sequence", address="127.0.0.1:40412", state=State.OK,
               started_at=at - 3_499_000, num_partitions=4, rate=252.0, lag_records=56,
               memory_bytes=190_840_832, clock_offset_seconds=-0.0011),
        Worker(id="encoder-4713", role="encoder", address="127.0.0.1:40413", state=State.DOWN,
               detail="registered, and nothing answers at its address; the process has ended",
               started_at=at - 3_498_000),
    )  # fmt: skip


def _dead_letters(at: int) -> DeadLetters:
    return DeadLetters(
        by_reason=(("not_json", 14), ("future_event_time", 3), ("missing_field", 2)),
        rate=0.05,
        share=0.0001,
        recent=(
            DeadLetter(reason="not_json", detail="JSON is malformed: invalid character (byte 0)",
                       topic="engagement-events", partition=2, offset=48_113,
                       failed_at=at - 31_000, key="u-881", preview="<html><head><title>502"),
            DeadLetter(reason="future_event_time", detail="event time is 31536000 s ahead",
                       topic="engagement-events", partition=6, offset=47_090,
                       failed_at=at - 95_000, key="u-17", preview='{"event_id":"f3…"'),
        ),
    )  # fmt: skip


def _versions(at: int) -> tuple[EncoderVersion, ...]:
    day = 86_400_000
    return (
        EncoderVersion(encoder=_ENCODER, version="1", state="retired", created_at=at - 9 * day,
                       loaded=False, stats={"recall_at_10": 0.112}),
        EncoderVersion(encoder=_ENCODER, version="2", state="active", created_at=at - 2 * day,
                       loaded=True, stats={"recall_at_10": 0.127}),
        EncoderVersion(encoder=_ENCODER, version="3", state="ready", created_at=at - day // 2,
                       loaded=None, stats={}),
    )  # fmt: skip


def _clocks() -> tuple[Clock, ...]:
    return (
        Clock(name="broker", kind="broker", offset_seconds=0.0, error_seconds=0.0,
              method="round_trip"),
        Clock(name="monitor", kind="monitor", offset_seconds=0.0003, error_seconds=0.0021,
              method="round_trip"),
        Clock(name="sequence-4711", kind="worker", offset_seconds=0.0004, error_seconds=0.003,
              method="round_trip"),
        Clock(name="events without a producer's name", kind="producer", offset_seconds=4.98,
              error_seconds=0.0, method="least_delay", exceeds_limit=True),
        Clock(name="app-7@10.0.3.4", kind="producer", offset_seconds=-0.002,
              error_seconds=0.004, method="round_trip"),
    )  # fmt: skip


def _canary(at: int) -> Canary:
    return Canary(
        enabled=True, state=State.BEHIND, num_users=8, num_sent=1440, num_read_back=1431,
        num_lost=9, availability=0.99375, last_sent_at=at - 1500, last_read_back_at=at - 43_000,
        sequence_p50_seconds=0.09, sequence_p99_seconds=0.31, representation_p50_seconds=0.8,
        representation_p99_seconds=7.1,
        problem="sequence of __canary_3 read back, its representation not within 30 s",
    )  # fmt: skip


def _sources(at: int) -> tuple[Source, ...]:
    return (
        Source(name="kafka", ok=True, last_ok_at=at, num_errors=0, duration_seconds=0.021),
        Source(name="cassandra", ok=True, last_ok_at=at - 12_000, num_errors=0,
               duration_seconds=0.048),
        Source(name="triton", ok=False, last_ok_at=at - 41_000, num_errors=20,
               duration_seconds=2.0, error="no answer within 2 s"),
        Source(name="worker:sequence-4711", ok=True, last_ok_at=at, num_errors=0,
               duration_seconds=0.006),
        Source(name="worker:encoder-4713", ok=False, last_ok_at=at - 42_000, num_errors=21,
               duration_seconds=0.001, error="connection refused at 127.0.0.1:40413"),
    )  # fmt: skip


def example_history(at: int = 1_790_000_000_000, range_seconds: int = 3600) -> History:
    """Sequence and two encoder versions, with a hole (can't tell) and an incident at the end."""
    step = max(5, range_seconds // 720)
    return History(
        at=at,
        range_seconds=range_seconds,
        step_seconds=step,
        series=tuple(
            Series(feature=feature, encoder=encoder, version=version,
                   objective_seconds=_OBJECTIVES[feature],
                   points=tuple(_points(at, step, range_seconds // step, base, feature, version)))
            for feature, encoder, version, base in (
                ("sequence", "", "", 0.08),
                ("representation", _ENCODER, "1", 0.9),
                ("representation", _ENCODER, "2", 0.7),
            )
        ),
    )  # fmt: skip


def _points(
    at: int, step: int, num: int, base: float, feature: str, version: str
) -> list[HistoryPoint]:
    points = []
    for index in range(num):
        wave = base * (1 + 0.3 * math.sin(index / 17) + 0.1 * math.sin(index / 3))
        silent = (version == "1" and index > num // 2) or num // 3 < index < num // 3 + 12
        stuck = max(0, index - num + 9) * step if feature == "representation" else 0
        points.append(
            HistoryPoint(
                at=at - (num - 1 - index) * step * 1000,
                count=0 if silent or stuck else 512 * step,
                p50_seconds=None if silent or stuck else wave,
                p99_seconds=None if silent or stuck else wave * 3.1,
                staleness_seconds=None if silent and version != "1" else max(wave, float(stuck)),
            )
        )
    return points


def example_user(user_id: str = "u-881", at: int = 1_790_000_000_000) -> UserLookup:
    """A user with two sequences and a representation that misses the newest event."""
    times = tuple(at - 60_000 * back for back in range(12, 0, -1))
    return UserLookup(
        user_id=user_id, at=at, read_seconds=0.011,
        sequences=(
            SequenceRead(view="user_views", length=81, max_length=256, age_seconds=60.0,
                         event_time=times, item_id=tuple(f"item-{t % 97}" for t in times),
                         event_type=("view",) * 12, surface=("feed", "search") * 6),
            SequenceRead(view="user_likes", length=0, max_length=4096, age_seconds=None,
                         event_time=(), item_id=(), event_type=(), surface=()),
        ),
        representations=(
            RepresentationRead(view="user_representation", status="found", tier="precomputed",
                               encoder=_ENCODER, version="2", as_of=at - 120_000,
                               age_seconds=120.0, encoded_at=at - 119_200,
                               position=4_503_599_639_689_728, is_current=False, dimensions=64,
                               norm=1.0, preview=(0.12, -0.03, 0.21, 0.08)),
        ),
    )  # fmt: skip
