"""DjangoCallbacks: the tests of SqlCallbacks on Django's connection, and what only Django has."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sql
from django import db
from django.db import connections, transaction

from tests.client import (
    sql_processes,
    test_sql_callbacks,
    test_sql_callbacks_failures,
    test_sql_tables,
)
from tests.client.conftest import OpenEngine
from tests.client.sql_applications import P0, rows, transactions
from tests.client.sql_processes import apply_in_the_end
from tests.databases import DatabaseServer
from tests.ext import django_project
from tests.ext.conftest import KINDS
from tests.ext.django_project import DjangoApplying, OnDjango, alias_of, migrate
from waltz.client.consistency_token import ConsistencyToken
from waltz.client.databases.sql_tables import RETRY, ParkedTable
from waltz.client.transaction import Transaction
from waltz.errors import ConfigurationError, HistoryChangedError, LocalProtocolError, PostponedError
from waltz.ext.django.django_callbacks import DjangoMarks
from waltz.ext.django.models import HighWaterMark
from waltz.testing import InMemoryCluster

WITH_AN_ENGINE = [
    test_sql_callbacks.test_the_first_use_of_a_partition_makes_its_row,
    test_sql_callbacks.test_change_and_mark_move_in_one_database_transaction,
    test_sql_callbacks.test_what_another_process_has_applied_is_not_applied_again,
    test_sql_callbacks.test_a_mark_that_moved_after_it_was_read_is_noticed_by_the_guard,
    test_sql_callbacks.test_a_partition_that_is_not_preferred_is_left_to_others_for_a_while,
    test_sql_callbacks.test_what_another_process_has_applied_needs_no_patience,
    test_sql_callbacks.test_a_database_that_is_away_is_tried_again_ever_later,
    test_sql_callbacks.test_a_database_that_was_set_back_is_an_error,
    test_sql_callbacks.test_an_error_behind_a_savepoint_ends_nothing,
    test_sql_callbacks.test_postgresql_is_not_told_to_commit_what_has_failed,
    test_sql_callbacks_failures.test_what_the_applications_statement_violates_is_its_error,
]
WITH_ENGINES = [
    test_sql_callbacks.test_processes_that_come_first_at_once_make_one_table,
    test_sql_callbacks.test_five_processes_that_race_apply_each_transaction_once,
    test_sql_callbacks.test_marks_that_are_read_by_many_threads_never_go_back,
    test_sql_callbacks_failures.test_a_serialization_failure_is_retried_with_the_marks_right,
]


def named(test: Callable[..., None]) -> str:
    return test.__name__.removeprefix("test_")


@pytest.fixture(autouse=True)
def on_django(monkeypatch: pytest.MonkeyPatch, engine: sql.Engine) -> None:
    """Let the tests of SqlCallbacks make DjangoCallbacks."""
    modules: Sequence[ModuleType] = (
        test_sql_callbacks, test_sql_callbacks_failures, test_sql_tables, sql_processes,
    )  # fmt: skip
    for module in modules:
        for name, what in (
            ("Applying", DjangoApplying),
            ("IntegrityError", db.IntegrityError),
            ("away", django_project.away),
        ):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, what)
    migrate(engine.url)


@pytest.mark.parametrize("test", WITH_AN_ENGINE, ids=named)
def test_what_sql_callbacks_do_is_done(engine: sql.Engine, test: Callable[..., None]) -> None:
    """PM-50 to PM-57."""
    test(engine)


@pytest.mark.parametrize("database", KINDS[1:], indirect=True)
def test_a_transaction_that_an_error_has_ended_is_never_committed(engine: sql.Engine) -> None:
    """PM-56. No error ends a transaction of SQLite, and the driver's rollback is forbidden."""
    test_sql_callbacks.test_a_transaction_that_an_error_has_ended_is_never_committed(engine)


@pytest.mark.parametrize("test", WITH_ENGINES, ids=named)
def test_what_sql_callbacks_do_in_several_processes_is_done(
    open_engine: OpenEngine, test: Callable[..., None]
) -> None:
    """PM-50 to PM-57."""
    test(open_engine)


