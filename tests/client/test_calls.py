from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from waltz.client.appends.submission import Submission
from waltz.client.applying.callbacks import NoCallbacks, WaltzClientCallbacks
from waltz.client.applying.calls import (
    ApplyOutcome,
    apply_in_order,
    call_for,
    calls_nothing,
    choose_prefetch,
    execute_again,
    is_called_by,
    tell_end,
    tell_exception,
    tell_lock_failure,
    tell_refusal,
)
from waltz.client.applying.transactions import Transactions
from waltz.client.transaction import (
    PartitionLocalLock,
    PlainAppend,
    Transaction,
    TransactionBuilder,
    TransactionContext,
)
from waltz.errors import ClientClosedError, PostponedError
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.fed import FedRun, FedRuns

P0 = PartitionId(0)


def transactions(*ids: int) -> Transactions:
    request_id = RequestId(ClientId(1), Generation(1), P0, 1)
    headers = np.zeros(len(ids), np.int32)
    run = FedRun(TransactionId(ids[0]), [(request_id, len(ids))], headers, [b""] * len(ids))
    return Transactions(FedRuns([run]), lambda _, __: b"")


class Context(TransactionContext):
    """Writes down what it is told in `story`."""

    def __init__(self, story: list[Any], name: str, result: Any = True) -> None:
        self.story = story
        self.name = name
        self.result = result

    def partition_id(self, partition_count: int) -> int:
        return 0

    def execute(self, builder: TransactionBuilder) -> bool:
        self.story.append((self.name, "execute"))
        if isinstance(self.result, Exception):
            raise self.result
        builder.set_data(b"")
        return bool(self.result)

    def on_completion(self, result: bool) -> None:
        self.story.append((self.name, "completion", result))

    def on_application(self) -> None:
        self.story.append((self.name, "application"))
        raise ValueError("a broken callback")

    def on_lock_failure(self, transaction_id: TransactionId) -> None:
        self.story.append((self.name, "lock failure", transaction_id))

    def on_exception(self, error: Exception) -> None:
        self.story.append((self.name, error))


class OneByOne(WaltzClientCallbacks):
    def __init__(self, story: list[Any], errors: dict[int, Exception] | None = None) -> None:
        self.story = story
        self.errors = errors or {}

    def get_client_high_water_mark(self, partition_id: PartitionId) -> int:
        return -1

    def apply_transaction(self, transaction: Transaction) -> None:
        if transaction.transaction_id in self.errors:
            raise self.errors.pop(transaction.transaction_id)
        self.story.append(("apply", transaction.transaction_id))

    def uncaught_exception(
        self, partition_id: PartitionId, transaction_id: TransactionId, error: Exception
    ) -> None:
        self.story.append(("uncaught", partition_id, transaction_id, error))
        raise ValueError("a broken reporter")


class Batches(OneByOne):
    def apply_transactions(self, batch: Sequence[Transaction]) -> None:
        if self.errors:
            raise self.errors.popitem()[1]
        self.story.append(("apply", [each.transaction_id for each in batch]))


def own(story: list[Any], *ids: int) -> dict[TransactionId, Submission]:
    found = {}
    for number in ids:
        made = Submission(number, Context(story, f"own {number}"), P0)
        made.transaction_id = TransactionId(number)
        found[TransactionId(number)] = made
    return found


def test_callbacks_of_an_own_transaction_come_in_the_promised_order() -> None:
    """PM-11, PM-12: completion, apply, the mark moves, application."""
    story: list[Any] = []
    outcome = apply_in_order(
        OneByOne(story),
        P0,
        transactions(4, 5, 6),
        own(story, 5),
        lambda moved: story.append(("mark", moved)),
    )
    assert outcome == ApplyOutcome(TransactionId(6))
    assert story == [
        ("apply", 4),
        ("mark", 4),
        ("own 5", "completion", True),
        ("apply", 5),
        ("mark", 5),
        ("own 5", "application"),
        ("apply", 6),
        ("mark", 6),
    ]


