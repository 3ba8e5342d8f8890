from __future__ import annotations

from threading import Barrier, Thread

import pytest

from waltz.client.appends.submission import Submission, checked_partition
from waltz.client.transaction import PlainAppend, TransactionBuilder, TransactionContext
from waltz.errors import LocalProtocolError, NotFoundError
from waltz.types import PartitionId, TransactionId


class Empty(TransactionContext):
    def __init__(self, *, write: bool) -> None:
        self._write = write

    def partition_id(self, partition_count: int) -> int:
        return partition_count

    def execute(self, builder: TransactionBuilder) -> bool:
        return self._write


def test_an_execution_keeps_the_mark_it_was_based_on() -> None:
    made = Submission(1, PlainAppend(0, b"x"), PartitionId(0))
    assert made.execute(TransactionId(4))
    assert made.execute(TransactionId(9))
    assert (made.client_high_water_mark, made.attempts) == (9, 2)
    assert made.draft is not None


def test_an_execution_that_writes_nothing_makes_no_draft() -> None:
    """PM-08."""
    made = Submission(1, Empty(write=False), PartitionId(0))
    assert not made.execute(TransactionId(0))
    assert made.draft is None


def test_an_execution_without_data_is_refused() -> None:
    """PM-19."""
    with pytest.raises(LocalProtocolError, match="no transaction data set"):
        Submission(1, Empty(write=True), PartitionId(0)).execute(TransactionId(0))


def test_a_partition_out_of_range_is_named() -> None:
    """PM-06."""
    with pytest.raises(NotFoundError, match="partition 3 chosen by Empty; expected 0 to 2"):
        checked_partition(Empty(write=True), 3)
    assert checked_partition(PlainAppend(2, b""), 3) == 2


def test_of_many_threads_one_tells_the_verdict() -> None:
    """I5."""
    made = Submission(1, PlainAppend(0, b""), PartitionId(0))
    won: list[bool] = []
    barrier = Barrier(8)

    def race() -> None:
        barrier.wait()
        won.append(made.claim_verdict())

    threads = [Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 7 + [True]
    assert not made.undecided