def test_a_conflict_of_two_partitions_is_retried_with_the_marks_right(
    open_engine: OpenEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """PM-54."""
    same = test_sql_callbacks_failures
    same.test_a_conflict_of_two_partitions_is_retried_with_the_marks_right(open_engine, caplog)


def test_the_transaction_is_serializable(engine: sql.Engine) -> None:
    """PM-53: and the next one of the same connection is as usual."""
    inside: list[str] = []
    isolation: Callable[[Any], str] = test_sql_callbacks.isolation

    def look(connection: OnDjango) -> None:
        if engine.dialect.name == "postgresql":
            inside.append(isolation(connection))
        if engine.dialect.name == "mysql":  # the session's level is another one
            time.sleep(0.2)  # for as long the database shows what it has shown
            asked = "trx_isolation_level FROM information_schema.innodb_trx"
            own = "WHERE trx_mysql_thread_id = CONNECTION_ID()"
            inside.append(connection.exec_driver_sql(f"SELECT {asked} {own}").scalar_one())

    callbacks = DjangoApplying(engine, also=look)
    callbacks.get_client_high_water_mark(P0)
    usual = isolation(callbacks.connection)
    callbacks.apply_transactions(transactions(0, 2))
    if engine.dialect.name != "sqlite":  # which has no other level
        assert inside == ["SERIALIZABLE"]
        assert usual != "SERIALIZABLE"
    assert isolation(callbacks.connection) == usual


@pytest.mark.parametrize("how", ["COMMIT", "ROLLBACK", "commit", "set_rollback", "close"])
def test_an_application_cannot_end_the_transaction(engine: sql.Engine, how: str) -> None:
    """PM-56: by a statement, or by what Django has for it."""
    alias = alias_of(engine.url)

    def end(connection: OnDjango) -> None:
        match how:
            case "commit":
                transaction.commit(using=alias)
            case "set_rollback":
                transaction.set_rollback(True, using=alias)
            case "close":
                connections[alias].close()
            case _:
                connection.exec_driver_sql(how)

    callbacks = DjangoApplying(engine, also=end)
    callbacks.get_client_high_water_mark(P0)
    with pytest.raises((LocalProtocolError, db.Error)):
        callbacks.apply_transactions(transactions(0, 2))
    assert rows(engine) == []
    assert DjangoApplying(engine).get_client_high_water_mark(P0) == -1


def test_a_database_that_another_process_binds_to_another_log_is_left_alone(
    engine: sql.Engine,
) -> None:
    one, other = DjangoApplying(engine), DjangoApplying(engine)
    one.get_client_high_water_mark(P0)
    one.keep_client_history(P0, UUID(int=1), None)
    other.get_client_high_water_mark(P0)
    other.keep_client_history(P0, UUID(int=2), UUID(int=1))
    one.keep_client_history(P0, UUID(int=1), None)
    assert other.get_client_history(P0) == UUID(int=2), "it was not None any more"
    one = DjangoApplying(engine)
    one.get_client_high_water_mark(P0)
    other.keep_client_history(P0, UUID(int=3), UUID(int=2))
    with pytest.raises(HistoryChangedError, match="now belongs to history"):
        one.apply_transactions(transactions(0, 2))
    assert rows(engine) == []


def test_what_waits_for_the_commit_runs_once_after_it(engine: sql.Engine) -> None:
    alias, ran = alias_of(engine.url), list[list[int]]()
    callbacks = DjangoApplying(
        engine,
        also=lambda _: transaction.on_commit(lambda: ran.append(rows(engine)), using=alias),
    )
    callbacks.get_client_high_water_mark(P0)
    callbacks.failures = [ValueError("not this time")]
    with pytest.raises(ValueError, match="not this time"):
        callbacks.apply_transactions(transactions(0, 2))
    callbacks.apply_transactions(transactions(0, 2))
    assert ran == [[0, 1]]


def test_an_error_after_the_commit_is_logged_and_no_failure_to_apply(
    engine: sql.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ValueError("the mail was not sent")

    callbacks = DjangoApplying(
        engine, also=lambda _: transaction.on_commit(fail, using=alias_of(engine.url))
    )
    callbacks.get_client_high_water_mark(P0)
    callbacks.apply_transactions(transactions(0, 2))
    callbacks.apply_transactions(transactions(2, 3))
    assert rows(engine) == [0, 1, 2]
    assert "after_commit_failed error=ValueError('the mail was not sent')" in caplog.text


def test_changes_of_another_database_are_refused_and_reading_it_is_not(
    engine: sql.Engine, tmp_path: Path
) -> None:
    other = sql.make_url(f"sqlite:///{tmp_path / 'other.db'}")
    migrate(other)

    def read(_: OnDjango) -> None:
        assert not HighWaterMark.objects.using(alias_of(other)).exists()

    def change(_: OnDjango) -> None:
        HighWaterMark.objects.using(alias_of(other)).create(partition_id=1, high_water_mark=1)

    for also in (read, change):
        callbacks = DjangoApplying(engine, also=also)
        callbacks.get_client_high_water_mark(P0)
        if also is read:
            callbacks.apply_transactions(transactions(0, 2))
        else:
            with pytest.raises(LocalProtocolError, match=r"in the database .*other\.db"):
                callbacks.apply_transactions(transactions(2, 4))
    read(callbacks.connection)
    assert rows(engine) == [0, 1]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_statements_that_are_no_strings_are_looked_at(engine: sql.Engine) -> None:
    """PM-56: the drivers of the other databases take strings only."""
    from psycopg.sql import SQL

    for statement in (b"COMMIT", SQL("COMMIT")):
        callbacks = DjangoApplying(
            engine,
            also=lambda connection, statement=statement: connection.exec_driver_sql(statement),  # type: ignore[misc]
        )
        callbacks.get_client_high_water_mark(P0)
        with pytest.raises(LocalProtocolError, match=r"savepoints \(atomic\) are allowed"):
            callbacks.apply_transactions(transactions(0, 2))
    assert rows(engine) == []


def test_a_parked_transaction_that_an_error_has_ended_stays_parked(engine: sql.Engine) -> None:
    """PM-38: as with SqlCallbacks."""
    test_sql_tables.test_a_parked_transaction_that_an_error_has_ended_stays_parked(engine)


def test_a_database_without_the_tables_is_told_what_to_run(engine: sql.Engine) -> None:
    alias = alias_of(engine.url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE waltz_high_water_marks")
    marks = DjangoMarks(alias)
    token = ConsistencyToken.of(UUID(int=5), {0: 1})
    assert not marks.has_applied(token)
    with pytest.raises(ConfigurationError, match="migrate waltz --database"):
        DjangoApplying(engine).get_client_high_water_mark(P0)


def test_a_transaction_is_parked_and_applied_after_all_in_the_same_table(
    engine: sql.Engine,
) -> None:
    """PM-38: the table is that of SqlCallbacks, so that `waltz parked` works on it."""
    broken = [True]

    class Failing(DjangoApplying):
        def apply(self, transactions: Sequence[Transaction]) -> None:
            if broken and any(each.data == b"bad" for each in transactions):
                raise ValueError("not to be applied")
            super().apply(transactions)

    parked = ParkedTable("waltz_parked")
    with InMemoryCluster(for_tests=True) as cluster:
        client = cluster.open_client(Failing(engine), on_apply_failure="park", apply_attempts_max=1)
        for data in (b"good", b"bad", b"good"):
            client.append(0, data)
        client.wait_until_applied(timeout_seconds=60)
        token = client.token({0: 2})
        assert client.parked_transactions() == {0: 1}
        client.close()
        assert rows(engine) == [0, 2]
        assert DjangoMarks(alias_of(engine.url)).has_applied(token)
        with engine.begin() as connection:
            (row,) = parked.rows(connection)
            assert (row.transaction_id, row.data) == (1, b"bad")
            assert "not to be applied" in row.error
            parked.change(connection, 0, 1, RETRY)
        again = cluster.open_client(Failing(engine))
        again.wait_until_applied(timeout_seconds=60)
        again.close()
        with engine.begin() as connection:
            (row,) = parked.rows(connection)
            assert row.state == "parked"
            parked.change(connection, 0, 1, RETRY)
        broken.clear()
        cluster.open_client(Failing(engine)).wait_until_applied(timeout_seconds=60)
        assert rows(engine) == [0, 1, 2]
        with engine.begin() as connection:
            assert parked.rows(connection) == []


def test_a_database_follows_one_log(engine: sql.Engine) -> None:
    with InMemoryCluster(for_tests=True) as cluster:
        client = cluster.open_client(DjangoApplying(engine))
        client.append(0, b"x")
    marks = DjangoMarks(alias_of(engine.url))
    with InMemoryCluster(for_tests=True) as other:
        client = other.open_client(DjangoApplying(engine))
        with pytest.raises(HistoryChangedError):
            client.append(0, b"y", timeout_seconds=60)
        with pytest.raises(HistoryChangedError):
            marks.has_applied(ConsistencyToken.of(UUID(int=5), {0: 0}))


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_server_that_dies_in_between_has_applied_once_when_it_is_back(
    servers: Callable[[str], DatabaseServer], engine: sql.Engine
) -> None:
    """PM-54: Django's connection is lost with the server, and opened anew."""
    server = servers("postgresql")
    deaths = [server.kill]
    callbacks = DjangoApplying(engine, also=lambda _: deaths.pop()() if deaths else None)
    callbacks.get_client_high_water_mark(P0)
    with pytest.raises(PostponedError):  # else the outage would count as the application's error
        callbacks.apply_transactions(transactions(0, 3))
    server.start()
    apply_in_the_end(callbacks, transactions(0, 3))
    assert rows(engine) == [0, 1, 2]
    assert DjangoApplying(engine).get_client_high_water_mark(P0) == 2
