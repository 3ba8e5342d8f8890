"""A transaction that cannot be applied is there to be seen, and stops its own partition only."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

import waltz
from tests.client.applications import Recorder
from tests.clusters import wait_until
from waltz.client.transaction import Transaction
from waltz.testing import InMemoryCluster
from waltz.types import PartitionId, TransactionId


class Poisoned(Recorder):
    """Cannot apply transaction 1 of partition 0 until it is cured."""

    def __init__(self) -> None:
        super().__init__()
        self.cured = threading.Event()

    def apply_transaction(self, transaction: Transaction) -> None:
        is_poison = (transaction.partition_id, transaction.transaction_id) == (0, 1)
        if is_poison and not self.cured.is_set():
            raise ValueError("poison")
        super().apply_transaction(transaction)


def test_what_cannot_be_applied_is_named_and_the_rest_flows() -> None:
    """PM-38: with how often it was tried, until it can be."""
    with InMemoryCluster(for_tests=True, partitions=2) as cluster:
        poisoned = Poisoned()
        client = cluster.open_client(poisoned)
        writer = cluster.open_client(Recorder())
        assert client.blocked_partitions() == {}
        for number in range(3):
            writer.append(0, b"%d" % number)

        def attempts() -> int:
            blocked = client.blocked_partitions().get(0)  # type: ignore[call-overload]
            return 0 if blocked is None else blocked.attempts

        wait_until(lambda: attempts() >= 2, "it is not tried again")
        found = client.blocked_partitions()
        assert list(found) == [0]
        (blocked,) = found.values()
        assert blocked.transaction_id == 1
        assert repr(blocked.error) == "ValueError('poison')"
        assert writer.append(1, b"") == 0
        wait_until(lambda: poisoned.applied_in(1) == [0], "the other partition is blocked, too")
        assert poisoned.applied_in(0) == [0]
        poisoned.cured.set()
        wait_until(lambda: poisoned.applied_in(0) == [0, 1, 2], "it is not applied")
        wait_until(lambda: not client.blocked_partitions(), "it is still called blocked")


def test_a_partition_that_is_blocked_can_be_left() -> None:
    """Leaving flushes first, and what is in the way ends the flush, not the leaving."""
    with InMemoryCluster(for_tests=True, partitions=2) as cluster:
        poisoned = Poisoned()
        client = cluster.open_client(poisoned, partitions=[0], blocked_seconds_max=0.001)
        for _ in range(2):
            client.submit(waltz.PlainAppend(0, b""))
        wait_until(lambda: 0 in client.blocked_partitions(), "it is not blocked")
        client.set_partitions([1])
        assert client.append(1, b"") == 0
        assert client.blocked_partitions() == {}


def test_a_mark_that_cannot_be_read_is_one_traceback_and_a_line_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = 3

    class Failing(Recorder):
        def get_client_high_water_mark(self, partition_id: PartitionId) -> TransactionId:
            nonlocal failures
            if failures:
                failures -= 1
                raise ValueError("no mark\nin two lines")
            return super().get_client_high_water_mark(partition_id)

    with InMemoryCluster(for_tests=True) as cluster:
        assert cluster.open_client(Failing()).append(0, b"") == 0
    lines = [each for each in caplog.records if each.getMessage().startswith("mark_failed")]
    assert [each.exc_info is not None for each in lines] == [True, False, False]
    assert lines[2].getMessage() == (
        "mark_failed partition=0 attempt=3 error='ValueError: no mark in two lines'"
    )


class Shared(Recorder):
    """Cannot apply what comes first; another process does, and the rest is left to it for now."""

    def __init__(self) -> None:
        super().__init__()
        self.attempts = 0

    def apply_transactions(self, transactions: Sequence[Transaction]) -> None:
        self.attempts += 1
        first = transactions[0].transaction_id
        if self.attempts <= 3:
            raise ValueError("poison")
        raise waltz.PostponedError("left to another process", 60.0, first)


def test_what_another_process_has_applied_is_called_blocked_no_more() -> None:
    with InMemoryCluster(for_tests=True) as cluster:
        writer = cluster.open_client(Recorder())
        for _ in range(2):
            writer.append(0, b"x")
        client = cluster.open_client(Shared())
        wait_until(lambda: bool(client.blocked_partitions()), "it is not called blocked")
        wait_until(lambda: client.client_high_water_mark(0) == 0, "it is not passed")
        wait_until(lambda: not client.blocked_partitions(), "it is still called blocked")
        (figures,) = client.metrics().partitions
        assert figures.blocked_seconds is None
