"""Calls the application's callbacks in the promised order: on a worker, never on the loop.

Owns the order of callbacks and the handling of their errors. Knows nothing of threads: the caller
of these functions is on a worker's thread, unless no code of the application is called. Order per
own transaction: on_completion(True), apply, the mark moves, on_application (PM-11, PM-12).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from waltz.client.appends.submission import Submission
from waltz.client.applying.callbacks import NoCallbacks, WaltzClientCallbacks
from waltz.client.applying.transactions import Transactions
from waltz.client.transaction import PlainAppend, Transaction
from waltz.cluster.histories import Histories
from waltz.errors import ClientClosedError, LocalProtocolError, PostponedError
from waltz.types import PartitionId, TransactionId

T = TypeVar("T")

logger = logging.getLogger(__name__)

TAKE_OVER_RETRY_SECONDS: Final = 0.1
"""Time until an application is asked again whose mark has moved while it took over a history."""

_CALLED_BY: ContextVar[object] = ContextVar("waltz_called_by", default=None)


def call_for(client: object, function: Callable[[], T]) -> T:
    """Call `function`, marked as a callback of `client`."""
    token = _CALLED_BY.set(client)
    try:
        return function()
    finally:
        _CALLED_BY.reset(token)


def is_called_by(client: object) -> bool:
    """Return whether the caller is inside a callback of `client`, where it must not wait for the
    client."""
    return _CALLED_BY.get() is client


def refuse_inside_callbacks(client: object, verb: str) -> None:
    """Raises LocalProtocolError: the caller is inside a callback of `client`."""
    if _CALLED_BY.get() is client:
        raise inside_callback(verb)


def inside_callback(verb: str) -> LocalProtocolError:
    return LocalProtocolError(
        f"{verb} was called inside a callback and would wait for that callback; call it elsewhere"
    )


def calls_nothing(callbacks: WaltzClientCallbacks, own: Mapping[TransactionId, Submission]) -> bool:
    """Return whether applying runs no code of the application, and so needs no worker."""
    kinds = {type(submission.context) for submission in own.values()}
    return type(callbacks) is NoCallbacks and kinds <= {PlainAppend}


class LoadedMark(NamedTuple):
    """The last transaction that an application has applied in a partition, and its stored history,
    None if it keeps none."""

    high_water_mark: TransactionId | int | None
    history: UUID | None


def load_mark(
    callbacks: WaltzClientCallbacks,
    histories: Histories,
    partition_id: PartitionId,
    partition_count: int,
) -> LoadedMark:
    """Ask the application for its mark, check that all it has applied is of this log, and let it
    take over the history of what follows.

    Raises HistoryChangedError: it is of another cluster, or of a part of the log that a restore has
    ended; PostponedError: another process has changed the mark, or the history, meanwhile.
    """
    mark = callbacks.get_client_high_water_mark(partition_id)
    if mark is None or not _keeps_history(callbacks):
        return LoadedMark(mark, None)

    def check_others() -> None:
        """One partition that may not go on is enough: none of the others does."""
        seen: Mapping[PartitionId, int] | None = getattr(callbacks, "seen_high_water_marks", None)
        for other in map(PartitionId, range(partition_count)):
            history = callbacks.get_client_history(other)
            applied: int | None = None
            if seen is not None:
                applied = seen.get(other)
            elif histories.restores:
                applied = callbacks.get_client_high_water_mark(other)
            histories.check(other, history, applied)

    current = histories.current
    stored = callbacks.get_client_history(partition_id)
    histories.check(partition_id, stored, mark)
    if stored == current:
        return LoadedMark(mark, stored)
    check_others()
    callbacks.keep_client_history(partition_id, current, stored)
    # Read again: another process, at another cluster, may have written its history first, or one
    # that has not noticed the restore may have gone on.
    before, mark = mark, callbacks.get_client_high_water_mark(partition_id)
    stored = callbacks.get_client_history(partition_id)
    histories.check(partition_id, stored, mark)
    check_others()
    if stored is None and mark == before:
        return LoadedMark(mark, None)  # it wraps an application that keeps none
    if stored != current:
        raise PostponedError(
            f"the mark of partition {partition_id} moved while history {current} was taken over",
            TAKE_OVER_RETRY_SECONDS,
        )
    return LoadedMark(mark, stored)


def _keeps_history(callbacks: WaltzClientCallbacks) -> bool:
    """Return whether the application is bound to its log; callbacks need not inherit from
    WaltzClientCallbacks."""
    keeps: bool | None = getattr(callbacks, "keeps_client_history", None)
    return hasattr(callbacks, "get_client_history") if keeps is None else keeps


@dataclass(frozen=True, slots=True)
class ApplyOutcome:
    """`error` is None if everything was applied; PostponedError is no failure. `is_alone`: the
    error is that of the next transaction alone, and not of several that were applied together."""

    last_transaction_id: TransactionId
    error: Exception | None = None
    is_alone: bool = False


def follow_on(
    callbacks: WaltzClientCallbacks,
    histories: Histories,
    transactions: Transactions,
    partition_count: int,
) -> ApplyOutcome | None:
    """Let the application take over the history of `transactions`, which it is about to apply; an
    outcome if it may not, or fails."""
    try:
        load_mark(callbacks, histories, transactions.partition_id, partition_count)
    except Exception as error:  # as when applying
        return ApplyOutcome(TransactionId(transactions.first_transaction_id - 1), error)
    return None


def apply_in_order(
    callbacks: WaltzClientCallbacks,
    partition_id: PartitionId,
    transactions: Transactions,
    own: Mapping[TransactionId, Submission],
    move_mark: Callable[[TransactionId], None],
    *,
    report: bool = True,
) -> ApplyOutcome:
    """Apply `transactions`, dense and in order, and notify the contexts in `own`.

    With `report` an error goes to the application's `uncaught_exception`.
    """
    in_batches = getattr(callbacks, "apply_transactions", None)
    if in_batches is None:
        return _apply_one_by_one(callbacks, partition_id, transactions, own, move_mark)
    for submission in own.values():
        tell_completion(submission)
    last = transactions.last_transaction_id
    try:
        in_batches(transactions)
    except Exception as error:  # whatever an application raises blocks only its partition
        told = callbacks if report else None
        return _failed(told, partition_id, transactions, own, move_mark, error)
    move_mark(last)
    for submission in own.values():
        _tell_application(submission)
    return ApplyOutcome(last)


def apply_narrowed(
    callbacks: WaltzClientCallbacks,
    partition_id: PartitionId,
    transactions: Transactions,
    own: Mapping[TransactionId, Submission],
    move_mark: Callable[[TransactionId], None],
) -> ApplyOutcome:
    """Apply like `apply_in_order`, in ever smaller batches, until the transaction that cannot be
    applied is alone.

    `uncaught_exception` is called for that transaction only.
    """
    left, count = transactions, (len(transactions) + 1) // 2
    while True:
        part = left.first(count)
        first, last = part.first_transaction_id, part.last_transaction_id
        chosen = {each: own[each] for each in own if first <= each <= last}
        outcome = apply_in_order(
            callbacks, partition_id, part, chosen, move_mark, report=len(part) == 1
        )
        error = outcome.error
        if error is not None:
            if outcome.is_alone or isinstance(error, PostponedError | ClientClosedError):
                return outcome
            count = (count + 1) // 2
            continue
        left = left.after(outcome.last_transaction_id)
        if not len(left):
            return outcome


def choose_prefetch(
    callbacks: WaltzClientCallbacks,
    partition_id: PartitionId,
    transactions: Transactions,
    own: Mapping[TransactionId, Submission],
    move_mark: Callable[[TransactionId], None],
) -> Sequence[Transaction] | ApplyOutcome:
    """Return which of `transactions` to fetch ahead; an outcome if choosing failed.

    Contexts of a batch learn of its success first: applying may be left to another process for a
    while.
    """
    if hasattr(callbacks, "apply_transactions"):
        for submission in own.values():
            tell_completion(submission)
    choose = getattr(callbacks, "choose_prefetch", None)
    if callbacks.prefetch or choose is None:
        return transactions
    try:
        chosen: Sequence[Transaction] = choose(transactions)
    except Exception as error:  # as when applying
        return _failed(callbacks, partition_id, transactions, own, move_mark, error)
    return chosen


def _failed(
    callbacks: WaltzClientCallbacks | None,
    partition_id: PartitionId,
    transactions: Transactions,
    own: Mapping[TransactionId, Submission],
    move_mark: Callable[[TransactionId], None],
    error: Exception,
) -> ApplyOutcome:
    """Return the outcome of a failure; what was applied all the same moves the mark.

    `callbacks` None: the error is not reported yet.
    """
    first = transactions.first_transaction_id
    last = TransactionId(first - 1)
    if isinstance(error, PostponedError) and error.applied_through is not None:
        last = TransactionId(min(error.applied_through, transactions.last_transaction_id))
    if last >= first:
        move_mark(last)
        for transaction_id, submission in own.items():
            if transaction_id <= last:
                _tell_application(submission)
        return ApplyOutcome(last, error)
    if callbacks is not None:
        _report(callbacks, partition_id, first, error)
    return ApplyOutcome(TransactionId(first - 1), error, is_alone=len(transactions) == 1)


def _apply_one_by_one(
    callbacks: WaltzClientCallbacks,
    partition_id: PartitionId,
    transactions: Transactions,
    own: Mapping[TransactionId, Submission],
    move_mark: Callable[[TransactionId], None],
) -> ApplyOutcome:
    apply = callbacks.apply_transaction
    for transaction in transactions:
        transaction_id = transaction.transaction_id
        submission = own.get(transaction_id) if own else None
        if submission is not None:
            tell_completion(submission)
        try:
            apply(transaction)
        except Exception as error:  # as above
            _report(callbacks, partition_id, transaction_id, error)
            return ApplyOutcome(TransactionId(transaction_id - 1), error, is_alone=True)
        move_mark(transaction_id)
        if submission is not None:
            _tell_application(submission)
    return ApplyOutcome(transactions.last_transaction_id)


def _report(
    callbacks: WaltzClientCallbacks,
    partition_id: PartitionId,
    transaction_id: TransactionId,
    error: Exception,
) -> None:
    if isinstance(error, PostponedError | ClientClosedError):
        return
    try:
        callbacks.uncaught_exception(partition_id, transaction_id, error)
    except Exception:  # a broken reporter must not stop what it reports on
        logger.exception("callback_failed callback=uncaught_exception partition=%d", partition_id)


def tell_completion(submission: Submission) -> None:
    """Notify the context, once, that it is in the log."""
    if submission.claim_verdict():
        submission.completed = True
        try:
            submission.context.on_completion(True)
        except Exception:
            _note_failure("on_completion")


def tell_refusal(submission: Submission) -> None:
    """Notify the context, once, that it is not in the log and never will be."""
    if submission.claim_verdict():
        _tell("on_completion", submission.context.on_completion, False)


def tell_exception(submission: Submission, error: Exception) -> None:
    """Notify the context, once, that it ends with `error`."""
    if submission.claim_verdict():
        _tell("on_exception", submission.context.on_exception, error)


def tell_expiration(submission: Submission) -> None:
    """Notify a context, whose verdict the caller has claimed, that its time is up."""
    _tell("on_expiration", submission.context.on_expiration)


def tell_end(submission: Submission, error: Exception) -> None:
    """Notify a context of its state when its client closes."""
    if submission.transaction_id is not None:
        tell_completion(submission)
    else:
        tell_exception(submission, error)


def tell_lock_failure(submission: Submission) -> None:
    """Notify the context of the lock it was refused for, if it was."""
    transaction_id, submission.lock_failure = submission.lock_failure, None
    if transaction_id is not None:
        # Contexts may be frozen dataclasses.
        object.__setattr__(submission.context, "refused_lock", submission.refused_lock())
        _tell("on_lock_failure", submission.context.on_lock_failure, transaction_id)


def execute_again(submission: Submission) -> Exception | bool:
    """Execute a failed context again. Return True to send it, False if it has ended.

    An exception of `execute` has been passed to the context and is returned (PM-09, PM-40). One
    that has been told its end while it waited for this thread is called no more.
    """
    if not submission.undecided:
        return True  # the call that told it ends it, and what has ended is not sent
    tell_lock_failure(submission)
    try:
        if submission.execute(submission.runner.application.high_water_mark):
            return True
    except Exception as error:  # whatever an application raises ends its context only
        tell_exception(submission, error)
        return error
    tell_refusal(submission)
    return False


def _tell_application(submission: Submission) -> None:
    if submission.completed:
        try:
            submission.context.on_application()
        except Exception:
            _note_failure("on_application")


def _tell(callback: str, function: Callable[..., object], *arguments: object) -> None:
    try:
        function(*arguments)
    except Exception:
        _note_failure(callback)


def _note_failure(callback: str) -> None:
    """Log what a notification raised; the verdict it tells does not change."""
    logger.exception("callback_failed callback=%s", callback)
