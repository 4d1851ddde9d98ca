"""What every representation store does: versions stay apart (R7), the newest position wins (R2)."""

from __future__ import annotations

import numpy as np
import pytest

from streams.errors import HeadwaterError, StoreRejected
from streams.representation_store import RepresentationStore
from streams.representations import EncoderVersion, Representation, VersionState
from streams.testing import InMemoryRepresentationStore

Store = RepresentationStore | InMemoryRepresentationStore


def vector_of(number: int, position: int) -> Representation:
    vector = np.full(4, number, np.float32)
    return Representation(vector, as_of=number, position=position, encoded_at=number + 1)


def number_in(found: Representation | HeadwaterError | None) -> float | None:
    assert not isinstance(found, HeadwaterError)
    return None if found is None else float(found.vector[0])


async def test_vectors_come_back_whole_and_in_order(
    representation_store: Store, unique: str
) -> None:
    items = [(f"user-{n}", vector_of(n, 10)) for n in range(5)]
    assert await representation_store.write_many(unique, "1", items, 3_600) == [None] * 5
    users = ["user-3", "nobody", "user-0", "user-3"]
    found = await representation_store.read_many(unique, "1", users)
    assert [number_in(one) for one in found] == [3, None, 0, 3]
    first = found[0]
    assert isinstance(first, Representation)
    assert (first.as_of, first.position, first.encoded_at) == (3, 10, 4)
    assert first.vector.dtype == np.float32
    assert first.vector.shape == (4,)


async def test_the_larger_position_stays(representation_store: Store, unique: str) -> None:
    for position in (5, 9, 7):
        item = ("user", vector_of(position, position))
        await representation_store.write_many(unique, "1", [item])
    found = await representation_store.read_many(unique, "1", ["user"])
    assert [number_in(one) for one in found] == [9]


async def test_versions_are_apart(representation_store: Store, unique: str) -> None:
    await representation_store.write_many(unique, "1", [("user", vector_of(1, 9))])
    await representation_store.write_many(unique, "2", [("user", vector_of(2, 3))])
    for version, expected in (("1", 1), ("2", 2), ("3", None)):
        found = await representation_store.read_many(unique, version, ["user"])
        assert [number_in(one) for one in found] == [expected]


async def test_deletion_takes_what_is_older_in_every_version(
    representation_store: Store, unique: str
) -> None:
    for version in ("1", "2"):
        await representation_store.write_many(unique, version, [("user", vector_of(1, 9))])
    await representation_store.delete(unique, ["1", "2"], "user", 20)
    await representation_store.write_many(unique, "1", [("user", vector_of(2, 19))])
    await representation_store.write_many(unique, "2", [("user", vector_of(3, 20))])
    found = [
        number_in((await representation_store.read_many(unique, version, ["user"]))[0])
        for version in ("1", "2")
    ]
    assert found == [None, 3]


async def test_versions_are_recorded_and_one_is_active(
    representation_store: Store, unique: str
) -> None:
    assert await representation_store.read_versions(unique) == []
    assert await representation_store.active_version(unique) is None
    for number in ("1", "2", "10"):
        await representation_store.add_version(
            EncoderVersion(unique, number, VersionState.READY, 1_700_000_000_123, {"loss": 0.5})
        )
    versions = await representation_store.read_versions(unique)
    assert [(v.version, v.state) for v in versions] == [(n, "ready") for n in ("10", "2", "1")]
    assert versions[0].created_at == 1_700_000_000_123
    assert versions[0].stats == {"loss": 0.5}
    for number in ("1", "10", "10", "2"):
        await representation_store.activate(unique, number)
        assert await representation_store.active_version(unique) == number
        states = {v.version: v.state for v in await representation_store.read_versions(unique)}
        assert states == {n: "active" if n == number else "ready" for n in ("1", "2", "10")}


async def test_a_retired_version_says_so(representation_store: Store, unique: str) -> None:
    version = EncoderVersion(unique, "1", VersionState.RETIRED, 0)
    await representation_store.add_version(version)
    assert await representation_store.read_versions(unique) == [version]


@pytest.mark.parametrize("version", ["0", "01", "-1", "1.0", "latest", ""])
async def test_a_version_is_a_positive_number(
    representation_store: Store, unique: str, version: str
) -> None:
    with pytest.raises(StoreRejected, match="positive whole number"):
        await representation_store.add_version(
            EncoderVersion(unique, version, VersionState.READY, 0)
        )


async def test_what_was_never_recorded_is_not_activated(
    representation_store: Store, unique: str
) -> None:
    with pytest.raises(StoreRejected, match="no version 7"):
        await representation_store.activate(unique, "7")
