"""F-1: a database follows one cluster. Two clusters in memory, one database of each kind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from uuid import UUID

import pytest
import sqlalchemy as sql

import waltz
from tests.client.conftest import OpenEngine
from tests.client.sql_applications import APPLIED, P0, Applying, rows, transactions
from waltz import HistoryChangedError, PartitionId
from waltz.errors import ClientAheadError, PostponedError
from waltz.testing import InMemoryCluster

P1 = PartitionId(1)


@pytest.fixture
def clusters() -> Iterator[tuple[InMemoryCluster, InMemoryCluster]]:
    with (
        InMemoryCluster(partitions=2, for_tests=True) as one,
        InMemoryCluster(partitions=2, for_tests=True) as other,
    ):
        yield one, other


def by(engine: sql.Engine) -> list[tuple[int, int, str]]:
    with engine.connect() as connection:
        found = connection.execute(APPLIED.select().order_by("partition", "number"))
        return [tuple(row) for row in found]


def kept(callbacks: Applying) -> list[tuple[object, ...]]:
    with callbacks.engine.connect() as connection:
        found = connection.execute(callbacks.table.select().order_by("partition_id"))
        return [tuple(row) for row in found]


def append(cluster: InMemoryCluster, count: int, partition: int = 0) -> str:
    with cluster.open_client(waltz.NoCallbacks()) as client:
        for _ in range(count):
            client.append(partition, b"x")
        return str(client.cluster_key)


def refused(cluster: InMemoryCluster, callbacks: waltz.SqlCallbacks) -> str:
    """Return what a client says that is not allowed to apply anything."""
    client = cluster.open_client(callbacks)
    with pytest.raises(HistoryChangedError) as raised:
        client.wait_until_applied()
    for call in (
        lambda: client.append(0, b"x"),
        client.flush,
        lambda: client.get_high_water_mark(0),
        client.wait_until_applied,
    ):
        with pytest.raises(HistoryChangedError):
            call()
    client.close()
    return str(raised.value)


def test_a_database_that_has_followed_one_cluster_is_refused_for_another(
    clusters: tuple[InMemoryCluster, InMemoryCluster], open_engine: OpenEngine
) -> None:
    """Both keys and the mark are named, and nothing is applied."""
    one, other = clusters
    with one.open_client(Applying(open_engine(), "A")) as client:
        for _ in range(3):
            client.append(0, b"x")
        key = str(client.cluster_key)
    before = by(open_engine())
    assert before == [(0, 0, "A"), (0, 1, "A"), (0, 2, "A")]
    other_key = append(other, 4)
    callbacks = Applying(open_engine(), "B")
    text = refused(other, callbacks)
    assert key in text
    assert other_key in text
    assert re.search(r"partition (0 .* through transaction 2|1 .* through transaction -1),", text)
    assert "empty database" in text
    assert by(open_engine()) == before
    assert {row[:2] for row in kept(callbacks)} == {(0, 2), (1, -1)}
    assert other_key not in {row[2] for row in kept(callbacks)}
    with one.open_client(Applying(open_engine(), "A again")) as client:
        assert client.append(0, b"x") == 3
    assert by(open_engine()) == [*before, (0, 3, "A again")]


def test_one_partition_of_another_cluster_is_enough_to_be_refused(
    clusters: tuple[InMemoryCluster, InMemoryCluster], open_engine: OpenEngine
) -> None:
    """The partition that nobody has applied yet would take what comes."""
    one, other = clusters
    with one.open_client(Applying(open_engine(), "A"), partitions=[0]) as client:
        client.append(0, b"x")
    append(other, 2, partition=1)
    client = other.open_client(Applying(open_engine(), "B"), partitions=[1])
    with pytest.raises(HistoryChangedError, match="partition 0 of history"):
        client.wait_until_applied()
    assert by(open_engine()) == [(0, 0, "A")]


OLD = sql.Table(
    "waltz_high_water_marks",
    sql.MetaData(),
    sql.Column("partition_id", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("high_water_mark", sql.BigInteger, nullable=False),
)
"""As releases before made it."""


def test_a_table_without_histories_gets_them_at_first_contact(
    clusters: tuple[InMemoryCluster, InMemoryCluster], open_engine: OpenEngine
) -> None:
    one, other = clusters
    key = append(one, 3)
    append(other, 5)
    engine = open_engine()
    OLD.create(engine)
    with engine.begin() as connection:
        connection.execute(OLD.insert().values(partition_id=0, high_water_mark=1))
    callbacks = Applying(engine, "A")
    with one.open_client(callbacks) as client:
        assert client.wait_until_applied() == {0: 2, 1: -1}
    assert rows(engine) == [2]
    assert kept(callbacks) == [(0, 2, key), (1, -1, key)]
    assert key in refused(other, Applying(open_engine(), "B"))
    assert rows(engine) == [2]


def test_a_release_before_goes_on_with_the_table(engine: sql.Engine) -> None:
    """Processes are replaced one after the other."""
    callbacks = Applying(engine)
    callbacks.get_client_high_water_mark(P0)
    with engine.begin() as connection:
        connection.execute(OLD.insert().values(partition_id=7, high_water_mark=-1))
    assert Applying(engine).get_client_high_water_mark(PartitionId(7)) == -1
    assert callbacks.get_client_history(PartitionId(7)) is None


def test_a_column_that_may_not_be_added_is_told_with_the_statement(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = sql.create_engine("sqlite://", poolclass=sql.StaticPool)
    OLD.create(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("PRAGMA query_only = 1")
    with pytest.raises(PostponedError):
        Applying(engine).get_client_high_water_mark(P0)
    assert "run `ALTER TABLE waltz_high_water_marks ADD COLUMN history VARCHAR(36)`" in caplog.text
    engine.dispose()


def test_an_application_that_was_bound_elsewhere_meanwhile_applies_nothing_more(
    engine: sql.Engine,
) -> None:
    """The history is part of the guard, not only of the first look."""
    mine, theirs = UUID(int=1), UUID(int=2)
    callbacks = Applying(engine)
    callbacks.get_client_high_water_mark(P0)
    callbacks.keep_client_history(P0, mine, None)
    assert callbacks.get_client_history(P0) == mine
    callbacks.apply_transactions(transactions(0, 1))
    Applying(engine).keep_client_history(P0, theirs, None)
    assert callbacks.get_client_history(P0) == mine  # it was not `before`
    with engine.begin() as connection:
        connection.execute(callbacks.table.update().values(history=str(theirs)))
    with pytest.raises(HistoryChangedError, match=str(theirs)):
        callbacks.apply_transactions(transactions(1, 2))
    assert rows(engine) == [0]


def test_a_text_that_is_no_history_is_no_reason_to_go_on(
    clusters: tuple[InMemoryCluster, InMemoryCluster], engine: sql.Engine
) -> None:
    callbacks = Applying(engine)
    callbacks.get_client_high_water_mark(P0)
    with engine.begin() as connection:
        connection.execute(callbacks.table.update().values(history="mine"))
    append(clusters[0], 1)
    assert "'mine'" in refused(clusters[0], Applying(engine))
    assert rows(engine) == []


def test_a_mark_beyond_the_log_is_another_log(
    clusters: tuple[InMemoryCluster, InMemoryCluster], engine: sql.Engine
) -> None:
    key = append(clusters[0], 2)
    callbacks = Applying(engine)
    callbacks.get_client_high_water_mark(P0)
    with engine.begin() as connection:
        connection.execute(callbacks.table.update().values(high_water_mark=9))
    client = clusters[0].open_client(Applying(engine), ahead_seconds_max=0.2)
    with pytest.raises(ClientAheadError) as raised:
        client.append(0, b"x")
    said = rf"cluster {key} through transaction 9; the log of cluster {key} ends before that"
    assert re.search(said, str(raised.value))
    with pytest.raises(ClientAheadError):
        client.wait_until_applied(partitions=[0])
    assert client.append(1, b"the others go on") == 0
    assert rows(engine) == []


class Keeping(waltz.WaltzClientCallbacks):
    """An application that keeps its marks in memory, and the history beside them."""

    def __init__(self) -> None:
        self.marks: dict[int, int] = {}
        self.histories: dict[int, UUID] = {}

    def get_client_high_water_mark(self, partition_id: PartitionId) -> int:
        return self.marks.get(partition_id, -1)

    def get_client_history(self, partition_id: PartitionId) -> UUID | None:
        return self.histories.get(partition_id)

    def keep_client_history(
        self, partition_id: PartitionId, history: UUID, before: UUID | None
    ) -> None:
        if self.histories.get(partition_id) == before:
            self.histories[partition_id] = history

    def apply_transactions(self, transactions: Sequence[waltz.Transaction]) -> None:
        self.marks[transactions[0].partition_id] = transactions[-1].transaction_id


def test_other_callbacks_are_bound_by_two_functions(
    clusters: tuple[InMemoryCluster, InMemoryCluster],
) -> None:
    one, other = clusters
    callbacks = Keeping()
    append(one, 2)
    append(other, 3)
    with one.open_client(callbacks) as client:
        assert client.wait_until_applied() == {0: 1, 1: -1}
        assert set(callbacks.histories.values()) == {client.cluster_key}
    client = other.open_client(callbacks)
    with pytest.raises(HistoryChangedError):
        client.wait_until_applied()
    assert callbacks.marks == {0: 1}


def test_clusters_in_memory_have_keys_of_their_own(
    clusters: tuple[InMemoryCluster, InMemoryCluster],
) -> None:
    assert append(clusters[0], 0) != append(clusters[1], 0)
