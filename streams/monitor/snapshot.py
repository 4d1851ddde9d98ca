"""Snapshot: all that the monitor knows at one moment, as plain frozen values that are JSON-able.

Scope: the shape of what is shown (page, `headwater freshness`, exposition) and nothing of how it is
measured. How the monitor is built, one module per step:

    workers' /metrics and /state ── scrape.py ─┐
    Kafka: offsets, oldest open record ─ log.py ┤
    Cassandra: sampled users ── samples.py ─────┼─► collect.py ─► assemble.py ─► Snapshot ─► app.py
    Triton ── scrape.py ────────────────────────┤      │ (asks)      (pure)
    canaries ── canary.py ──────────────────────┘      └─► history.py (a week, downsampled)

Every source fails by itself. A figure that could not be measured is None, with the reason in
`problem`, and the state of what depends on it is UNKNOWN ("can't tell"), never OK. Zero is a
measurement, None is not.

Units: `_at` and `_time` ms since the epoch, `_seconds` seconds, shares 0..1, rates per second.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

FORMAT = 1


class State(StrEnum):
    """The state of a box, an arrow or a stage. UNKNOWN reads "can't tell"."""

    OK = "ok"
    BEHIND = "behind"
    IDLE = "idle"
    DOWN = "down"
    UNKNOWN = "unknown"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the parts of a snapshot."""


class Headline(Part, frozen=True, kw_only=True):
    """What a person should read first; `stage` and `box` say where it is stuck, if it is."""

    state: State
    text: str
    stage: str | None = None
    box: str | None = None


class Box(Part, frozen=True, kw_only=True):
    """A process, topic or store in the picture. `facts` are short (name, text) pairs to show."""

    id: str
    label: str
    kind: str  # producers | topic | worker | store | encoder | readers
    state: State
    detail: str
    num_instances: int | None = None
    facts: tuple[tuple[str, str], ...] = ()


class Arrow(Part, frozen=True, kw_only=True):
    """One stage of an event's way: from one box to another, over the last `window_seconds`.

    Delays are those of live traffic; `catch_up_rate` is what was older than the catch-up threshold
    when it was read (a backfill, or the backlog after an outage) and is in no delay.
    """

    stage: str
    label: str
    source: str
    target: str
    state: State
    rate: float | None = None
    catch_up_rate: float | None = None
    p50_seconds: float | None = None
    p99_seconds: float | None = None
    problem: str = ""


class Staleness(Part, frozen=True, kw_only=True):
    """How long the oldest event that a feature didn't reflect had waited when Kafka was asked.

    state: IDLE (nothing open, 0 s), OK (open, within the objective and the time of a commit),
    BEHIND, or UNKNOWN.
    `seconds` counts from the event's time, `waiting_seconds` from its arrival at the broker, which
    is what alerts use: a backfill of old events is not an outage. For `representation` both are
    of the whole way; `own_seconds` is the part since the refresh request was queued.
    """

    feature: str  # sequence | representation
    group: str
    state: State
    seconds: float | None = None
    waiting_seconds: float | None = None
    own_seconds: float | None = None
    oldest_event_time: int | None = None
    oldest_partition: int | None = None
    lag_records: int | None = None
    num_partitions_behind: int | None = None
    num_members: int | None = None
    problem: str = ""


class Objective(Part, frozen=True, kw_only=True):
    """The freshness objective of a feature: `target` of its events within `seconds`.

    `burn_rates` are (window in seconds, rate): 1 uses up the error budget exactly in the budget's
    period; None where nothing was measured in the window. `problem` says why nothing is measured
    now: the figures are then those of before.
    """

    feature: str
    seconds: float
    target: float
    good_share: float | None = None
    burn_rates: tuple[tuple[int, float | None], ...] = ()
    problem: str = ""


class Freshness(Part, frozen=True, kw_only=True):
    """Event to readable value over the last `window_seconds`, live traffic only.

    `since` is event_time (the user's experience) or ingested_at (the platform's delay).
    encoder and version are "" for a whole feature. `problem` says why it can't be told now, where
    not all workers that count it answer: the figures are what was counted before.
    """

    feature: str
    since: str
    encoder: str = ""
    version: str = ""
    count: int | None = None
    p50_seconds: float | None = None
    p99_seconds: float | None = None
    within_objective: bool | None = None
    problem: str = ""


class Bin(Part, frozen=True, kw_only=True):
    """One bar of a distribution: what lies in (previous upper bound, upper]; None is open."""

    label: str
    upper_seconds: float | None
    count: int


class CoverageOfVersion(Part, frozen=True, kw_only=True):
    """Representations of one encoder version among the sampled active users."""

    view: str
    encoder: str
    version: str
    is_active: bool
    num_active_users: int
    num_covered: int
    num_current: int  # covered, and not older than the newest stored event of the user
    share: float | None
    ages: tuple[Bin, ...] = ()  # now - as_of of the representations


class SequenceLength(Part, frozen=True, kw_only=True):
    """Configured against served length of a sequence view, over the sampled users."""

    view: str
    max_length: int
    num_users: int
    mean_length: float | None
    p50_length: int | None
    p99_length: int | None
    share_full: float | None


class ReadOutcome(Part, frozen=True, kw_only=True):
    """Reads of a feature view's values by outcome: found, absent, expired, failed."""

    view: str
    outcome: str
    rate: float | None
    share: float | None


class Coverage(Part, frozen=True, kw_only=True):
    """Coverage and age, from a random sample of stored users (canaries left out)."""

    sampled_at: int | None = None
    num_sampled_users: int = 0
    active_window_seconds: float = 0.0
    versions: tuple[CoverageOfVersion, ...] = ()
    lengths: tuple[SequenceLength, ...] = ()
    reads: tuple[ReadOutcome, ...] = ()
    problem: str = ""
    reads_problem: str = ""


