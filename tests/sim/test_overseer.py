"""Commits of two owners of a partition are compared; nothing else is looked at."""

from __future__ import annotations

import pytest

from waltz.server.feeding.feed_cache import FeedCache
from waltz.server.server_partition import ServerPartition
from waltz.sim.judges.overseer import Overseer
from waltz.sim.loop import Process
from waltz.store.events import StoreOpened
from waltz.types import Generation, PartitionId, SessionId, TransactionId

P = PartitionId(0)
ONE, OTHER = Process("server-0"), Process("server-1")


def owner(generation: int, mark: int | None) -> ServerPartition:
    machine = ServerPartition(P, Generation(generation), FeedCache(1000))
    if mark is not None:
        machine.step([StoreOpened(SessionId(1), TransactionId(mark))], 0.0)
    return machine


def move(machine: ServerPartition, mark: int) -> ServerPartition:
    machine.high_water_mark = TransactionId(mark)
    return machine


def test_owners_that_follow_each_other_are_right() -> None:
    overseer = Overseer()
    first, second = owner(1, 5), owner(2, 7)
    overseer.look(ONE, owner(1, None))
    overseer.look(ONE, first)
    overseer.look(ONE, move(first, 7))
    overseer.look(OTHER, second)
    overseer.look(ONE, first)
    overseer.look(OTHER, move(second, 9))
    assert overseer.committed(P) == 9
    assert overseer.committed(PartitionId(1)) == -1


def test_an_owner_that_learns_late_of_its_commits_is_right() -> None:
    overseer = Overseer()
    first = owner(1, 5)
    overseer.look(ONE, first)
    overseer.look(OTHER, owner(2, 7))
    overseer.look(ONE, move(first, 7))


def test_a_stale_owner_that_commits_is_found() -> None:
    """I3."""
    overseer = Overseer()
    first = owner(1, 5)
    overseer.look(ONE, first)
    overseer.look(OTHER, owner(2, 7))
    with pytest.raises(AssertionError, match=r"I3: .*generation 1 committed 8"):
        overseer.look(ONE, move(first, 8))


def test_an_owner_that_begins_below_what_was_committed_is_found() -> None:
    """I3."""
    overseer = Overseer()
    overseer.look(ONE, owner(1, 5))
    with pytest.raises(AssertionError, match=r"I3: .*generation 2 began at 4"):
        overseer.look(OTHER, owner(2, 4))


def test_a_mark_that_falls_is_found() -> None:
    """I10."""
    overseer = Overseer()
    machine = owner(1, 5)
    overseer.look(ONE, machine)
    with pytest.raises(AssertionError, match=r"I10: .*from 5 back to 4"):
        overseer.look(ONE, move(machine, 4))


def test_a_generation_with_two_owners_is_found() -> None:
    overseer = Overseer()
    overseer.look(ONE, owner(1, 5))
    with pytest.raises(AssertionError, match="two owners"):
        overseer.look(OTHER, owner(1, 5))
