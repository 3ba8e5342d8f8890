"""A transaction that an application cannot apply: what is known of it, and what becomes of it.

Owns the policy, the count of the attempts, and what is told of them: one line for each attempt, one
traceback for each transaction. Never waits and calls nothing of the application.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from waltz.client.applying.calls import ApplyOutcome
from waltz.client.applying.transactions import Transactions
from waltz.client.transaction import Transaction
from waltz.errors import ConfigurationError, PartitionBlockedError
from waltz.types import NOTHING, PartitionId, TransactionId

REMEDY: Final = (
    "mend the application, skip it with `waltz parked skip`, or open the client with"
    " on_apply_failure='park'"
)

ERROR_CHARACTERS_MAX: Final = 300
"""Of an error's text in a line."""


class OnApplyFailure(StrEnum):
    """What becomes of a transaction that the application cannot apply."""

    WAIT = "wait"
    """It is tried again, later and later, for ever; nothing after it is applied."""

    PARK = "park"
    """After some attempts `park` of the callbacks keeps it, and what comes after it is applied."""

    STOP = "stop"
    """After some attempts this client is done with the partition."""


@dataclass(frozen=True, slots=True)
class BlockedPartition:
    """`transaction_id` could not be applied, `attempts` times in a row; `error` is the last one.

    `since_milliseconds`: when that began, since 1970 by the client's wall clock.
    """

    transaction_id: TransactionId
    attempts: int
    error: Exception
    since_milliseconds: int = 0


def check_policy(policy: OnApplyFailure, callbacks: object) -> None:
    """Raises ConfigurationError: what cannot be applied is to be parked, and `callbacks` cannot."""
    if policy is OnApplyFailure.PARK and not hasattr(callbacks, "park"):
        raise ConfigurationError(
            f"on_apply_failure is 'park', and {type(callbacks).__name__} has no park(transaction,"
            " error), which keeps the transaction and moves the mark past it; SqlCallbacks has one"
        )


def one_line(error: BaseException) -> str:
    """Return the kind and the text of an error on one line of bounded length."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= ERROR_CHARACTERS_MAX else f"{text[:ERROR_CHARACTERS_MAX]}..."


class FailedAttempts:
    """The failures in a row to apply what comes next in one partition."""

    def __init__(
        self, partition_id: PartitionId, policy: OnApplyFailure, attempts_max: int
    ) -> None:
        self.count = 0
        self.since_milliseconds = 0
        self._partition_id = partition_id
        self._policy = policy
        self._attempts_max = attempts_max
        self._transaction_id = NOTHING
        """The next that is not applied."""
        self._traced = NOTHING
        """Through which a traceback was told, be it of several applied together."""
        self._traced_alone = NOTHING
        self._traced_text = ""

    def end(self) -> None:
        """All was applied."""
        self.count = 0

    def note(self, transaction_id: TransactionId, now_milliseconds: int) -> None:
        """One more attempt has ended before `transaction_id`; an earlier end was another matter."""
        if not self.count or transaction_id != self._transaction_id:
            self.count, self.since_milliseconds = 0, now_milliseconds
        self._transaction_id = transaction_id
        self.count += 1

    def will_be_enough(self, outcome: ApplyOutcome) -> bool:
        """Whether this attempt is the last one, once it is noted."""
        is_same = outcome.last_transaction_id + 1 == self._transaction_id
        count = self.count + 1 if is_same else 1
        return outcome.is_alone and count >= self._attempts_max

    def is_enough(self, *, is_alone: bool) -> bool:
        """Whether the transaction is to be parked, or the partition stopped."""
        return (
            self._policy is not OnApplyFailure.WAIT
            and is_alone
            and self.count >= self._attempts_max
        )

    def wants_trace(self, left: Transactions, error: Exception, *, is_alone: bool) -> bool:
        """Whether the traceback of `error` is to be told: once per transaction."""
        transaction_id, text = left.first_transaction_id, one_line(error)
        if is_alone:
            if transaction_id == self._traced_alone or (
                transaction_id <= self._traced and text == self._traced_text
            ):
                return False
            self._traced_alone = transaction_id
        elif transaction_id <= self._traced:
            return False
        self._traced = TransactionId(
            max(self._traced, transaction_id if is_alone else left.last_transaction_id)
        )
        self._traced_text = text
        return True

    def described(self, left: Transactions, error: Exception, *, is_alone: bool) -> str:
        """Return what a line says of the attempt: the transaction, the error, and the remedy."""
        first = left.first_transaction_id
        if is_alone:
            what = f"transaction={first} {content(left.first(1)[0])}"
        else:
            what = f"transactions={first}..{left.last_transaction_id}"
        return (
            f"partition={self._partition_id} {what} attempt={self.count}"
            f" on_apply_failure={self._policy} error={one_line(error)!r}"
        )

    def blocking(self, transaction_id: TransactionId, error: Exception) -> PartitionBlockedError:
        """Return the error of whoever waits for what cannot be applied."""
        after = {
            OnApplyFailure.STOP: "this client is done with the partition; open a new one once that"
            " is mended",
        }.get(
            self._policy,
            "nothing after it is applied until it can be, or is skipped (`waltz parked skip`);"
            " on_apply_failure='park' goes on without it",
        )
        return PartitionBlockedError(
            f"transaction {transaction_id} of partition {self._partition_id} could not be applied"
            f" in {self.count} attempts: {one_line(error)}; {after}"
        )


def content(transaction: Transaction) -> str:
    """Return what a line says of a transaction's content, without the content."""
    size = str(len(transaction.data)) if transaction.has_data else "not-fetched"
    return f"header={transaction.header} bytes={size}"