class Cost(Part, frozen=True, kw_only=True):
    """What a representation costs and whether anyone used it, over the last `cost_window_seconds`.

    `share_never_read` is estimated from the users whose hash falls into a fixed sample. First reads
    are timed from the encoding, by each reading process; None if there was none. Of all versions
    together: `num_shared` refresh requests needed no encoding since another's reflects them, which
    saves the more the longer the backlog; `num_shed` went unserved, deleted from the topic before
    a worker read them.
    """

    encoder: str
    version: str
    representations_per_second: float | None = None
    encoder_seconds_per_representation: float | None = None
    bytes_per_representation: float | None = None
    reads_per_representation: float | None = None
    share_never_read: float | None = None
    first_read_p50_seconds: float | None = None
    first_read_p99_seconds: float | None = None
    num_shared: int | None = None
    num_shed: int | None = None
    problem: str = ""


class Partition(Part, frozen=True, kw_only=True):
    """One partition of a topic as a consumer group sees it. Offsets are None if never committed.

    state: OK, IDLE, BEHIND (lag, and it moves), DOWN (stalled: lag, and it doesn't), UNKNOWN.
    """

    group: str
    topic: str
    partition: int
    state: State
    end_offset: int | None
    committed_offset: int | None
    processed_offset: int | None
    lag_records: int | None
    waiting_seconds: float | None
    worker: str = ""


class Partitions(Part, frozen=True, kw_only=True):
    """All partitions in numbers, and the ones that need a look (worst first, bounded)."""

    num_partitions: int = 0
    num_ok: int = 0
    num_idle: int = 0
    num_behind: int = 0
    num_stalled: int = 0
    worst: tuple[Partition, ...] = ()
    problem: str = ""


class Worker(Part, frozen=True, kw_only=True):
    """One process. DOWN: registered, and it doesn't answer. `detail` says why it isn't OK."""

    id: str
    role: str
    address: str
    state: State
    detail: str = ""
    started_at: int | None = None
    num_partitions: int | None = None
    rate: float | None = None
    lag_records: int | None = None
    memory_bytes: int | None = None
    clock_offset_seconds: float | None = None


class DeadLetter(Part, frozen=True, kw_only=True):
    """One recent dead letter; `preview` is a short printable piece of its value."""

    reason: str
    detail: str
    topic: str
    partition: int | None
    offset: int | None
    failed_at: int | None
    key: str
    preview: str


class DeadLetters(Part, frozen=True, kw_only=True):
    """Dead letters: rate and share of consumed records by reason, and the newest ones.

    `rate_problem` says why rate and share can't be told, `problem` why the newest ones can't be.
    """

    by_reason: tuple[tuple[str, int], ...] = ()
    rate: float | None = None
    share: float | None = None
    recent: tuple[DeadLetter, ...] = ()
    problem: str = ""
    rate_problem: str = ""


class EncoderVersion(Part, frozen=True, kw_only=True):
    """A version of an encoder as the store and Triton know it; `loaded` None is can't tell."""

    encoder: str
    version: str
    state: str  # ready | active | retired
    created_at: int | None = None
    loaded: bool | None = None
    stats: dict[str, float | str] = {}


class Clock(Part, frozen=True, kw_only=True):
    """A clock against the broker's: positive is ahead. `error_seconds` bounds the measurement.

    method: round_trip (a request and its answer bracket the other clock) or least_delay (the
    smallest delay seen: the offset plus what the event truly took, so an upper bound of how far it
    is behind).
    """

    name: str
    kind: str  # producer | broker | worker | monitor
    offset_seconds: float | None
    error_seconds: float | None
    method: str
    exceeds_limit: bool = False
    problem: str = ""


class Canary(Part, frozen=True, kw_only=True):
    """The synthetic users' events that went the whole way and were read back through Feast."""

    enabled: bool = False
    state: State = State.UNKNOWN
    num_users: int = 0
    num_sent: int = 0
    num_read_back: int = 0
    num_lost: int = 0
    availability: float | None = None
    last_sent_at: int | None = None
    last_read_back_at: int | None = None
    sequence_p50_seconds: float | None = None
    sequence_p99_seconds: float | None = None
    representation_p50_seconds: float | None = None
    representation_p99_seconds: float | None = None
    problem: str = ""


class Source(Part, frozen=True, kw_only=True):
    """One source of the monitor: whether it answered, and how often it didn't."""

    name: str  # kafka | cassandra | triton | features | canaries | worker:<id>
    ok: bool
    last_ok_at: int | None
    num_errors: int
    duration_seconds: float | None
    error: str = ""


class Snapshot(Part, frozen=True, kw_only=True):
    """Everything at one moment. Made every `interval_seconds`; `number` grows by one each time."""

    format: int = FORMAT
    number: int
    at: int
    started_at: int
    interval_seconds: float
    window_seconds: float
    cost_window_seconds: float
    headline: Headline
    slowest_stage: str | None
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    staleness: tuple[Staleness, ...]
    objectives: tuple[Objective, ...]
    freshness: tuple[Freshness, ...]
    coverage: Coverage
    cost: tuple[Cost, ...]
    partitions: Partitions
    workers: tuple[Worker, ...]
    dead_letters: DeadLetters
    versions: tuple[EncoderVersion, ...]
    clocks: tuple[Clock, ...]
    canary: Canary
    sources: tuple[Source, ...]


def encode(part: Part) -> bytes:
    """A part as JSON."""
    return msgspec.json.encode(part)
