"""What is noticed of an application that does not keep its marks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from uuid import UUID

import pytest
import sqlalchemy

from tests.client.applications import Recorder
from tests.client.sql_applications import APPLIED, P0, Applying, transactions
from waltz.client.applying.callbacks import NoCallbacks, WaltzClientCallbacks
from waltz.client.applying.calls import load_mark
from waltz.client.transaction import Transaction
from waltz.cluster.histories import Histories
from waltz.cluster.log_history import LogHistory
from waltz.errors import HistoryChangedError
from waltz.testing.watching import WatchedCallbacks
from waltz.types import PartitionId, TransactionId


class Keeping(Recorder):
    """Says the mark that it is told to say."""

    said = -1

    def get_client_high_water_mark(self, partition_id: int) -> TransactionId:
        return TransactionId(self.said)


class Batches(Keeping):
    def apply_transactions(self, transactions: Sequence[Transaction]) -> None:
        self.said = transactions[-1].transaction_id
        assert [each.data for each in transactions] == [b"", b""]

    def choose_prefetch(self, transactions: Sequence[Transaction]) -> Sequence[Transaction]:
        return transactions[:1]


def watched(
    inner: WaltzClientCallbacks, before: WatchedCallbacks | None = None
) -> WatchedCallbacks:
    return WatchedCallbacks(inner, "client-0", lambda: None, before)


def test_a_mark_that_lags_is_noticed() -> None:
    callbacks = watched(Keeping())
    callbacks.apply_transaction(transactions(4, 5)[0])
    (violation,) = callbacks.violations
    assert violation == (
        "client-0 has applied transaction 4 of partition 0, and says -1: it would be applied again"
        " after a crash"
    )


def test_an_application_is_bound_to_its_cluster_in_a_simulation_too() -> None:
    """Each of its two functions is a place where the process may die."""

    class Bound(Keeping):
        history: UUID | None = None

        def get_client_history(self, partition_id: PartitionId) -> UUID | None:
            return self.history

        def keep_client_history(
            self, partition_id: PartitionId, history: UUID, before: UUID | None
        ) -> None:
            self.history = history

    operations: list[None] = []
    callbacks = WatchedCallbacks(Bound(), "client-0", lambda: operations.append(None))
    load = partial(load_mark, callbacks, partition_id=P0, partition_count=2)
    assert load(histories=Histories(UUID(int=1))).history == UUID(int=1)
    assert len(operations) >= 4
    with pytest.raises(HistoryChangedError):
        load(histories=Histories(UUID(int=2)))


def test_an_application_without_a_history_is_not_refused_after_a_restore() -> None:
    """A wrapper says what the application that it wraps does."""
    inner = Keeping()
    inner.said = 9
    restored = Histories(UUID(int=1), (LogHistory(UUID(int=2), 0, {P0: TransactionId(4)}),))
    assert load_mark(inner, restored, P0, 1) == (9, None)
    assert load_mark(watched(inner), restored, P0, 1) == (9, None)


def test_a_mark_that_goes_back_with_its_process_is_noticed() -> None:
    inner = Keeping()
    inner.said = 4
    before = watched(inner)
    before.apply_transaction(transactions(4, 5)[0])
    after = watched(Keeping(), before)
    assert after.get_client_high_water_mark(P0) == -1
    (violation,) = after.violations
    assert violation == (
        "client-0 has applied partition 0 through 4, and now says -1: transactions would be applied"
        " twice"
    )


def test_batches_and_what_is_chosen_are_the_applications() -> None:
    callbacks = watched(Batches(prefetch=False))
    assert not callbacks.prefetch
    callbacks.apply_transactions(transactions(0, 2))
    assert callbacks.violations == []
    assert len(callbacks.choose_prefetch(transactions(0, 2))) == 1
    assert watched(Keeping(prefetch=False)).prefetch, "nobody may wait for data"
    assert not hasattr(watched(Keeping()), "apply_transactions")


def test_who_only_writes_promises_nothing() -> None:
    callbacks = watched(NoCallbacks())
    callbacks.apply_transactions(transactions(0, 2))
    assert callbacks.get_client_high_water_mark(P0) is None
    assert callbacks.violations == []


def test_a_process_may_die_when_data_is_asked_for() -> None:
    class Death(BaseException): ...

    left = [1]

    def operation() -> None:
        if not left:
            raise Death
        left.pop()

    callbacks = WatchedCallbacks(Keeping(), "client-0", operation)
    with pytest.raises(Death):
        callbacks.apply_transaction(transactions(0, 1)[0])
    assert callbacks.applied == {}


def test_the_last_error_is_kept() -> None:
    callbacks = watched(Keeping())
    error = ValueError()
    callbacks.uncaught_exception(P0, TransactionId(3), error)
    assert callbacks.errors == {P0: error}


def test_a_process_may_die_before_each_statement_of_a_database_transaction() -> None:
    """And what it had done is not there then; the next process does it."""

    class DeadError(BaseException):
        pass

    engine = sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.StaticPool)
    APPLIED.create(engine)
    deaths = 0
    for left in range(30):
        operations = itertools.count()

        def operation(left: int = left, operations: Iterator[int] = operations) -> None:
            if next(operations) >= left:
                raise DeadError

        callbacks = WatchedCallbacks(Applying(engine), "client-0", operation)
        before = Applying(engine).get_client_high_water_mark(P0)
        try:
            callbacks.apply_transactions(transactions(before + 1, before + 3))
        except DeadError:
            deaths += 1
        mark = Applying(engine).get_client_high_water_mark(P0)
        assert mark in (before, before + 2)
        with engine.connect() as connection:
            assert (
                connection.exec_driver_sql("SELECT count(*) FROM applied").scalar_one() == mark + 1
            )
    assert deaths > 4, "around the whole, and before each statement"


def test_statements_of_other_processes_and_of_contexts_are_not_its_own() -> None:
    engine = sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.StaticPool)
    APPLIED.create(engine)
    passed: list[str] = []
    one, other = (
        WatchedCallbacks(Applying(engine), name, partial(passed.append, name)) for name in "ab"
    )
    one._inner.get_client_high_water_mark(P0)
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT 1")
    assert passed == []
    other.apply_transactions(transactions(0, 1))
    assert {*passed} == {"b"}
    assert len(passed) > 2
