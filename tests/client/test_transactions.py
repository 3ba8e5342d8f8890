"""What is handed to an application: made when it is asked for, and once."""

from __future__ import annotations

import numpy as np
import pytest

from tests.client.partition_world import ME, OTHER, request, submission
from waltz.client.applying import transactions as transactions_module
from waltz.client.applying.transactions import ClientRun, Transactions, client_runs
from waltz.client.bulk import Bulk, BulkRows, ManyAppends
from waltz.types import PartitionId, TransactionId
from waltz.wire.fed import FedRun, FedRuns


class Fetcher:
    def __init__(self) -> None:
        self.asked: list[TransactionId] = []

    def __call__(self, partition_id: PartitionId, transaction_id: TransactionId) -> bytes:
        self.asked.append(transaction_id)
        return b"%d" % transaction_id


RUNS = FedRuns(
    [
        FedRun(TransactionId(5), [(request(1, client_id=OTHER), 2)], np.array([1, 2], np.int32)),
        FedRun(TransactionId(7), [(request(4), 1)], np.array([3], np.int32), [b"came along"]),
    ]
)


def test_they_are_a_sequence_and_columns() -> None:
    """PM-28."""
    made = Transactions(RUNS, Fetcher())
    assert (made.first_transaction_id, made.last_transaction_id, len(made)) == (5, 7, 3)
    assert made.headers.tolist() == [1, 2, 3]
    assert [each.transaction_id for each in made] == [5, 6, 7]
    assert [each.request_id.sequence_number for each in made] == [1, 2, 4]
    assert made[-1].data == b"came along"
    assert made[0:2] == [made[0], made[1]]


def test_runs_of_one_client_each_are_told_without_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, others, own = TransactionId(5), request(1, client_id=OTHER), request(4)
    runs = FedRuns(
        [
            FedRun(first, [(others, 2), (request(9, client_id=OTHER), 1)], np.zeros(3, np.int32)),
            FedRun(TransactionId(8), [(request(3, client_id=OTHER), 1)], np.zeros(1, np.int32)),
            FedRun(TransactionId(9), [(own, 2)], np.zeros(2, np.int32)),
        ]
    )
    truth = [
        ClientRun(own.partition_id, OTHER, first, slice(0, 4)),
        ClientRun(own.partition_id, ME, TransactionId(9), slice(4, 6)),
    ]
    made = Transactions(runs, Fetcher())
    assert list(client_runs([*Transactions(runs, Fetcher())])) == truth
    assert list(client_runs(made.after(TransactionId(7)))) == [
        ClientRun(own.partition_id, OTHER, TransactionId(8), slice(0, 1)),
        ClientRun(own.partition_id, ME, TransactionId(9), slice(1, 3)),
    ]
    monkeypatch.setattr(transactions_module, "Transaction", None)
    assert list(client_runs(made)) == truth


def test_data_is_fetched_once_whoever_goes_on_later() -> None:
    """PM-31, PM-38."""
    fetch = Fetcher()
    made = Transactions(RUNS, fetch)
    assert [each.data for each in made] == [b"5", b"6", b"came along"]
    left = made.after(TransactionId(5))
    assert [each.data for each in left] == [b"6", b"came along"]
    assert fetch.asked == [5, 6]


def test_those_that_nobody_looked_at_are_left_as_they_were() -> None:
    left = Transactions(RUNS, Fetcher()).after(TransactionId(6))
    assert [(each.transaction_id, each.header) for each in left] == [(7, 3)]


def test_own_data_is_here_already() -> None:
    """PM-31: of contexts, and of rows."""
    rows = ManyAppends(2, BulkRows([b"row", b"elsewhere"]))
    bulk = Bulk(rows.rows, rows.transaction_ids)
    bulk.commit(np.array([0]), np.array([6]))
    fetch = Fetcher()
    own = {TransactionId(5): submission()}
    made = Transactions(RUNS, fetch, own, [bulk])
    assert [each.data for each in made] == [b"hello", b"row", b"came along"]
    assert fetch.asked == []
    assert ME in {each.request_id.client_id for each in made}
