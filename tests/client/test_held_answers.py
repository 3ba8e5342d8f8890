"""Answers wait for the transaction they speak of, each by itself."""

from __future__ import annotations

from tests.client.partition_world import request, submission
from waltz.client.appends.held_answers import HeldAnswers
from waltz.types import TransactionId
from waltz.wire.client_protocol import FlushResponse


def test_what_was_beaten_waits_for_what_has_beaten_it() -> None:
    """CI-20."""
    held, early, late = HeldAnswers(), submission(1), submission(2)
    held.hold_failure(late, TransactionId(9))
    held.hold_failure(early, TransactionId(4))
    assert late.lock_failure == 9
    assert held.take(TransactionId(3)) == ([], [])
    assert held.take(TransactionId(4)) == ([early], [])
    assert held.take(TransactionId(9)) == ([late], [])


def test_a_flush_is_held_once_and_tells_that_more_is_to_come() -> None:
    """CI-21."""
    held, answer = HeldAnswers(), FlushResponse(request(2), TransactionId(4))
    held.hold_flush(answer)
    held.hold_flush(answer)
    assert held.is_decided_beyond(TransactionId(3))
    assert not held.is_decided_beyond(TransactionId(4))
    assert held.take(TransactionId(4)) == ([], [answer])
    assert held.take(TransactionId(4)) == ([], [])