def test_a_batch_is_applied_in_one_call() -> None:
    story: list[Any] = []
    apply_in_order(
        Batches(story),
        P0,
        transactions(4, 5, 6),
        own(story, 4, 6),
        lambda moved: story.append(("mark", moved)),
    )
    assert story == [
        ("own 4", "completion", True),
        ("own 6", "completion", True),
        ("apply", [4, 5, 6]),
        ("mark", 6),
        ("own 4", "application"),
        ("own 6", "application"),
    ]


def test_an_error_stops_at_its_transaction_and_a_repetition_repeats_no_verdict() -> None:
    """PM-29, CI-30."""
    story: list[Any] = []
    error = ValueError("no")
    callbacks = OneByOne(story, {5: error})
    mine = own(story, 5)
    outcome = apply_in_order(callbacks, P0, transactions(4, 5), mine, lambda _: None)
    assert outcome == ApplyOutcome(TransactionId(4), error, is_alone=True)
    assert apply_in_order(callbacks, P0, transactions(5), mine, lambda _: None) == ApplyOutcome(
        TransactionId(5)
    )
    assert story == [
        ("apply", 4),
        ("own 5", "completion", True),
        ("uncaught", P0, 5, error),
        ("apply", 5),
        ("own 5", "application"),
    ]


def test_a_failing_batch_moves_nothing() -> None:
    story: list[Any] = []
    error = ValueError("no")
    outcome = apply_in_order(
        Batches(story, {1: error}), P0, transactions(7, 8), {}, lambda _: pytest.fail("moved")
    )
    assert outcome == ApplyOutcome(TransactionId(6), error)
    assert story == [("uncaught", P0, 7, error)]


@pytest.mark.parametrize("error", [PostponedError("later", 1.0), ClientClosedError("closed")])
def test_what_is_no_failure_is_not_reported(error: Exception) -> None:
    story: list[Any] = []
    outcome = apply_in_order(Batches(story, {1: error}), P0, transactions(7), {}, lambda _: None)
    assert outcome.error is error
    assert story == []


def test_an_expired_context_is_not_told_of_its_application() -> None:
    story: list[Any] = []
    mine = own(story, 4)
    assert mine[TransactionId(4)].claim_verdict()
    apply_in_order(OneByOne(story), P0, transactions(4), mine, lambda _: None)
    assert story == [("apply", 4)]


def test_the_application_chooses_what_is_fetched_ahead() -> None:
    """PM-45."""
    batch = transactions(1, 2, 3)

    class Choosing(Batches):
        def choose_prefetch(self, batch: Sequence[Transaction]) -> Sequence[Transaction]:
            if self.errors:
                raise self.errors.popitem()[1]
            return batch[1:2]

    story: list[Any] = []
    marks: list[TransactionId] = []
    chosen = choose_prefetch(Choosing(story), P0, batch, own(story, 2), marks.append)
    assert chosen == batch[1:2]
    assert story == [("own 2", "completion", True)]
    error = ValueError("no")
    failed = choose_prefetch(Choosing(story, {1: error}), P0, batch, {}, marks.append)
    assert failed == ApplyOutcome(TransactionId(0), error)
    assert marks == []


def test_what_others_have_applied_moves_the_mark_before_the_rest_is_applied() -> None:
    """PM-30: a context that waits for the winner of its lock goes on as soon as that is applied."""

    class Waiting(Batches):
        def choose_prefetch(self, batch: Sequence[Transaction]) -> Sequence[Transaction]:
            raise PostponedError("left to another process", 0.1, applied_through=2)

    story: list[Any] = []
    marks: list[TransactionId] = []
    mine = own(story, 2, 3)
    outcome = choose_prefetch(Waiting(story), P0, transactions(1, 2, 3), mine, marks.append)
    assert isinstance(outcome, ApplyOutcome)
    assert outcome.last_transaction_id == 2
    assert marks == [2]
    assert story == [
        ("own 2", "completion", True),
        ("own 3", "completion", True),
        ("own 2", "application"),
    ]


