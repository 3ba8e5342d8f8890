"""SqlCallbacks on real servers of each kind; threads stand for processes on one database."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError

import waltz
from tests.client.conftest import OpenEngine
from tests.client.sql_applications import APPLIED, P0, Applying, rows, transactions
from tests.client.sql_processes import apply_in_the_end, away, in_threads
from tests.clusters import ROOT
from waltz.client.transaction import Transaction
from waltz.errors import LocalProtocolError, PostponedError
from waltz.limits import APPLY_RETRY_SECONDS_MAX
from waltz.testing import InMemoryCluster
from waltz.types import PartitionId


def test_the_first_use_of_a_partition_makes_its_row(engine: sql.Engine) -> None:
    """PM-51."""
    callbacks = Applying(engine)
    assert callbacks.get_client_high_water_mark(P0) == -1
    with engine.connect() as connection:
        (row,) = connection.execute(callbacks.table.select())
    assert tuple(row) == (0, -1, None)
    assert callbacks.get_client_high_water_mark(P0) == -1


def test_processes_that_come_first_at_once_make_one_table(open_engine: OpenEngine) -> None:
    """PM-51."""
    all_ = [Applying(open_engine()) for _ in range(4)]

    def mark(callbacks: Applying) -> None:
        while True:
            try:
                assert callbacks.get_client_high_water_mark(P0) == -1
            except PostponedError:
                continue
            return

    in_threads([partial(mark, each) for each in all_])
    with open_engine().connect() as connection:
        assert [tuple(row) for row in connection.execute(all_[0].table.select())] == [(0, -1, None)]


def test_five_processes_that_race_apply_each_transaction_once(open_engine: OpenEngine) -> None:
    """PM-30, PM-52: batches are cut differently; marks that are known never go back (PM-57)."""
    Applying(open_engine()).get_client_high_water_mark(P0)

    def follow(size: int) -> None:
        callbacks = Applying(open_engine(), f"by {size}")
        position = int(callbacks.get_client_high_water_mark(P0)) + 1
        while position < 60:
            batch = transactions(position, min(position + size, 60))
            apply_in_the_end(callbacks, batch)
            position += len(batch)

    in_threads([partial(follow, size) for size in (1, 2, 3, 5, 7)])
    assert rows(open_engine()) == list(range(60))
    assert Applying(open_engine()).get_client_high_water_mark(P0) == 59


def test_marks_that_are_read_by_many_threads_never_go_back(open_engine: OpenEngine) -> None:
    """PM-57: while another process moves them on."""
    writer, reader = Applying(open_engine(), "writer"), Applying(open_engine(), "reader")
    partitions = [PartitionId(number) for number in range(3)]
    for each in partitions:
        writer.get_client_high_water_mark(each)
        reader.get_client_high_water_mark(each)

    def write() -> None:
        for number in range(15):
            for each in partitions:
                apply_in_the_end(writer, transactions(number, number + 1, each))

    def watch(partition_id: PartitionId) -> None:
        wanted = [-1]
        while wanted[-1] < 15:
            try:
                rest = reader.choose_prefetch(transactions(0, 15, partition_id))
            except PostponedError:
                continue
            wanted.append(rest[0].transaction_id if rest else 15)
        assert wanted == sorted(wanted)

    in_threads([write, *(partial(watch, each) for each in partitions)])


def ids(chosen: Sequence[Transaction]) -> list[int]:
    return [each.transaction_id for each in chosen]


def test_change_and_mark_move_in_one_database_transaction(engine: sql.Engine) -> None:
    """PM-50, PM-52."""
    callbacks = Applying(engine)
    assert callbacks.get_client_high_water_mark(P0) == -1
    callbacks.failures = [ValueError("after the insert")]
    with pytest.raises(ValueError, match="after the insert"):
        callbacks.apply_transactions(transactions(0, 5))
    assert rows(engine) == []
    assert callbacks.get_client_high_water_mark(P0) == -1
    callbacks.apply_transactions(transactions(0, 5))
    assert rows(engine) == [0, 1, 2, 3, 4]
    assert Applying(engine).get_client_high_water_mark(P0) == 4


def test_what_another_process_has_applied_is_not_applied_again(engine: sql.Engine) -> None:
    one, two = Applying(engine, "one"), Applying(engine, "two")
    assert one.get_client_high_water_mark(P0) == two.get_client_high_water_mark(P0) == -1
    one.apply_transactions(transactions(0, 3))
    assert ids(two.choose_prefetch(transactions(0, 6))) == [4]
    two.apply_transactions(transactions(0, 6))
    one.apply_transactions(transactions(3, 6))
    assert rows(engine) == [0, 1, 2, 3, 4, 5]


def test_a_mark_that_moved_after_it_was_read_is_noticed_by_the_guard(engine: sql.Engine) -> None:
    """PM-52."""
    one, two = Applying(engine, "one"), Applying(engine, "two")
    for each in (one, two):
        each.get_client_high_water_mark(P0)
        each.choose_prefetch(transactions(0, 3))
    one.apply_transactions(transactions(0, 2))
    two.apply_transactions(transactions(0, 3))
    assert rows(engine) == [0, 1, 2]


def test_a_partition_that_is_not_preferred_is_left_to_others_for_a_while(
    engine: sql.Engine,
) -> None:
    mine = Applying(engine, "mine", preferred=[0])
    other = Applying(engine, "other", preferred=[1], patience_seconds=0.2)
    mine.get_client_high_water_mark(P0)
    waited = patience(lambda: other.choose_prefetch(transactions(0, 4)))
    assert 0.2 <= waited <= 0.3
    other.apply_transactions(transactions(0, 4))
    assert rows(engine) == [0, 1, 2, 3]
    # Nobody else was there, so it goes on at once ...
    assert ids(other.choose_prefetch(transactions(4, 6))) == [4]
    # ... until somebody is.
    mine.choose_prefetch(transactions(4, 5))
    mine.apply_transactions(transactions(4, 5))
    with pytest.raises(PostponedError, match="left to another process"):
        other.choose_prefetch(transactions(4, 6))


def test_what_another_process_has_applied_needs_no_patience(engine: sql.Engine) -> None:
    mine, other = Applying(engine, preferred=[0]), Applying(engine, preferred=[])
    mine.get_client_high_water_mark(P0)
    mine.apply_transactions(transactions(0, 4))
    assert other.choose_prefetch(transactions(0, 4)) == []
    other.apply_transactions(transactions(0, 4))


def patience(choose: Callable[[], object]) -> float:
    waited = 0.0
    while True:
        try:
            choose()
        except PostponedError as error:
            waited += error.delay_seconds
        else:
            return waited


def test_a_database_that_is_away_is_tried_again_ever_later(engine: sql.Engine) -> None:
    """PM-54: rolled back, then repeated."""
    callbacks = Applying(engine)
    callbacks.get_client_high_water_mark(P0)
    callbacks.failures = [away() for _ in range(13)]
    delays = []
    for _ in range(13):
        with pytest.raises(PostponedError, match="database is away") as raised:
            callbacks.apply_transactions(transactions(0, 2))
        delays.append(raised.value.delay_seconds)
    assert delays[:3] == [0.01, 0.02, 0.04]
    assert delays[-1] == APPLY_RETRY_SECONDS_MAX
    callbacks.apply_transactions(transactions(0, 2))
    assert rows(engine) == [0, 1]


def test_a_mark_that_cannot_be_read_is_postponed_and_counted(tmp_path: Path) -> None:
    """PM-55."""
    folder = tmp_path / "missing"
    engine = sql.create_engine(f"sqlite:///{folder / 'app.db'}")
    callbacks = Applying(engine)
    for _ in range(5):
        with pytest.raises(PostponedError):
            callbacks.get_client_high_water_mark(P0)
    assert callbacks.attempts == [1, 2, 3, 4, 5]
    folder.mkdir()
    assert callbacks.get_client_high_water_mark(P0) == -1
    engine.dispose()


def test_a_database_that_was_set_back_is_an_error(engine: sql.Engine) -> None:
    callbacks = Applying(engine)
    callbacks.get_client_high_water_mark(P0)
    with pytest.raises(LocalProtocolError, match="at transaction -1 of partition 0; expected 8"):
        callbacks.apply_transactions(transactions(9, 11))


# How a transaction of the database runs


def isolation(connection: sql.Connection) -> str:
    """What the database itself says."""
    questions = {
        "postgresql": "SHOW transaction_isolation",
        "mysql": "SELECT @@session.tx_isolation",
        "sqlite": "PRAGMA read_uncommitted",
    }
    said = connection.exec_driver_sql(questions[connection.dialect.name]).scalar_one()
    return {"0": "SERIALIZABLE"}.get(str(said), str(said).replace("-", " ").upper())


@pytest.mark.parametrize("usual", [None, "AUTOCOMMIT"])
def test_the_transaction_is_serializable_and_what_was_set_is_restored(
    open_engine: OpenEngine, database: sql.URL, usual: str | None
) -> None:
    """PM-53."""
    options: dict[str, Any] = {} if usual is None else {"isolation_level": usual}
    engine = sql.create_engine(database, pool_size=1, max_overflow=0, **options)

    def is_autocommit(connection: sql.Connection) -> bool:
        driver: Any = connection.connection.dbapi_connection
        if connection.dialect.name == "postgresql":
            return bool(driver.autocommit)
        if connection.dialect.name == "mysql":
            return bool(driver.get_autocommit())
        return driver.isolation_level is None

    def look() -> tuple[str, bool]:
        with engine.connect() as connection:
            return isolation(connection), is_autocommit(connection)

    inside: list[str] = []
    before = look()
    callbacks = Applying(engine, also=lambda connection: inside.append(isolation(connection)))
    callbacks.get_client_high_water_mark(P0)
    callbacks.apply_transactions(transactions(0, 2))
    callbacks.failures = [ValueError()]
    with pytest.raises(ValueError):  # noqa: PT011
        callbacks.apply_transactions(transactions(2, 4))
    assert inside == ["SERIALIZABLE", "SERIALIZABLE"]
    assert look() == before
    assert rows(engine) == [0, 1], "autocommit was off"
    engine.dispose()


def test_the_orm_works_on_the_connection(engine: sql.Engine) -> None:
    """PM-56: a session's own commit ends a savepoint."""
    from sqlalchemy.orm import Session

    def add(connection: sql.Connection) -> None:
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            session.execute(APPLIED.insert().values(partition=9, number=1))
            session.commit()
            session.execute(APPLIED.insert().values(partition=9, number=2))
            session.rollback()

    callbacks = Applying(engine, also=add)
    callbacks.get_client_high_water_mark(P0)
    callbacks.apply_transactions(transactions(0, 1))
    assert rows(engine, 9) == [1]


