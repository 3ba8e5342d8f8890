"""Barriers by value."""

from __future__ import annotations

from tests.server.builders import flush, mount, peer
from waltz.server.appends.barriers import Barrier, Barriers


def test_a_barrier_passes_once_all_before_it_are_sent_and_decided() -> None:
    """CI-17, CI-18."""
    early, late = (
        Barrier(2, peer(), flush(2), is_final=False),
        Barrier(4, peer(), mount(), is_final=True),
    )
    barriers = Barriers()
    barriers.add(early)
    barriers.add(late)
    assert list(barriers.take_passed(2, 1, 1)) == [], "the second append waits for a lock"
    assert list(barriers.take_passed(3, 7, 6)) == [], "the seventh ticket is undecided"
    assert [*barriers] == [early, late]
    barriers.check_invariants(6)
    assert list(barriers.take_passed(5, 9, 7)) == [early]
    assert list(barriers.take_passed(5, 12, 8)) == [], "tickets given later do not matter"
    assert list(barriers.take_passed(5, 12, 9)) == [late]
    assert len(barriers) == 0
