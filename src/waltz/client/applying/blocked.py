"""A transaction that an application cannot apply: the failed attempts, and what the policy does
then.

Owns the policy, the count of the attempts, and the log lines: one line for each attempt, one
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
from waltz.log_fields import Fields
from waltz.types import NOTHING, PartitionId, TransactionId

REMEDY: Final = (
    "mend the application, skip it with `waltz parked skip`, or open the client with"
    " on_apply_failure='park'"
)

ERROR_CHARACTERS_MAX: Final = 300
"""Characters of an error's text in a log line."""


class OnApplyFailure(StrEnum):
    """The policy for a transaction that the application cannot apply."""

    WAIT = "wait"
    """Try again for ever, with growing pauses; nothing after the transaction is applied."""

    PARK = "park"
    """After `apply_attempts_max` attempts the callbacks' `park` keeps the transaction, and those
    after it are applied."""

    STOP = "stop"
    """After `apply_attempts_max` attempts this client ends its work on the partition."""


@dataclass(frozen=True, slots=True)
class BlockedPartition:
    """`transaction_id` could not be applied, `attempts` times in a row; `error` is the last error.

    `since_milliseconds`: the time of the first attempt, in milliseconds since 1970 by the client's
    wall clock.
    """

    transaction_id: TransactionId
    attempts: int
    error: Exception
    since_milliseconds: int = 0


def check_policy(policy: OnApplyFailure, callbacks: object) -> None:
    """Check that `callbacks` can park, if `policy` is to park. Raises ConfigurationError if not."""
    if policy is OnApplyFailure.PARK and not hasattr(callbacks, "park"):
        raise ConfigurationError(
            f"on_apply_failure is 'park', and {type(callbacks).__name__} has no park(transaction,"
            " error), which keeps the transaction and moves the mark past it; SqlCallbacks has one"
        )


def one_line(error: BaseException) -> str:
    """Return the type and the text of an error on one line of bounded length.

    What cannot be printed is escaped: no log could show it, and not every database keeps it.
    """
    text = " ".join(f"{type(error).__name__}: {error}".split())
    shown = text[:ERROR_CHARACTERS_MAX]
    if not shown.isprintable():
        shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in shown)
    if len(text) > ERROR_CHARACTERS_MAX or len(shown) > ERROR_CHARACTERS_MAX:
        return f"{shown[:ERROR_CHARACTERS_MAX]}..."
    return shown


class FailedAttempts:
    """The consecutive failures to apply the next transaction of one partition."""

    def __init__(
        self, partition_id: PartitionId, policy: OnApplyFailure, attempts_max: int
    ) -> None:
        self.count = 0
        """0 once everything is applied."""
        self.since_milliseconds = 0
        self._partition_id = partition_id
        self._policy = policy
        self._attempts_max = attempts_max
        self._transaction_id = NOTHING
        """The first transaction that is not applied."""
        self._traced = NOTHING
        """The last transaction of which a traceback was logged, alone or as one of several applied
        together."""
        self._traced_alone = NOTHING
        self._traced_text = ""

    def note(self, transaction_id: TransactionId, now_milliseconds: int) -> None:
        """Count an attempt that ended before `transaction_id`; failures at another transaction are
        forgotten."""
        if not self.count or transaction_id != self._transaction_id:
            self.count, self.since_milliseconds = 0, now_milliseconds
        self._transaction_id = transaction_id
        self.count += 1

    def will_be_enough(self, outcome: ApplyOutcome) -> bool:
        """Return whether this attempt is the last one, once it is counted."""
        is_same = outcome.last_transaction_id + 1 == self._transaction_id
        count = self.count + 1 if is_same else 1
        return outcome.is_alone and count >= self._attempts_max

    def is_enough(self, *, is_alone: bool) -> bool:
        """Return whether to park the transaction, or to stop the partition."""
        return (
            self._policy is not OnApplyFailure.WAIT
            and is_alone
            and self.count >= self._attempts_max
        )

    def wants_trace(self, left: Transactions, error: Exception, *, is_alone: bool) -> bool:
        """Return whether to log the traceback of `error`: once per transaction."""
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

    def described(self, left: Transactions, error: Exception, *, is_alone: bool) -> Fields:
        """Return the fields of the log line of an attempt: the transaction and the error."""
        first = left.first_transaction_id
        what = Fields(transaction=first) | content(left.first(1)[0])
        if not is_alone:
            what = Fields(transactions=f"{first}..{left.last_transaction_id}")
        return Fields(
            partition=self._partition_id,
            **what,
            attempt=self.count,
            on_apply_failure=self._policy,
            error=one_line(error),
        )

    def blocking(self, transaction_id: TransactionId, error: Exception) -> PartitionBlockedError:
        """Return the error for callers that wait for the transaction that cannot be applied."""
        after = {
            OnApplyFailure.STOP: "this client no longer follows the partition; open a new client"
            " once the cause is mended",
        }.get(
            self._policy,
            "nothing after it is applied until it can be, or is skipped (`waltz parked skip`);"
            " on_apply_failure='park' continues without it",
        )
        return PartitionBlockedError(
            f"transaction {transaction_id} of partition {self._partition_id} could not be applied"
            f" in {self.count} attempts: {one_line(error)}; {after}"
        )


def content(transaction: Transaction) -> Fields:
    """Return the transaction's header and size for a log line, without its data."""
    size = len(transaction.data) if transaction.has_data else "not-fetched"
    return Fields(header=transaction.header, bytes=size)
