"""A context on its way: what the client keeps about it between its submit and its end.

Owns the one rule that a context is told its end exactly once. Knows nothing of where it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias

from waltz.client.bulk import Bulk, ManyAppends
from waltz.client.transaction import (
    PartitionLocalLock,
    TransactionBuilder,
    TransactionContext,
    check_complete,
)
from waltz.errors import NotFoundError, OperationTimeoutError, PartitionBlockedError
from waltz.types import NOTHING, PartitionId, RequestId, TransactionId

if TYPE_CHECKING:
    from waltz.client.partitions.partition_runner_shell import PartitionRunner

Finished: TypeAlias = "Callable[[Submission, Exception | None], None]"
"""Called once a submission has ended, with the error that ended it."""


class Submission:
    """`runner` is that of the partition, once the context has chosen one. `draft` is what the last
    execution wants in the log; None once the context has ended. `undecided` is empty once the
    verdict has been claimed.

    `client_high_water_mark` was sampled before that execution: what the application read is not
    older. `transaction_id` is known once the feed has shown it.
    """

    __slots__ = (
        "attempts",
        "bulk",
        "cancel_expiration",
        "client_high_water_mark",
        "completed",
        "context",
        "draft",
        "holds_room",
        "lock_failure",
        "number",
        "on_finished",
        "partition_id",
        "refused_lock_hash",
        "runner",
        "submitted_at",
        "transaction_id",
        "undecided",
        "waited_seconds",
    )

    def __init__(self, number: int, context: TransactionContext, partition_id: PartitionId) -> None:
        self.number = number
        self.context = context
        self.partition_id = partition_id
        self.runner: PartitionRunner
        self.client_high_water_mark = NOTHING
        self.draft: TransactionBuilder | None = None
        self.bulk: Bulk | None = None
        """The rows that the context wants in the log, if they are more than one transaction."""
        self.transaction_id: TransactionId | None = None
        self.lock_failure: TransactionId | None = None
        self.refused_lock_hash: int | None = None
        """The hash of the lock that was refused; None if the server's version does not say."""
        self.holds_room = False
        self.waited_seconds = 0.0
        """The time spent waiting for a server and for room, before the registration."""
        self.completed = False
        self.submitted_at = 0.0
        self.attempts = 0
        self.cancel_expiration: Callable[[], None] | None = None
        self.on_finished: Finished | None = None
        self.undecided = [None]

    def execute(self, client_high_water_mark: TransactionId) -> bool:
        """Run the context's `execute` on the state as of `client_high_water_mark`.

        False: there is nothing to write. Raises what the application raises, and
        LocalProtocolError: no data was set.
        """
        self.attempts += 1
        self.client_high_water_mark = client_high_water_mark
        context = self.context
        if type(context) is ManyAppends:
            self.bulk = Bulk(context.rows, context.transaction_ids, context.locks_as_of)
            return True
        builder = TransactionBuilder()
        if not context.execute(builder):
            return False
        check_complete(builder)
        self.draft = builder
        return True

    def claim_verdict(self) -> bool:
        """Return True to exactly one caller, of whatever thread: that one tells the context."""
        try:
            self.undecided.pop()
        except IndexError:
            return False
        return True

    def refused_lock(self) -> PartitionLocalLock | None:
        """Return the write or read lock that it was refused for, as far as that is known."""
        if self.draft is None:
            return None
        checked = chain.from_iterable(self.draft.checked.values())
        return next((lock for lock in checked if lock.hash == self.refused_lock_hash), None)


_REQUEST_ID: Final = partial(tuple.__new__, RequestId)
"""As `RequestId._make`, at a third of its price: there is one for each context."""


def note_requests(first: RequestId, submissions: Sequence[Submission]) -> None:
    """They are being sent, under request IDs from `first` on: their contexts can ask for the
    outcome (UA-30)."""
    note = object.__setattr__  # contexts may be frozen dataclasses
    client_id, generation, partition_id, number = first
    for submission in submissions:
        context = submission.context
        note(context, "request_id", _REQUEST_ID((client_id, generation, partition_id, number)))
        note(context, "executed_at", submission.client_high_water_mark)
        number += 1


def checked_partition(context: TransactionContext, partition_count: int) -> PartitionId:
    """Return the partition the context chooses. Raises NotFoundError: it does not exist (PM-06)."""
    partition_id = context.partition_id(partition_count)
    if not 0 <= partition_id < partition_count:
        raise NotFoundError(
            f"partition {partition_id} chosen by {type(context).__name__};"
            f" expected 0 to {partition_count - 1}"
        )
    return PartitionId(partition_id)


def append_result(submission: Submission, error: Exception | None) -> TransactionId | Exception:
    """Return the result for the caller of a plain append: it has ended, or it is in the log and is
    not applied, for its time is up or another one before it cannot be applied."""
    if isinstance(error, OperationTimeoutError):
        return _time_is_up(submission)
    if submission.transaction_id is not None and not isinstance(error, PartitionBlockedError):
        return submission.transaction_id
    return error or OperationTimeoutError(
        "the context was not appended at its first attempt, and"
        " this client has no threads to retry it"
    )


def _time_is_up(submission: Submission) -> OperationTimeoutError:
    context = submission.context
    within = f"in {context.timeout_seconds} s"
    if isinstance(context, ManyAppends):
        return OperationTimeoutError(
            f"not all transactions were in the log and applied {within}: which of them are in the"
            " log is unknown"
        )
    if context.request_id is None:
        return OperationTimeoutError(f"the transaction was not sent {within}: it is not in the log")
    client, generation, partition, number = context.request_id
    found = (
        "whether it is in the log is unknown; ask for the outcome of request"
        f" {client}:{generation}:{partition}:{number} after transaction {context.executed_at}"
    )
    if submission.transaction_id is not None:
        found = f"it is in the log, as transaction {submission.transaction_id}, and stays there"
    error = OperationTimeoutError(f"the transaction was not applied {within}: {found}")
    error.request_id, error.executed_at = context.request_id, context.executed_at
    return error
