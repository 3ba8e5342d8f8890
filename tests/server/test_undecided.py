"""Appends from arrival to outcome, by value; the partition's tests have the rest."""

from __future__ import annotations

from tests.server.builders import append, request_id, tid, together
from waltz.server.appends.lock_table import LockTable
from waltz.server.appends.undecided import NOTHING_ADMITTED, Undecided
from waltz.server.feeding.backlog import Backlog
from waltz.types import NOTHING
from waltz.wire.batch_protocol import AppendRejected, Reason, Rejection


def numbers(undecided: Undecided) -> list[int]:
    records = undecided.admit(0.0).records
    undecided.check_invariants()
    return [] if records is None else [int.from_bytes(r.request_id[12:], "big") for r in records]


def test_what_waits_goes_first_and_what_is_refused_is_told() -> None:
    """CI-15, SV-09, PM-24."""
    locks, backlog = LockTable(NOTHING), Backlog()
    undecided = Undecided(locks, backlog)
    assert undecided.admit(0.0) == NOTHING_ADMITTED
    undecided.take([together(append(2, write=[1])), together(append(3, write=[1]))], 1, 0.0)
    undecided.take([together(append(4, client=8, read=[1]), append(5, client=8))], 2, 0.0)
    assert numbers(undecided) == [2]
    assert (len(undecided), undecided.oldest_waiting) == (4, 2)
    assert undecided.byte_count == backlog.byte_count
    locks.commit(tid(0), 1)
    ((_, decided),) = undecided.decide(1, 0.0, is_committed=True)
    assert decided.request_ids.tolist() == [list(request_id(7, 2))]
    undecided.take([together(append(6, client=9))], 3, 0.0)
    admitted = undecided.admit(0.0)
    assert admitted.refused_count == 2
    assert admitted.answers == [
        (1, AppendRejected(request_id(7, 3), (Rejection(3, 1, Reason.LOCKED, tid(0), 1),))),
        (2, AppendRejected(request_id(8, 4), (Rejection(4, 1, Reason.LOCKED, tid(0), 1),))),
    ]
    assert admitted.records is not None
    assert len(admitted.records) == 2
    assert [each.request_id for each in undecided.refusals.latest(9, winner=tid(0))] == [
        request_id(8, 4),
        request_id(7, 3),
    ]
    assert undecided.byte_count == backlog.byte_count
    assert undecided.oldest_waiting == undecided.arrival_count + 1


def test_what_the_store_has_not_seen_can_be_abandoned() -> None:
    undecided = Undecided(LockTable(NOTHING), Backlog())
    undecided.take([together(append(2, write=[1]), append(3, write=[1]))], 1, 0.0)
    undecided.admit(0.0)
    undecided.take([together(append(4))], 1, 0.0)
    abandoned = [row[3] for each in undecided.abandon() for row in each.request_ids.tolist()]
    assert abandoned == [3, 4]


def test_a_batch_has_waited_since_its_oldest_append_came_and_is_timed_until_it_is_committed() -> (
    None
):
    locks, backlog = LockTable(NOTHING), Backlog()
    undecided = Undecided(locks, backlog)
    seconds = undecided.seconds
    undecided.take([together(append(2, write=[1]), append(3, read=[1]))], 1, 1.0)
    undecided.admit(1.5)
    assert (seconds.wait.count, seconds.wait.sum_seconds) == (1, 0.5)
    undecided.take([together(append(4, client=8))], 2, 2.0)
    undecided.admit(4.0)  # the read lock of the first message still waits
    assert (seconds.wait.count, seconds.wait.sum_seconds) == (2, 2.5)
    locks.fail(1)
    undecided.decide(1, 6.0, is_committed=False)
    assert seconds.store.count == 0, "it failed"
    undecided.admit(6.0)
    assert (seconds.wait.count, seconds.wait.sum_seconds) == (3, 7.5), "since 1.0"
    locks.commit(tid(0), 2)
    undecided.decide(2, 6.25, is_committed=True)
    assert (seconds.store.count, seconds.store.sum_seconds) == (2, 2.5)
    assert undecided.oldest_waiting == undecided.arrival_count + 1
