"""What replicas have promised instead of a session."""

from __future__ import annotations

import pytest

from waltz.store.fences import NEAR_SESSIONS, Fences
from waltz.store.requests import (
    AskMaxTransactionId,
    AskSessionInfo,
    ReplicaLink,
    RequestAnswered,
    RequestFailed,
)
from waltz.types import ReplicaId, SessionId, TransactionId
from waltz.wire.storage_protocol import SessionInfo

A, B, C = ReplicaId("a:1"), ReplicaId("b:1"), ReplicaId("c:1")


def link(replica_id: ReplicaId) -> ReplicaLink:
    return ReplicaLink(SessionId(5), replica_id, 1)


def refused(replica_id: ReplicaId, fence: int | None) -> RequestFailed:
    promised = None if fence is None else SessionId(fence)
    return RequestFailed(link(replica_id), AskSessionInfo(), "no", promised)


def began(replica_id: ReplicaId, session: int) -> RequestAnswered:
    mark = TransactionId(0)
    return RequestAnswered(
        link(replica_id), AskSessionInfo(), SessionInfo(SessionId(session), mark, mark)
    )


@pytest.mark.parametrize(
    ("promised", "outrun"),
    [
        ((None, None, None), None),
        ((9, None, None), None),
        ((9, 9, None), 9),
        ((9, 9, 2**62), 9),
        ((2**62, None, None), None),
        ((7, 9, 8), 8),
        ((7, 9, None), 7),
    ],
)
def test_the_next_session_is_above_what_a_majority_has_promised_and_not_above_what_one_says(
    promised: tuple[int | None, ...], outrun: int | None
) -> None:
    fences = Fences(SessionId(5))
    for replica, fence in zip((A, B, C), promised, strict=True):
        fences.take(refused(replica, fence))
    assert fences.outrun((A, B, C)) == outrun


def test_a_session_that_began_before_it_was_given_is_refused_like_a_fence() -> None:
    fences = Fences(SessionId(5))
    assert fences.take(began(A, 4)) is None
    assert fences.take(began(A, 5)) is not None
    assert fences.take(began(B, 6)) is not None
    assert fences.outrun((A, B, C)) == 6


def test_other_refusals_and_answers_say_nothing() -> None:
    fences = Fences(SessionId(5))
    assert fences.take(refused(A, None)) is None
    assert fences.take(refused(A, 5)) is None
    assert fences.take(RequestFailed(link(A), AskMaxTransactionId(), "no", SessionId(9))) is None
    assert fences.take(RequestAnswered(link(A), AskMaxTransactionId(), TransactionId(9))) is None
    assert fences.outrun((A,)) is None


def test_a_promise_is_near_up_to_a_bound_that_a_forger_can_use_once() -> None:
    fences = Fences(SessionId(5))
    fences.take(refused(A, 5 + NEAR_SESSIONS))
    fences.take(refused(B, 6 + NEAR_SESSIONS))
    assert [fences.is_near(each) for each in (A, B, C)] == [True, False, False]