def at_mark(high_water_mark: int) -> Any:
    """Stand in for the runner of a partition, of which a retry needs the mark alone."""
    application = SimpleNamespace(high_water_mark=TransactionId(high_water_mark))
    return SimpleNamespace(application=application)


def test_a_retry_tells_of_the_lock_and_executes_on_the_newest_mark() -> None:
    """PM-13, PM-40."""
    story: list[Any] = []
    made = Submission(1, Context(story, "it"), P0)
    made.lock_failure = TransactionId(50)
    made.runner = at_mark(51)
    assert execute_again(made) is True
    assert made.client_high_water_mark == 51
    assert story == [("it", "lock failure", 50), ("it", "execute")]


def test_a_retry_that_writes_nothing_or_raises_ends_the_context() -> None:
    """PM-08, PM-09."""
    story: list[Any] = []
    nothing = Submission(1, Context(story, "nothing", result=False), P0)
    nothing.runner = at_mark(0)
    assert execute_again(nothing) is False
    error = ValueError("no")
    raising = Submission(2, Context(story, "raising", result=error), P0)
    raising.runner = at_mark(0)
    assert execute_again(raising) is error
    assert story == [
        ("nothing", "execute"),
        ("nothing", "completion", False),
        ("raising", "execute"),
        ("raising", error),
    ]


def test_a_context_is_told_one_end_only() -> None:
    """PM-10, I5."""
    story: list[Any] = []
    made = Submission(1, Context(story, "it"), P0)
    tell_refusal(made)
    tell_exception(made, ValueError())
    tell_end(made, ClientClosedError("closed"))
    assert story == [("it", "completion", False)]


def test_closing_tells_what_is_known() -> None:
    """PM-44: what the feed has shown is in the log, whether applied or not."""
    story: list[Any] = []
    error = ClientClosedError("closed")
    tell_end(own(story, 3)[TransactionId(3)], error)
    tell_end(Submission(4, Context(story, "unknown"), P0), error)
    assert story == [("own 3", "completion", True), ("unknown", error)]


def test_who_is_inside_a_callback_knows_whose() -> None:
    one, other = object(), object()
    assert not is_called_by(one)
    assert call_for(one, lambda: (is_called_by(one), is_called_by(other))) == (True, False)
    assert not is_called_by(one)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_refused_context_is_told_the_lock_if_the_server_has_said_which(is_known: bool) -> None:
    """PM-24."""
    lock = PartitionLocalLock("account", 7)
    told: list[object] = []

    class Refused(PlainAppend):
        def on_lock_failure(self, transaction_id: TransactionId) -> None:
            told.extend((transaction_id, self.refused_lock))

    locks = [PartitionLocalLock("other", 1), lock]
    made = Submission(1, Refused(2, b"data", read_locks=locks), PartitionId(2))
    made.execute(TransactionId(0))
    made.lock_failure = TransactionId(50)
    made.refused_lock_hash = lock.hash if is_known else None
    tell_lock_failure(made)
    tell_lock_failure(made)
    assert told == [50, lock if is_known else None]


def test_the_name_of_before_is_refused_and_not_passed_over() -> None:
    with pytest.raises(TypeError, match=r"Late.on_lock_refusal: override on_lock_failure"):
        type("Late", (PlainAppend,), {"on_lock_refusal": lambda *_: None})


def test_a_worker_is_needed_only_for_code_of_the_application() -> None:
    class Own(PlainAppend):
        pass

    class Follower(NoCallbacks):
        pass

    plain, own = Submission(1, PlainAppend(0, b""), P0), Submission(2, Own(0, b""), P0)
    assert calls_nothing(NoCallbacks(), {})
    assert calls_nothing(NoCallbacks(), {TransactionId(0): plain})
    assert not calls_nothing(NoCallbacks(), {TransactionId(0): plain, TransactionId(1): own})
    assert not calls_nothing(Follower(), {TransactionId(0): plain})
