"""Transactions that cannot be applied, in databases of each kind: waited for, parked, given up."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError

import waltz
from tests.client.conftest import OpenEngine
from tests.client.sql_applications import APPLIED, P0, Applying, rows, transactions
from tests.clusters import wait_until
from waltz import LocalProtocolError, NotFoundError, PartitionBlockedError
from waltz.client.databases.sql_tables import RETRY, ParkedTable, skip
from waltz.client.transaction import Transaction
from waltz.errors import ConfigurationError
from waltz.testing import InMemoryCluster
from waltz.types import TransactionId


class Poisoned(Applying):
    """Cannot apply what has a header of 13; applies the rest."""

    poison = 13

    def wants_data(self, transaction: Transaction) -> bool:
        return True

    def apply(self, connection: sql.Connection, transactions: Sequence[Transaction]) -> None:
        super().apply(connection, transactions)
        if any(each.header == self.poison for each in transactions):
            raise ValueError("a poisoned transaction\nwith two lines")


def fill(cluster: InMemoryCluster, *headers: int) -> None:
    with cluster.open_client(waltz.NoCallbacks()) as client:
        for header in headers:
            client.append(0, b"data %d" % header, header=header)


def parked(callbacks: waltz.SqlCallbacks) -> list[tuple[int, int | None, bytes | None, str, str]]:
    table = ParkedTable(callbacks.parked_table_name)
    with callbacks.engine.connect() as connection:
        return [
            (each.transaction_id, each.header, each.data, each.error, each.state)
            for each in table.rows(connection)
        ]


FAST: dict[str, Any] = {"apply_attempts_max": 2, "blocked_seconds_max": 0.001}
ERROR = "ValueError: a poisoned transaction with two lines"


def test_what_cannot_be_applied_is_parked_and_the_rest_applied(open_engine: OpenEngine) -> None:
    """F-43: two of a batch of eight, each found, in one database transaction with its mark."""
    callbacks = Poisoned(open_engine())
    with InMemoryCluster(for_tests=True) as cluster:
        fill(cluster, 1, 13, 2, 3, 4, 13, 5, 6)
        with cluster.open_client(callbacks, on_apply_failure="park", **FAST) as client:
            assert client.wait_until_applied() == {0: 7}
            assert client.parked_transactions() == {0: 2}
            assert client.blocked_partitions() == {}
            assert client.append(0, b"own", header=13) == 8
            client.wait_until_applied()
    assert rows(open_engine()) == [0, 2, 3, 4, 6, 7]
    assert parked(callbacks) == [
        (1, 13, b"data 13", ERROR, "parked"),
        (5, 13, b"data 13", ERROR, "parked"),
        (8, 13, b"own", ERROR, "parked"),
    ]
    assert Applying(open_engine()).get_client_high_water_mark(P0) == 8


def test_nothing_is_parked_in_a_database_that_was_set_back(engine: sql.Engine) -> None:
    """To a backup, or to a copy that lags: neither applied nor kept there, it must not be passed
    over, or told as applied."""
    callbacks = Poisoned(engine)
    with InMemoryCluster(for_tests=True) as cluster:
        fill(cluster, 1, 2, 3)
        with cluster.open_client(callbacks, on_apply_failure="park", **FAST) as client:
            assert client.wait_until_applied() == {0: 2}
            with engine.begin() as connection:
                connection.execute(callbacks.table.update().values(high_water_mark=0))
            with pytest.raises(PartitionBlockedError, match="the database was set back"):
                client.append(0, b"own")
            wait_until(lambda: client.blocked_partitions()[P0].attempts > 2, "it is not parked")
            assert client.parked_transactions() == {}
            assert client.client_high_water_mark(0) == 2
    assert parked(callbacks) == []


def test_a_parked_transaction_is_applied_after_all_when_it_is_wanted(
    open_engine: OpenEngine,
) -> None:
    callbacks = Poisoned(open_engine())
    callbacks.get_client_high_water_mark(P0)
    (one,) = transactions(0, 1)
    one.header = 13
    callbacks.park(one, ValueError("no"))
    assert parked(callbacks) == [(0, 13, b"", "ValueError: no", "parked")]
    with pytest.raises(ValueError, match="poisoned"):
        callbacks.apply_parked(0, 0)
    assert len(parked(callbacks)) == 1
    assert rows(open_engine()) == []
    table = ParkedTable(callbacks.parked_table_name)

    def want() -> None:
        with callbacks.engine.begin() as connection:
            assert table.change(connection, 0, 0, RETRY)

    want()
    assert Poisoned(open_engine()).get_client_high_water_mark(P0) == 0
    assert parked(callbacks) == [(0, 13, b"", ERROR, "parked")], "it was tried, and stays"
    want()
    assert Applying(open_engine()).get_client_high_water_mark(P0) == 0
    assert parked(callbacks) == []
    assert rows(open_engine()) == [0]
    with pytest.raises(NotFoundError, match="transaction 0 of partition 0 is not parked"):
        callbacks.apply_parked(0, 0)


def test_a_transaction_is_parked_whatever_characters_its_error_has(engine: sql.Engine) -> None:
    """SQLite keeps no surrogate, PostgreSQL no NUL: the transaction would never be parked."""
    callbacks = Applying(engine)
    callbacks.get_client_high_water_mark(P0)
    callbacks.park(transactions(0, 1)[0], ValueError("\ud800 and \0"))
    assert [row[3] for row in parked(callbacks)] == [r"ValueError: \ud800 and \x00"]


def test_a_parked_transaction_that_an_error_has_ended_stays_parked(engine: sql.Engine) -> None:
    """PM-38: PostgreSQL would answer the commit with a rollback, and nobody would be told."""

    def collide(connection: sql.Connection) -> None:
        with pytest.raises(IntegrityError):
            connection.execute(APPLIED.insert().values(partition=0, number=0))

    callbacks = Applying(engine, also=collide)
    callbacks.get_client_high_water_mark(P0)
    callbacks.park(transactions(0, 1)[0], ValueError("no"))
    table = ParkedTable("waltz_parked")
    if engine.dialect.name == "postgresql":
        with pytest.raises(LocalProtocolError, match="stays parked; errors of the"):
            callbacks.apply_parked(0, 0)
    else:  # the others undo the statement only
        callbacks.apply_parked(0, 0)
    with engine.connect() as connection:
        assert len(table.rows(connection)) == 1 - len(rows(engine))
    assert len(rows(engine)) == (engine.dialect.name != "postgresql")


def test_of_several_processes_one_parks_a_transaction(open_engine: OpenEngine) -> None:
    one, other = Poisoned(open_engine()), Poisoned(open_engine())
    for each in (one, other):
        each.get_client_high_water_mark(P0)
    (poisoned,) = transactions(0, 1)
    one.park(poisoned, ValueError("one"))
    other.park(poisoned, ValueError("other"))
    assert [row[3] for row in parked(one)] == ["ValueError: one"]


def test_what_waits_is_named_once_with_a_traceback_and_then_in_a_line_each(
    open_engine: OpenEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """F-43: the partition, the transaction, its size and header, the error, the remedy."""
    caplog.set_level(logging.WARNING, "waltz.client.partitions.application_shell")
    with InMemoryCluster(for_tests=True) as cluster:
        fill(cluster, 1, 13, 2)
        client = cluster.open_client(Poisoned(open_engine()), **FAST)
        wait_until(lambda: client.blocked_partitions() != {}, "it is not blocked")
        with pytest.raises(PartitionBlockedError) as raised:
            client.wait_until_applied()
        client.submit(waltz.PlainAppend(0, b"behind it"))
        with pytest.raises(PartitionBlockedError, match="transaction 1 of partition 0"):
            client.flush()
        with pytest.raises(PartitionBlockedError, match="transaction 1 of partition 0"):
            client.append(0, b"in the log, behind it")
        with pytest.raises(PartitionBlockedError, match="transaction 1 of partition 0"):
            client.append_many(0, [b"too"] * 2)
        (blocked,) = client.blocked_partitions().values()
        assert (blocked.transaction_id, type(blocked.error)) == (1, ValueError)
        assert blocked.since_milliseconds > 0
        # An operator skips it, and the application goes on by itself.
        callbacks = Applying(open_engine())
        table = ParkedTable(callbacks.parked_table_name)
        skip(callbacks.engine, callbacks.table, table, 0, 1, "not ours")
        # An attempt that began before the skip still fails, and calls that wait are told.
        wait_until(lambda: client.blocked_partitions() == {}, "it is blocked for ever")
        assert client.wait_until_applied()[P0] == 6
        client.flush()
    assert "waltz parked skip" in str(raised.value)
    assert rows(open_engine()) == [0, 2, 3, 4, 5, 6]
    assert parked(callbacks) == [(1, None, None, "not ours", "parked")]
    lines = [each for each in caplog.records if each.getMessage().startswith("apply_failed")]
    assert len(lines) >= 3
    assert [each.exc_info is not None for each in lines].count(True) == 1
    assert all("\n" not in each.getMessage() for each in lines)
    line = lines[-1].getMessage()
    assert re.search(r"partition=0 transaction=1 header=13 bytes=7 attempt=\d+", line)
    assert ERROR in line
    assert "waltz parked skip" in line


def test_a_partition_that_is_to_stop_stops_and_names_the_transaction(
    open_engine: OpenEngine,
) -> None:
    with InMemoryCluster(for_tests=True, partitions=2) as cluster:
        fill(cluster, 1, 13, 2)
        client = cluster.open_client(Poisoned(open_engine()), on_apply_failure="stop", **FAST)
        with pytest.raises(PartitionBlockedError, match="transaction 1 of partition 0"):
            client.wait_until_applied(partitions=[0])
        wait_until(lambda: _is_stopped(client), "it does not stop")
        with pytest.raises(PartitionBlockedError, match=r"in 2 attempts.*open a new client"):
            client.append(0, b"")
        assert client.append(1, b"the others go on") == 0
    assert rows(open_engine()) == [0]


def _is_stopped(client: waltz.WaltzClient) -> bool:
    try:
        client.submit(waltz.PlainAppend(0, b""))
    except PartitionBlockedError:
        return True
    return False


def test_only_the_next_transaction_can_be_skipped(engine: sql.Engine) -> None:
    callbacks = Applying(engine)
    table = ParkedTable(callbacks.parked_table_name)
    callbacks.get_client_high_water_mark(P0)
    with pytest.raises(NotFoundError, match="through transaction -1, so that 0 is the next"):
        skip(engine, callbacks.table, table, 0, 5, "")
    with pytest.raises(NotFoundError, match="partition 3 has no mark"):
        skip(engine, callbacks.table, table, 3, 0, "")
    skip(engine, callbacks.table, table, 0, 0, "")
    with pytest.raises(LocalProtocolError, match="skipped without its data"):
        callbacks.apply_parked(0, 0)


def test_data_of_many_bytes_is_parked_whole(engine: sql.Engine) -> None:
    """MySQL's ordinary column ends at 65,535 bytes."""
    callbacks = Applying(engine)
    callbacks.get_client_high_water_mark(P0)
    (one,) = transactions(0, 1)
    one.provide_data(bytes(range(256)) * 400)
    callbacks.park(one, ValueError("x" * 100_000))
    table = ParkedTable(callbacks.parked_table_name)
    with engine.connect() as connection:
        (row,) = table.rows(connection)
        (short,) = table.rows(connection, with_data=False)
    assert row.data == one.data
    assert row.transaction().request_id == one.request_id
    assert (short.data, short.data_bytes) == (None, 102_400)


