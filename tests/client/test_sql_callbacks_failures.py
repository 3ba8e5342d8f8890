"""SqlCallbacks when statements fail, transactions conflict, and databases or processes die."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from threading import Barrier

import pytest
import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError

from tests.client.conftest import OpenEngine
from tests.client.sql_applications import (
    APPLIED,
    P0,
    WHEN,
    Applying,
    new_engine,
    rows,
    transactions,
)
from tests.client.sql_processes import P1, apply_in_the_end, away, in_threads
from tests.clusters import ROOT
from tests.databases import SERVERS, DatabaseServer
from waltz.errors import LocalProtocolError, PostponedError
from waltz.types import PartitionId

# When the database fails


def test_what_the_applications_statement_violates_is_its_error(engine: sql.Engine) -> None:
    """PM-54."""
    callbacks = Applying(engine)
    callbacks.get_client_high_water_mark(P0)
    with engine.begin() as connection:
        connection.execute(APPLIED.insert().values(partition=0, number=1, by="before"))
    with pytest.raises(IntegrityError):
        callbacks.apply_transactions(transactions(0, 2))
    assert rows(engine) == [1]
    assert Applying(engine).get_client_high_water_mark(P0) == -1


def test_a_failure_that_stays_is_asked_for_ever_less_often(
    engine: sql.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """PM-54: and is to be seen, also where reading the mark works all the while."""
    callbacks = Applying(engine)
    callbacks.get_client_high_water_mark(P0)
    callbacks.failures = [away() for _ in range(4)]
    delays = []
    for _ in range(4):
        callbacks.choose_prefetch(transactions(0, 2))
        with pytest.raises(PostponedError) as raised:
            callbacks.apply_transactions(transactions(0, 2))
        delays.append(raised.value.delay_seconds)
    assert delays == [0.01, 0.02, 0.04, 0.08]
    assert "database_failed attempt=4" in caplog.text
    apply_in_the_end(callbacks, transactions(0, 2))
    callbacks.failures = [away()]
    with pytest.raises(PostponedError) as raised:
        callbacks.apply_transactions(transactions(2, 3))
    assert raised.value.delay_seconds == 0.01


def test_a_conflict_of_two_partitions_is_retried_with_the_marks_right(
    open_engine: OpenEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """PM-54: each changes first its own row and then the other's, at the same time: a deadlock, or
    where there is one writer at a time none."""
    shared = sql.Table(
        "shared",
        sql.MetaData(),
        sql.Column("id", sql.Integer, primary_key=True, autoincrement=False),
        sql.Column("total", sql.Integer),
    )
    engine = open_engine()
    shared.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(shared.insert(), [{"id": 0, "total": 0}, {"id": 1, "total": 0}])
    one_writer = engine.dialect.name == "sqlite"
    barrier = Barrier(2)

    def change(own: int) -> Callable[[sql.Connection], None]:
        meetings = [] if one_writer else [lambda: barrier.wait(60)]

        def both(connection: sql.Connection) -> None:
            for number in (own, 1 - own):
                connection.execute(
                    shared.update().where(shared.c.id == number).values(total=shared.c.total + 1)
                )
                if meetings:
                    meetings.pop()()

        return both

    callbacks = [Applying(open_engine(), f"{own}", also=change(own)) for own in (0, 1)]
    for each, partition_id in zip(callbacks, (P0, P1), strict=True):
        each.get_client_high_water_mark(partition_id)
    postponed: list[int] = []

    def follow(each: Applying, partition_id: PartitionId) -> None:
        postponed.append(apply_in_the_end(each, transactions(0, 3, partition_id)))

    in_threads([lambda: follow(callbacks[0], P0), lambda: follow(callbacks[1], P1)])
    assert one_writer or sum(postponed) >= 1
    with engine.connect() as connection:
        assert [row.total for row in connection.execute(shared.select())] == [2, 2]
    assert rows(engine, 0) == rows(engine, 1) == [0, 1, 2]
    assert Applying(engine).get_client_high_water_mark(P0) == 2
    assert Applying(engine).get_client_high_water_mark(P1) == 2
    assert "database_failed" not in caplog.text, "contention is nothing to be told of"


def test_a_serialization_failure_is_retried_with_the_marks_right(
    open_engine: OpenEngine,
) -> None:
    """PM-53, PM-54: each counts the rows of the other and writes one of its own; one after the
    other, in whatever order, one of them must see the other's."""
    engine = open_engine()
    barrier = Barrier(2)
    counted: dict[int, int] = {}

    def count(own: int) -> Callable[[sql.Connection], None]:
        meets = engine.dialect.name == "postgresql"  # the others let nobody read what is written
        meetings = [lambda: barrier.wait(60)] if meets else []

        def look(connection: sql.Connection) -> None:
            other = APPLIED.select().where(APPLIED.c.partition == 1 - own)
            counted[own] = len(connection.execute(other).all())
            if meetings:
                meetings.pop()()

        return look

    callbacks = [Applying(open_engine(), f"{own}", also=count(own)) for own in (0, 1)]
    for each, partition_id in zip(callbacks, (P0, P1), strict=True):
        each.get_client_high_water_mark(partition_id)
    in_threads(
        [
            lambda: apply_in_the_end(callbacks[0], transactions(0, 1, P0)),
            lambda: apply_in_the_end(callbacks[1], transactions(0, 1, P1)),
        ]
    )
    assert sorted(counted.values()) == [0, 1]
    assert rows(engine, 0) == rows(engine, 1) == [0]


