"""The tables of an outbox on real servers of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from uuid import UUID

import pytest
import sqlalchemy as sql

from tests.client.sql_processes import in_threads
from waltz import ClientId
from waltz.configuration.outbox_settings import DIALECTS
from waltz.errors import ConfigurationError, NotFoundError
from waltz.limits import DATA_BYTES_MAX
from waltz.outbox.claim import RelayState
from waltz.outbox.outbox_row import UnfitRow
from waltz.outbox.outbox_tables import OutboxStore, OutboxTables, relay_engine

STATE = RelayState(UUID(int=1), UUID(int=2), 3, clients=(ClientId(4),))


@pytest.fixture
def store(database: sql.URL) -> Iterator[OutboxStore]:
    engine = relay_engine(database.render_as_string(hide_password=False))
    made = OutboxStore(engine, "waltz_outbox")
    made.create()
    yield made
    engine.dispose()


def insert(store: OutboxStore, key: str = "k", data: bytes = b"x", **columns: object) -> int:
    rows = store.tables.rows
    with store.engine.begin() as connection:
        values = {"partition_key": key, "data": data} | columns
        found = connection.execute(rows.insert().values(**values)).inserted_primary_key
        assert found is not None
        return int(found[0])


def note_take_over(store: OutboxStore, version: int, taken: list[bool]) -> None:
    taken.append(store.take_over(version, "me", STATE))


def ids(store: OutboxStore, *, rows_max: int = 10, bytes_max: int = 1000) -> list[int]:
    return [each.row_id for each in store.look((), rows_max, bytes_max)]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_statements_for_each_dialect_create_three_tables(dialect: str) -> None:
    statements = OutboxTables("box").ddl(dialect)
    assert sum(each.startswith("CREATE TABLE box") for each in statements) == 3
    assert sum(each.startswith("CREATE INDEX") for each in statements) == 1


def test_the_printed_statements_make_what_a_relay_makes(database: sql.URL) -> None:
    engine = relay_engine(database.render_as_string(hide_password=False))
    with engine.begin() as connection:
        for statement in OutboxTables("waltz_outbox").ddl(engine.dialect.name):
            connection.exec_driver_sql(statement)
    made = OutboxStore(engine, "waltz_outbox")
    made.create()
    made.expect()
    assert insert(made) == 1
    assert made.standing().version == -1
    engine.dispose()


def test_an_outbox_that_is_not_there_is_told(database: sql.URL) -> None:
    engine = relay_engine(database.render_as_string(hide_password=False))
    with pytest.raises(ConfigurationError, match="no table waltz_outbox"):
        OutboxStore(engine, "waltz_outbox").expect()
    engine.dispose()


def test_one_relay_at_a_time_takes_over(store: OutboxStore) -> None:
    for version in (-1, 0, 1):
        taken: list[bool] = []
        take_over = partial(note_take_over, store, version, taken)
        in_threads([take_over] * 4)
        assert sorted(taken) == [False, False, False, True]
    found = store.standing()
    assert (found.version, found.holder, found.state) == (2, "me", STATE)


def test_a_relay_that_lost_the_outbox_changes_nothing(store: OutboxStore) -> None:
    row_id = insert(store)
    store.take_over(-1, "first", STATE)
    store.take_over(0, "second", STATE)
    assert store.beat(0) is None
    assert not store.settle(0, STATE, [row_id], [UnfitRow(row_id, "k", "why")])
    assert not store.release(0)
    assert store.standing().holder == "second"
    assert ids(store) == [row_id]
    assert store.beat(1) == 1
    assert store.release(1)
    assert store.standing().holder is None


def test_rows_leave_with_the_claim_of_the_next_ones(store: OutboxStore) -> None:
    first, second, third = (insert(store, key) for key in "abc")
    store.take_over(-1, "me", STATE)
    assert store.settle(0, STATE, [first], [UnfitRow(second, "b", "why")])
    assert ids(store) == [third]
    (parked,) = store.parked()
    assert (parked.row_id, parked.key, parked.reason) == (second, "b", "why")
    assert store.counted() == {"waiting": 1, "parked": 1}
    assert store.standing().version == 1


def test_many_rows_leave_at_once(store: OutboxStore) -> None:
    rows = [insert(store) for _ in range(3)]
    store.take_over(-1, "me", STATE)
    assert store.settle(0, STATE, [*rows, *range(10_000, 14_000)], [])
    assert ids(store) == []


def test_later_rows_of_a_key_wait_for_a_parked_one_and_come_after_it(store: OutboxStore) -> None:
    first, other, later = insert(store, "a"), insert(store, "A"), insert(store, "a")
    store.take_over(-1, "me", STATE)
    store.settle(0, STATE, [], [UnfitRow(first, "a", "why")])
    assert ids(store) == [other], "of keys that differ in case one is not held by the other"
    store.retry(first, locks='{"append": []}', keeps_locks=False)
    assert ids(store) == [first, other, later]
    assert store.load([first])[0].locks == '{"append": []}'
    store.settle(1, STATE, [], [UnfitRow(first, "a", "why")])
    store.retry(first, locks=None)
    assert store.load([first])[0].locks == '{"append": []}'
    store.settle(2, STATE, [], [UnfitRow(first, "a", "why")])
    store.drop(first)
    assert ids(store) == [other, later]
    with pytest.raises(NotFoundError, match="is not parked"):
        store.drop(first)
    with pytest.raises(NotFoundError, match="is not parked"):
        store.retry(first, locks=None)


def test_rows_are_bounded_in_number_and_bytes_but_one_always_comes(store: OutboxStore) -> None:
    rows = [insert(store, data=bytes(60)) for _ in range(5)]
    assert ids(store, rows_max=3) == rows[:3]
    assert ids(store, bytes_max=130) == rows[:2]
    assert ids(store, bytes_max=1) == rows[:1]
    found = store.look(set(rows[:2]), 2, 1000)
    assert [each.row_id for each in found] == rows[2:4]


def test_what_is_not_committed_is_not_seen(store: OutboxStore) -> None:
    if store.engine.dialect.name == "sqlite":
        return  # one writer at a time: no greater ID can be committed before a smaller one
    rows = store.tables.rows
    with store.engine.connect() as writer, writer.begin() as open_transaction:
        writer.execute(rows.insert().values(partition_key="k", data=b"open"))
        committed = insert(store)
        assert ids(store) == [committed], "a greater ID is there before a smaller one"
        open_transaction.rollback()
    assert ids(store) == [committed]


def test_a_row_that_is_too_large_comes_without_its_data(store: OutboxStore) -> None:
    if store.engine.dialect.name in ("mysql", "mariadb"):
        return  # the server itself takes no packet of that size
    insert(store, data=bytes(DATA_BYTES_MAX + 1))
    (found,) = store.look((), 10, 1000)
    assert found.data is None
    assert found.data_bytes == DATA_BYTES_MAX + 1


@pytest.mark.parametrize("url", ["nonsense", "postgresql+nodriver://h/d", "oracle9://x"])
def test_what_is_no_database_is_told(url: str) -> None:
    with pytest.raises(ConfigurationError, match="not a database URL"):
        relay_engine(url)