def test_an_error_behind_a_savepoint_ends_nothing(engine: sql.Engine) -> None:
    """PM-56."""

    def collide(connection: sql.Connection) -> None:
        with pytest.raises(IntegrityError), connection.begin_nested():
            connection.execute(APPLIED.insert().values(partition=0, number=0))

    callbacks = Applying(engine, also=collide)
    callbacks.get_client_high_water_mark(P0)
    callbacks.apply_transactions(transactions(0, 2))
    assert rows(engine) == [0, 1]


def test_a_transaction_that_an_error_has_ended_is_never_committed(engine: sql.Engine) -> None:
    """PM-52: MySQL ends the whole transaction at a deadlock, and an application may catch that."""

    def end_it(connection: sql.Connection) -> None:
        driver = connection._dbapi_connection
        assert driver is not None
        driver.rollback()
        connection.execute(APPLIED.insert().values(partition=0, number=1))

    callbacks = Applying(engine, also=end_it)
    callbacks.get_client_high_water_mark(P0)
    with pytest.raises(LocalProtocolError, match="would be committed in part"):
        callbacks.apply_transactions(transactions(0, 2))
    assert rows(engine) == []
    assert Applying(engine).get_client_high_water_mark(P0) == -1


def test_postgresql_is_not_told_to_commit_what_has_failed(
    engine: sql.Engine,
) -> None:
    """PM-52: it would answer with a rollback, and the mark would be thought to have moved."""

    def collide(connection: sql.Connection) -> None:
        with pytest.raises(IntegrityError):
            connection.execute(APPLIED.insert().values(partition=0, number=0))

    callbacks = Applying(engine, also=collide)
    callbacks.get_client_high_water_mark(P0)
    if engine.dialect.name == "postgresql":
        with pytest.raises(LocalProtocolError, match="around a savepoint only"):
            callbacks.apply_transactions(transactions(0, 2))
        assert rows(engine) == []
    else:  # the others undo the statement only
        callbacks.apply_transactions(transactions(0, 2))
        assert rows(engine) == [0, 1]
    assert Applying(engine).get_client_high_water_mark(P0) == (rows(engine) or [-1])[-1]


