"""The real random source."""

from __future__ import annotations

from waltz.system.random import RealRandom


def test_numbers_lie_in_their_range() -> None:
    random = RealRandom()
    assert all(2.0 <= random.uniform(2.0, 3.0) <= 3.0 for _ in range(100))


def test_uuids_are_random_ones_and_differ() -> None:
    random = RealRandom()
    found = {random.uuid() for _ in range(100)}
    assert len(found) == 100
    assert {uuid.version for uuid in found} == {4}
