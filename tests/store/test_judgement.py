"""What a replica's word is worth to a recovery: each case by value."""

from __future__ import annotations

import pytest

from waltz.cluster.partition_metadata import ReplicaState
from waltz.store.judgement import RecoveryStanding, has_joined_since, judge
from waltz.types import ReplicaId, SessionId, TransactionId
from waltz.wire.storage_protocol import SessionInfo

A, B = ReplicaId("a:1"), ReplicaId("b:1")


def open_state(session: int) -> ReplicaState:
    return ReplicaState(SessionId(session), None)


def closed(session: int, mark: int) -> ReplicaState:
    return ReplicaState(SessionId(session), TransactionId(mark))


@pytest.mark.parametrize(
    ("states", "info", "standing", "cut_to"),
    [
        ({}, (-1, -1), RecoveryStanding.CANDIDATE, None),
        ({}, (0, -1), RecoveryStanding.CANDIDATE, None),
        ({}, (3, 10), RecoveryStanding.UNKNOWN, None),
        ({B: open_state(4)}, (4, 10), RecoveryStanding.NEW, 10),
        ({A: open_state(4)}, (3, 10), RecoveryStanding.INCONSISTENT, 10),
        ({A: closed(4, 20)}, (3, 10), RecoveryStanding.INCONSISTENT, 10),
        ({A: open_state(4)}, (-1, -1), RecoveryStanding.INCONSISTENT, -1),
        ({A: open_state(4)}, (4, 10), RecoveryStanding.CANDIDATE, None),
        ({A: open_state(4)}, (5, 10), RecoveryStanding.CANDIDATE, None),
        ({A: closed(4, 20), B: open_state(5)}, (4, 10), RecoveryStanding.CLOSED, 20),
        ({A: closed(4, 20), B: open_state(6)}, (5, 30), RecoveryStanding.CLOSED, 20),
        ({A: closed(4, 20), B: open_state(6)}, (6, 30), RecoveryStanding.CLOSED, 20),
        ({A: closed(4, 20), B: open_state(6)}, (7, 30), RecoveryStanding.CLOSED, 30),
        ({A: closed(-1, 20), B: open_state(6)}, (3, 12), RecoveryStanding.CLOSED, 12),
        ({A: closed(-1, 20), B: open_state(6)}, (3, 25), RecoveryStanding.CLOSED, 20),
        ({A: closed(-1, 20), B: open_state(6)}, (6, 25), RecoveryStanding.CLOSED, 20),
        ({A: closed(-1, 20), B: open_state(6)}, (7, 25), RecoveryStanding.CLOSED, 25),
        ({A: closed(-1, 20), B: open_state(6)}, (-1, -1), RecoveryStanding.CLOSED, -1),
    ],
)
def test_the_first_fitting_case_decides(
    states: dict[ReplicaId, ReplicaState],
    info: tuple[int, int],
    standing: RecoveryStanding,
    cut_to: int | None,
) -> None:
    """ST-23, ST-24, ST-25, ST-37."""
    session, mark = SessionId(info[0]), TransactionId(info[1])
    assert judge(A, states, SessionInfo(session, mark, mark)) == (standing, cut_to)


@pytest.mark.parametrize(
    ("states", "info", "last", "has_joined"),
    [
        ({A: closed(4, 20), B: open_state(6)}, (6, 30), 31, True),
        ({A: closed(-1, 20), B: open_state(6)}, (6, 30), 31, True),
        ({A: closed(4, 20), B: open_state(6)}, (6, 30), 30, False),
        ({A: closed(4, 20), B: open_state(6)}, (7, 30), 31, False),
        ({A: closed(4, 20), B: open_state(6)}, (5, 30), 31, False),
        ({A: open_state(6), B: open_state(6)}, (6, 30), 31, False),
        ({B: open_state(6)}, (6, 30), 31, False),
        ({}, (6, 30), 31, False),
    ],
)
def test_records_beyond_the_mark_of_the_last_session_show_that_it_was_joined(
    states: dict[ReplicaId, ReplicaState], info: tuple[int, int], last: int, has_joined: bool
) -> None:
    """Decision 0030."""
    mark = TransactionId(info[1])
    said = SessionInfo(SessionId(info[0]), mark, mark)
    assert has_joined_since(states, A, said, TransactionId(last)) == has_joined
