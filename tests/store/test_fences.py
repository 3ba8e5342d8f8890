"""What replicas have promised instead of a session."""

from __future__ import annotations

import pytest

from waltz.store.fences import Fences
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
LINK = ReplicaLink(SessionId(5), A, 1)


def refused(fence: int | None) -> RequestFailed:
    promised = None if fence is None else SessionId(fence)
    return RequestFailed(LINK, AskSessionInfo(), "no", promised)


def began(session: int) -> RequestAnswered:
    mark = TransactionId(0)
    return RequestAnswered(LINK, AskSessionInfo(), SessionInfo(SessionId(session), mark, mark))


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
        fences.take(replica, refused(fence))
    assert fences.outrun((A, B, C)) == outrun


def test_a_session_that_began_before_it_was_given_is_refused_like_a_fence() -> None:
    fences = Fences(SessionId(5))
    assert fences.take(A, began(4)) is None
    assert fences.take(A, began(5)) is not None
    assert fences.take(B, began(6)) is not None
    assert fences.outrun((A, B, C)) == 6


def test_other_refusals_and_answers_say_nothing() -> None:
    fences = Fences(SessionId(5))
    assert fences.take(A, refused(None)) is None
    assert fences.take(A, refused(5)) is None
    assert fences.take(A, RequestFailed(LINK, AskMaxTransactionId(), "no", SessionId(9))) is None
    assert fences.take(A, RequestAnswered(LINK, AskMaxTransactionId(), TransactionId(9))) is None
    assert fences.outrun((A,)) is None
