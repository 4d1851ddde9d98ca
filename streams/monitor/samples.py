"""Coverage, ages and lengths out of a sample of users. The reading is in `streams.sample_store`."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from streams.freshness import percentile
from streams.monitor.snapshot import Bin, CoverageOfVersion, SequenceLength
from streams.representations import EncoderVersion, RepresentationView, VersionState
from streams.sample_store import SampledRepresentation, SampledUser, SampleStore
from streams.sequences import SequenceView

_AGES = (
    (60.0, "≤ 1 min"),
    (600.0, "≤ 10 min"),
    (3_600.0, "≤ 1 h"),
    (86_400.0, "≤ 1 day"),
    (604_800.0, "≤ 1 week"),
    (None, "older"),
)
# Besides the active version, how many others are looked at: those that are being filled.
_MAX_OTHER_VERSIONS = 2


class Sample(msgspec.Struct, frozen=True):
    """What a sample says; `sampled_at` in ms."""

    sampled_at: int
    num_users: int
    num_active_users: int
    versions: tuple[CoverageOfVersion, ...]
    lengths: tuple[SequenceLength, ...]


async def take_sample(
    store: SampleStore,
    sequences: Sequence[SequenceView],
    representations: Sequence[RepresentationView],
    versions: Sequence[EncoderVersion],
    *,
    count: int,
    active_window_seconds: float,
    now: float,
    choice: random.Random,
) -> Sample:
    """Sample users and their representations; `now` in seconds. Raises StoreUnavailable."""
    users = await store.sample_users(count, sequences, choice)
    since = (now - active_window_seconds) * 1000
    found = []
    num_active = 0
    for view in representations:
        active = [user for user in users if (user.newest_time(view.sequences) or 0) >= since]
        num_active = max(num_active, len(active))
        for version in _looked_at(view.encoder, versions):
            read = await store.read_representations(
                view.encoder, version.version, [user.user_id for user in active]
            )
            found.append(_coverage(view, version, active, read, now))
    lengths = tuple(_length(view, users) for view in sequences)
    return Sample(round(now * 1000), len(users), num_active, tuple(found), lengths)


def _looked_at(encoder: str, versions: Sequence[EncoderVersion]) -> list[EncoderVersion]:
    own = [v for v in versions if v.encoder == encoder and v.state is not VersionState.RETIRED]
    active = [version for version in own if version.state is VersionState.ACTIVE]
    return active + [v for v in own if v not in active][:_MAX_OTHER_VERSIONS]


def _coverage(
    view: RepresentationView,
    version: EncoderVersion,
    users: Sequence[SampledUser],
    read: Sequence[SampledRepresentation | None],
    now: float,
) -> CoverageOfVersion:
    covered = [(user, facts) for user, facts in zip(users, read, strict=True) if facts is not None]
    current = [f for user, f in covered if f.position >= user.position(view.sequences)]
    return CoverageOfVersion(
        view=view.name,
        encoder=view.encoder,
        version=version.version,
        is_active=version.state is VersionState.ACTIVE,
        num_active_users=len(users),
        num_covered=len(covered),
        num_current=len(current),
        share=len(covered) / len(users) if users else None,
        ages=age_bins([now - facts.as_of / 1000 for _, facts in covered]),
    )


def age_bins(ages: Sequence[float]) -> tuple[Bin, ...]:
    """Ages (seconds) by bins."""
    bins, below = [], 0
    for upper, label in _AGES:
        up_to = len(ages) if upper is None else sum(age <= upper for age in ages)
        bins.append(Bin(label=label, upper_seconds=upper, count=up_to - below))
        below = up_to
    return tuple(bins)


def _length(view: SequenceView, users: Sequence[SampledUser]) -> SequenceLength:
    lengths = [user.sequences[view.name].length for user in users if view.name in user.sequences]
    p50, p99 = percentile(lengths, 0.5), percentile(lengths, 0.99)
    return SequenceLength(
        view=view.name,
        max_length=view.max_length,
        num_users=len(lengths),
        mean_length=sum(lengths) / len(lengths) if lengths else None,
        p50_length=None if p50 is None else int(p50),
        p99_length=None if p99 is None else int(p99),
        share_full=sum(n >= view.max_length for n in lengths) / len(lengths) if lengths else None,
    )
