"""The decisions of callbacks for databases, on a database that is a dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from tests.client.sql_applications import P0, transactions
from waltz.client.databases.marked_callbacks import MarkedCallbacks
from waltz.client.databases.stored_marks import StoredMark
from waltz.client.transaction import Transaction
from waltz.errors import HistoryChangedError, NotFoundError, PostponedError
from waltz.types import NOTHING, PartitionId, TransactionId


class AwayError(Exception):
    """The database does not answer."""


class InDictionary(MarkedCallbacks):
    """Keeps marks and numbers of transactions in `stored` and `applied`, which processes share."""

    def __init__(
        self,
        stored: dict[PartitionId, StoredMark],
        preferred: Sequence[int] | None = None,
    ) -> None:
        super().__init__(preferred, patience_seconds=0.01)
        self.stored = stored
        self.applied: list[int] = []
        self.is_away = False
        self.again: list[TransactionId] = []
        self.notes: list[str] = []

    def _make_ready(self) -> None:
        self._stored_marks()

    def _stored_marks(self) -> dict[PartitionId, StoredMark]:
        if self.is_away:
            raise AwayError
        return dict(self.stored)

    def _insert_mark(self, partition_id: PartitionId) -> None:
        self.stored.setdefault(partition_id, StoredMark(NOTHING, None))

    def _replace_history(
        self, partition_id: PartitionId, mark: TransactionId, history: UUID, before: UUID | None
    ) -> None:
        if self.stored[partition_id] == StoredMark(mark, before):
            self.stored[partition_id] = StoredMark(mark, history)

    def _change(
        self, partition_id: PartitionId, rest: Sequence[Transaction], expected: TransactionId
    ) -> bool:
        history = self._progress_of(partition_id).history
        if self.stored[partition_id] != StoredMark(expected, history):
            return False
        self._move(partition_id, rest[-1].transaction_id)
        self.applied += [each.transaction_id for each in rest]
        return True

    def _move(self, partition_id: PartitionId, mark: TransactionId) -> None:
        self.stored[partition_id] = replace(self.stored[partition_id], high_water_mark=mark)

    def _keep_apart(self, transaction: Transaction, text: str) -> None:
        self._move(transaction.partition_id, transaction.transaction_id)
        self.notes.append(text)

    def _wanted_again(self, partition_id: PartitionId) -> Sequence[TransactionId]:
        return self.again

    def _reads(self, transaction: Transaction) -> bool:
        return self.wants_data(transaction)

    def _stays_parked(self, partition_id: PartitionId, number: TransactionId, text: str) -> None:
        self.notes.append(f"{number}: {text}")

    def apply_parked(self, partition_id: int, transaction_id: int) -> None:
        if transaction_id == 7:
            raise NotFoundError("another process was faster")
        if transaction_id == 8:
            raise ValueError("never")
        if transaction_id == 9:
            raise AwayError

    def _is_away(self, error: Exception) -> bool:
        return isinstance(error, AwayError)

    def _driver_error(self, error: Exception) -> BaseException | None:
        return error if isinstance(error, AwayError) else None


def test_one_of_two_processes_applies_and_the_other_reads_how_far_it_is() -> None:
    """PM-52."""
    stored: dict[PartitionId, StoredMark] = {}
    one, two = InDictionary(stored), InDictionary(stored)
    assert one.get_client_high_water_mark(P0) == two.get_client_high_water_mark(P0) == NOTHING
    one.apply_transactions(transactions(0, 3))
    two.apply_transactions(transactions(0, 5))
    one.apply_transactions(transactions(3, 5))
    assert (one.applied, two.applied) == ([0, 1, 2], [3, 4])


def test_a_database_that_follows_another_history_meanwhile_is_left_alone() -> None:
    callbacks = InDictionary({})
    callbacks.get_client_high_water_mark(P0)
    callbacks.keep_client_history(P0, UUID(int=1), None)
    assert callbacks.get_client_history(P0) == UUID(int=1)
    callbacks.stored[P0] = StoredMark(NOTHING, UUID(int=2))
    with pytest.raises(HistoryChangedError, match="now belongs to history"):
        callbacks.apply_transactions(transactions(0, 1))
    assert callbacks.applied == []


def test_parked_transactions_are_tried_again_unless_the_database_is_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """PM-38."""
    callbacks = InDictionary({})
    callbacks.again = [TransactionId(number) for number in (7, 8)]
    callbacks.get_client_high_water_mark(P0)
    assert callbacks.notes == ["8: ValueError: never"]
    assert "error='ValueError: never'; it stays in waltz_parked" in caplog.text
    callbacks.again = [TransactionId(9), TransactionId(8)]
    for readings in (1, 2):
        with pytest.raises(PostponedError) as raised:
            callbacks.get_client_high_water_mark(P0)
        assert raised.value.delay_seconds == 0.01 * readings
    callbacks.park(transactions(0, 1)[0], ValueError("bad"))
    assert callbacks.notes[-1] == "ValueError: bad"
    assert callbacks.choose_prefetch(transactions(0, 1)) == []


def test_a_process_that_prefers_nothing_has_patience_until_the_time_is_up() -> None:
    callbacks = InDictionary({}, preferred=[])
    callbacks.get_client_high_water_mark(P0)
    waited = 0.0
    while waited < 0.01:
        with pytest.raises(PostponedError, match="left to another process") as raised:
            callbacks.choose_prefetch(transactions(0, 1))
        waited += raised.value.delay_seconds
    assert len(callbacks.choose_prefetch(transactions(0, 1))) == 1
    callbacks.is_away = True
    with pytest.raises(PostponedError, match="database failed"):
        callbacks.choose_prefetch(transactions(0, 1))
