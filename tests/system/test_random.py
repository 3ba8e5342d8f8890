"""The real random source."""

from __future__ import annotations

import numpy as np
import pytest

from waltz.system.random import RealRandom


def test_numbers_lie_in_their_range() -> None:
    random = RealRandom()
    assert all(2.0 <= random.uniform(2.0, 3.0) <= 3.0 for _ in range(100))


@pytest.mark.long
def test_no_uuid_comes_twice_and_the_system_draws_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """LC-45: a million of them; what nobody can guess comes from the operating system only."""
    random = RealRandom()
    count = 1_000_000
    drawn = np.frombuffer(b"".join(random.uuid().bytes for _ in range(count)), "S16")
    assert len(np.unique(drawn)) == count
    monkeypatch.setattr("os.urandom", lambda size: bytes(range(size)))
    assert random.uuid().bytes[:6] == bytes(range(6))


def test_uuids_are_random_ones_and_differ() -> None:
    random = RealRandom()
    found = {random.uuid() for _ in range(100)}
    assert len(found) == 100
    assert {uuid.version for uuid in found} == {4}
