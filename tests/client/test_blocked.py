"""What is told of a transaction that cannot be applied, and when it is enough: by value."""

from __future__ import annotations

import pytest

from tests.client.test_calls import transactions
from waltz.client.applying.blocked import FailedAttempts, OnApplyFailure, content, one_line
from waltz.client.applying.calls import ApplyOutcome
from waltz.types import PartitionId, TransactionId

P0 = PartitionId(0)
ERROR = ValueError("no\n  such   thing")


def failed(policy: OnApplyFailure, attempts_max: int = 3) -> FailedAttempts:
    return FailedAttempts(P0, policy, attempts_max)


def test_an_error_is_one_line_of_bounded_length() -> None:
    assert one_line(ERROR) == "ValueError: no such thing"
    assert one_line(ValueError("x" * 10_000)) == f"ValueError: {'x' * 288}..."
    assert one_line(ValueError("\ud800" * 100)) == "ValueError: " + r"\ud800" * 48 + "..."
    assert one_line(ValueError("a\0b\x9b\u202ec")) == r"ValueError: a\x00b\x9b\u202ec"


def test_attempts_are_counted_per_transaction() -> None:
    attempts = failed(OnApplyFailure.WAIT)
    for now in (5, 6, 7):
        attempts.note(TransactionId(4), now)
    assert (attempts.count, attempts.since_milliseconds) == (3, 5)
    attempts.note(TransactionId(6), 9)
    assert (attempts.count, attempts.since_milliseconds) == (1, 9)
    attempts.count = 0
    attempts.note(TransactionId(6), 10)
    assert (attempts.count, attempts.since_milliseconds) == (1, 10)


@pytest.mark.parametrize("policy", OnApplyFailure)
def test_it_is_enough_once_one_alone_has_failed_so_often(policy: OnApplyFailure) -> None:
    attempts = failed(policy)
    ends = policy is not OnApplyFailure.WAIT
    alone = ApplyOutcome(TransactionId(3), ERROR, is_alone=True)
    for number in (1, 2, 3, 4):
        assert attempts.will_be_enough(alone) == (number >= 3)
        attempts.note(TransactionId(4), 0)
        assert attempts.is_enough(is_alone=True) == (ends and number >= 3)
        assert not attempts.is_enough(is_alone=False)
    assert not attempts.will_be_enough(ApplyOutcome(TransactionId(3), ERROR))
    assert not attempts.will_be_enough(ApplyOutcome(TransactionId(7), ERROR, is_alone=True))


def test_a_traceback_is_told_once_per_transaction() -> None:
    attempts = failed(OnApplyFailure.WAIT)
    batch = transactions(4, 5, 6)

    def wants(first: int, error: Exception, *, is_alone: bool) -> bool:
        left = batch.after(TransactionId(first - 1))
        return attempts.wants_trace(left, error, is_alone=is_alone)

    assert wants(4, ERROR, is_alone=False)
    assert not wants(4, ERROR, is_alone=False)
    assert not wants(5, ERROR, is_alone=True), "the one of the batch"
    assert wants(6, TypeError("another"), is_alone=True)
    for number in range(5):
        assert not wants(6, TypeError(f"that says {number} each time"), is_alone=True)


def test_a_line_has_the_transaction_its_size_and_header_and_the_attempt() -> None:
    attempts = failed(OnApplyFailure.PARK)
    attempts.note(TransactionId(4), 0)
    left = transactions(4, 5)
    (one, *_) = left
    one.provide_data(b"abc")
    assert str(attempts.described(left, ERROR, is_alone=True)) == (
        f"partition=0 transaction=4 header={one.header} bytes=3 attempt=1 on_apply_failure=park"
        " error='ValueError: no such thing'"
    )
    assert "transactions=4..5 attempt=1" in str(attempts.described(left, ERROR, is_alone=False))


def test_a_size_that_is_not_known_is_not_told() -> None:
    (one,) = transactions(4)
    assert str(content(one)).endswith("bytes=not-fetched") == (not one.has_data)


def test_who_waits_is_told_the_transaction_the_error_and_the_remedy() -> None:
    for policy in OnApplyFailure:
        attempts = failed(policy)
        attempts.note(TransactionId(4), 0)
        text = str(attempts.blocking(TransactionId(4), ERROR))
        assert text.startswith("transaction 4 of partition 0 could not be applied in 1 attempts:")
        assert ("open a new client" in text) == (policy is OnApplyFailure.STOP)