@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_that_dies_in_between_has_applied_once_when_it_is_back(
    servers: Callable[[str], DatabaseServer], kind: str
) -> None:
    """PM-54, PM-55: before the commit, and then while the mark is read, five times."""
    server = servers(kind)
    engine = new_engine(server.empty_database())
    APPLIED.metadata.create_all(engine)
    deaths = [server.kill]
    callbacks = Applying(engine, also=lambda connection: deaths.pop()() if deaths else None)
    callbacks.get_client_high_water_mark(P0)
    with pytest.raises((PostponedError, LocalProtocolError)):
        callbacks.apply_transactions(transactions(0, 3))
    for _ in range(5):
        with pytest.raises(PostponedError):
            callbacks.get_client_high_water_mark(P0)
    assert callbacks.attempts == [1, 2, 3, 4, 5]
    server.start()
    assert callbacks.get_client_high_water_mark(P0) == -1
    apply_in_the_end(callbacks, transactions(0, 3))
    assert rows(engine) == [0, 1, 2]
    assert Applying(engine).get_client_high_water_mark(P0) == 2
    engine.dispose()


@pytest.mark.parametrize("when", WHEN)
def test_a_process_that_is_killed_has_applied_once_when_it_is_back(
    engine: sql.Engine, database: sql.URL, when: str
) -> None:
    """PM-50: between apply and commit, at the commit, and before anybody knows of the commit."""
    Applying(engine).get_client_high_water_mark(P0)
    url = database.render_as_string(hide_password=False)
    done = subprocess.run(
        [sys.executable, "-m", "tests.client.sql_applications", url, when],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -9, done.stderr
    again = Applying(engine, "the living")
    position = again.get_client_high_water_mark(P0) + 1
    assert position == (3 if when == "after commit" else 0)
    apply_in_the_end(again, transactions(position, 6))
    assert rows(engine) == list(range(6))


def test_a_hook_that_raises_says_why_the_mark_is_not_read() -> None:
    """PM-55."""

    class Impatient(Applying):
        def on_error_getting_client_high_water_mark(self, attempt: int, error: Exception) -> None:
            if attempt == 3:
                raise ValueError("three times is enough") from error

    engine = sql.create_engine("sqlite:////nowhere/app.db")
    callbacks = Impatient(engine)
    for _ in range(2):
        with pytest.raises(PostponedError):
            callbacks.get_client_high_water_mark(P0)
    with pytest.raises(ValueError, match="three times is enough"):
        callbacks.get_client_high_water_mark(P0)
