"""What an application may not do with the connection on which it applies transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sql

from tests.client.sql_applications import APPLIED, P0, Applying, rows, transactions
from waltz.client.databases.guarded_connection import GuardedConnection
from waltz.errors import LocalProtocolError

FORBIDDEN: dict[str, Callable[[sql.Connection], Any]] = {
    # The seven of the original: commit, rollback, setAutoCommit, setTransactionIsolation,
    # setCatalog, setReadOnly and unwrap.
    "commit is": lambda connection: connection.commit(),
    "rollback is": lambda connection: connection.rollback(),
    "begin is": lambda connection: connection.begin(),
    "isolation_level": lambda connection: connection.execution_options(
        isolation_level="AUTOCOMMIT"
    ),
    "schema_translate_map": lambda connection: connection.execution_options(
        schema_translate_map={}
    ),
    "postgresql_readonly": lambda connection: connection.execution_options(
        postgresql_readonly=True
    ),
    "connection is": lambda connection: connection.connection,
    # What SQLAlchemy has besides.
    "close is": lambda connection: connection.close(),
    "begin_twophase is": lambda connection: connection.begin_twophase(),
    "invalidate is": lambda connection: connection.invalidate(),
    "detach is": lambda connection: connection.detach(),
    "get_transaction is": lambda connection: connection.get_transaction(),
}

STATEMENTS = [
    "COMMIT",
    "  /* now */ commit work",
    "-- now\nROLLBACK",
    "BEGIN",
    "START TRANSACTION READ ONLY",
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET SESSION TRANSACTION READ ONLY",
    "SET AUTOCOMMIT = 1",
    "SET @@autocommit=1",
    "USE other",
]


def test_what_would_end_or_change_the_transaction_is_refused_by_its_name(
    engine: sql.Engine,
) -> None:
    """PM-56: and the transaction is as it was."""

    def try_it(connection: sql.Connection) -> None:
        for named, call in FORBIDDEN.items():
            with pytest.raises(LocalProtocolError, match=named) as raised:
                call(connection)
            assert str(raised.value).endswith("savepoints (begin_nested) are allowed")

    callbacks = Applying(engine, also=try_it)
    callbacks.get_client_high_water_mark(P0)
    callbacks.apply_transactions(transactions(0, 2))
    assert rows(engine) == [0, 1]


def test_statements_that_do_the_same_are_refused_as_well(engine: sql.Engine) -> None:
    """PM-56."""

    def try_them(connection: sql.Connection) -> None:
        for statement in STATEMENTS:
            with pytest.raises(LocalProtocolError, match="is not allowed while"):
                connection.execute(sql.text(statement))
            with pytest.raises(LocalProtocolError, match="is not allowed while"):
                connection.exec_driver_sql(statement)

    callbacks = Applying(engine, also=try_them)
    callbacks.get_client_high_water_mark(P0)
    callbacks.apply_transactions(transactions(0, 2))
    assert rows(engine) == [0, 1]


def test_a_table_is_made_on_the_way_only_where_that_commits_nothing(engine: sql.Engine) -> None:
    """PM-56: MySQL and MariaDB commit before they make one."""
    table = sql.Table("late", sql.MetaData(), sql.Column("id", sql.Integer, primary_key=True))
    callbacks = Applying(engine, also=lambda connection: table.create(connection))
    callbacks.get_client_high_water_mark(P0)
    if engine.dialect.name == "mysql":
        with pytest.raises(LocalProtocolError, match="which commits in mysql"):
            callbacks.apply_transactions(transactions(0, 2))
        assert rows(engine) == []
    else:
        callbacks.apply_transactions(transactions(0, 2))
        assert sql.inspect(engine).has_table("late")


def test_savepoints_are_free(engine: sql.Engine) -> None:
    """PM-56."""

    def two(connection: sql.Connection) -> None:
        kept = connection.begin_nested()
        connection.execute(APPLIED.insert().values(partition=5, number=1))
        undone = connection.begin_nested()
        connection.execute(APPLIED.insert().values(partition=5, number=2))
        undone.rollback()
        connection.exec_driver_sql("SAVEPOINT own")
        connection.execute(APPLIED.insert().values(partition=5, number=3))
        connection.exec_driver_sql("ROLLBACK TO SAVEPOINT own")
        kept.commit()

    callbacks = Applying(engine, also=two)
    callbacks.get_client_high_water_mark(P0)
    callbacks.apply_transactions(transactions(0, 1))
    assert rows(engine, 5) == [1]


def test_it_is_an_ordinary_connection_outside_of_the_block(engine: sql.Engine) -> None:
    with GuardedConnection(engine) as connection:
        connection.execution_options(isolation_level="SERIALIZABLE")
        with connection.begin(), connection.guarded():
            connection.execute(APPLIED.insert().values(partition=0, number=1))
        connection.execute(APPLIED.insert().values(partition=0, number=2))
        connection.rollback()
        assert connection.get_transaction() is None
    assert rows(engine) == [1]


BLANKS = ["  ", "\n\t", ";", "-- a; commit\n", "/* now */", "/**/", "/*\n*/"]


@pytest.mark.parametrize("blank", BLANKS)
def test_what_stands_before_a_statement_hides_it_from_nobody(blank: str) -> None:
    engine = sql.create_engine("sqlite://")
    with GuardedConnection(engine) as connection:
        connection.exec_driver_sql("SELECT 1")  # begins the transaction
        with connection.guarded():
            for before in (blank, blank * 3, f"{blank} {blank}"):
                with pytest.raises(LocalProtocolError, match="statement 'COMMIT'"):
                    connection.exec_driver_sql(f"{before}COMMIT")
                assert connection.exec_driver_sql(f"{before}SELECT 'COMMIT'").scalar() == "COMMIT"
    engine.dispose()


HIDDEN = [
    "/* /* */ */ COMMIT",
    "INSERT INTO applied VALUES (9, 9); COMMIT",
    "SELECT 1; /* ' */ COMMIT; BEGIN",
    r"SELECT E'\'; '; ROLLBACK; BEGIN",
    "SELECT $a$ ' $a$; COMMIT",
]


def test_a_statement_behind_another_one_ends_no_transaction(engine: sql.Engine) -> None:
    """Drivers of PostgreSQL run all statements of one text; others refuse the second one."""

    def try_them(connection: sql.Connection) -> None:
        for statement in HIDDEN:
            with pytest.raises(LocalProtocolError, match="is not allowed while"):
                connection.exec_driver_sql(statement)
        both = "INSERT INTO applied VALUES (5, 1); /* COMMIT; */ SELECT '; COMMIT'; -- COMMIT"
        connection.exec_driver_sql(both)

    is_postgresql = engine.dialect.name == "postgresql"
    callbacks = Applying(engine, also=try_them if is_postgresql else lambda connection: None)
    callbacks.get_client_high_water_mark(P0)
    callbacks.apply_transactions(transactions(0, 2))
    assert rows(engine) == [0, 1]
    assert rows(engine, 9) == []
    assert rows(engine, 5) == ([1] if is_postgresql else [])


def test_a_comment_that_the_database_runs_is_no_comment(engine: sql.Engine) -> None:
    """MySQL and MariaDB run it; for others it is one, and nothing else is in the statement."""

    def try_them(connection: sql.Connection) -> None:
        for statement in ("/*! COMMIT */", " # now\n/*!50000 COMMIT */", "/*M!100100 COMMIT */"):
            with pytest.raises(LocalProtocolError, match="a comment that the database runs"):
                connection.exec_driver_sql(statement)

    is_mysql = engine.dialect.name == "mysql"
    callbacks = Applying(engine, also=try_them if is_mysql else lambda connection: None)
    callbacks.get_client_high_water_mark(P0)
    callbacks.apply_transactions(transactions(0, 2))
    assert rows(engine) == [0, 1]