def test_the_page_works_as_it_stands(engine: sql.Engine) -> None:
    """All of docs/applying-to-a-database.md, with a cluster in memory at its address."""
    page = (ROOT / "docs" / "applying-to-a-database.md").read_text()
    programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    with InMemoryCluster(for_tests=True) as cluster:
        cluster.open_client(waltz.NoCallbacks()).append(0, b"x")

        class Opening:
            @staticmethod
            def open_client(_: str, callbacks: waltz.SqlCallbacks, **options: Any) -> object:
                return cluster.open_client(callbacks, **options)

        names: dict[str, Any] = {"waltz": Opening, "engine": engine, "Accounts": Applying}
        for program in programs:
            exec(program, names)
        assert rows(engine) == [0]
        assert names["client"].blocked_partitions() == {}
    assert len(programs) == 2


def test_an_application_may_park_by_itself(engine: sql.Engine) -> None:
    """PM-38: around a savepoint, in the same database transaction."""
    parked = sql.Table(
        "parked",
        sql.MetaData(),
        sql.Column("partition", sql.Integer),
        sql.Column("transaction", sql.Integer),
        sql.Column("reason", sql.String(1000)),
    )
    parked.metadata.create_all(engine)

    def apply_one(connection: sql.Connection, transaction: Transaction) -> None:
        number = transaction.transaction_id
        values = {"partition": 0, "number": 0 if number == 1 else number}
        connection.execute(APPLIED.insert(), values)
        if number == 3:
            raise ValueError("three is too many")

    class Parking(waltz.SqlCallbacks):
        def apply(self, connection: sql.Connection, transactions: Sequence[Transaction]) -> None:
            for transaction in transactions:
                try:
                    with connection.begin_nested():
                        apply_one(connection, transaction)
                except (ValueError, IntegrityError) as error:
                    number = transaction.transaction_id
                    reason = {"partition": 0, "transaction": number, "reason": str(error)}
                    connection.execute(parked.insert(), reason)

    callbacks = Parking(engine)
    callbacks.get_client_high_water_mark(P0)
    callbacks.apply_transactions(transactions(0, 5))
    assert rows(engine) == [0, 2, 4]
    with engine.connect() as connection:
        found = {row.transaction: row.reason for row in connection.execute(parked.select())}
    assert found.keys() == {1, 3}
    assert found[3] == "three is too many"
    assert callbacks.get_client_high_water_mark(P0) == 4


# When the database fails


def test_sqlalchemy_is_needed_by_nothing_else() -> None:
    """PM-50: it is an extra."""
    program = "import sys; sys.modules['sqlalchemy'] = None; import waltz; waltz.SqlCallbacks"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