def test_what_is_parked_needs_callbacks_that_can() -> None:
    class Plain(waltz.WaltzClientCallbacks):
        def get_client_high_water_mark(self, partition_id: waltz.PartitionId) -> int:
            return -1

        def apply_transaction(self, transaction: Transaction) -> None: ...

    with InMemoryCluster(for_tests=True) as cluster:
        with pytest.raises(ConfigurationError, match="Plain has no park"):
            cluster.open_client(Plain(), on_apply_failure="park")
        with pytest.raises(ConfigurationError, match="'hope'; expected wait, park, stop"):
            cluster.open_client(Plain(), on_apply_failure="hope")


class InMemory(waltz.WaltzClientCallbacks):
    """An application that keeps what it parks by itself."""

    def __init__(self) -> None:
        self.applied: list[int] = []
        self.parked: list[tuple[TransactionId, str]] = []
        self.told: list[int] = []

    def get_client_high_water_mark(self, partition_id: waltz.PartitionId) -> int:
        return max([-1, *self.applied, *(each for each, _ in self.parked)])

    def apply_transactions(self, transactions: Sequence[Transaction]) -> None:
        if any(each.header == 13 for each in transactions):
            raise ValueError("poison")
        self.applied += [each.transaction_id for each in transactions]

    def park(self, transaction: Transaction, error: Exception) -> None:
        self.parked.append((transaction.transaction_id, str(error)))

    def uncaught_exception(
        self, partition_id: waltz.PartitionId, transaction_id: TransactionId, error: Exception
    ) -> None:
        self.told.append(transaction_id)


@pytest.mark.parametrize("poisoned", [0, 1, 6, 12])
def test_one_of_a_batch_is_found_whichever_it_is(poisoned: int) -> None:
    callbacks = InMemory()
    with InMemoryCluster(for_tests=True) as cluster:
        fill(cluster, *(13 if number == poisoned else 0 for number in range(13)))
        with cluster.open_client(callbacks, on_apply_failure="park", **FAST) as client:
            client.wait_until_applied()
    assert callbacks.parked == [(poisoned, "poison")]
    assert callbacks.applied == [each for each in range(13) if each != poisoned]
    assert set(callbacks.told[1:]) <= {poisoned}, "only the first attempt names a batch"
