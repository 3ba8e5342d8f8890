"""A process with a token waits until a database has the transactions of the token."""

from __future__ import annotations

import threading
from collections.abc import Callable
from uuid import UUID

import pytest
import sqlalchemy as sql

from tests.client.conftest import OpenEngine
from tests.client.fake_cluster import CLUSTER_KEY, FakeCluster, run_with_cluster, until
from tests.client.sql_applications import Applying, rows
from tests.client.test_following_one_history import RESTORE
from tests.client.test_waiting_for_tokens import token_of
from waltz.client.client_shell import AsyncWaltzClient
from waltz.client.consistency_token import ConsistencyToken
from waltz.client.databases.database_marks_shell import DatabaseMarks
from waltz.client.databases.sql_tables import make_marks_ready
from waltz.errors import HistoryChangedError, OperationTimeoutError


def move(engine: sql.Engine, mark: int, history: UUID | None = CLUSTER_KEY) -> None:
    """Apply as `SqlCallbacks` would, through `mark`."""
    table = Applying(engine).table
    with engine.begin() as connection:
        connection.execute(table.delete())
        text = None if history is None else str(history)
        connection.execute(
            table.insert().values(partition_id=0, high_water_mark=mark, history=text)
        )


def test_a_database_without_marks_has_applied_nothing(engine: sql.Engine) -> None:
    marks = DatabaseMarks(engine)
    assert not marks.has_applied(token_of(0))
    make_marks_ready(Applying(engine).table, engine)
    assert not marks.has_applied(token_of(0))
    move(engine, 7, history=None)
    with pytest.raises(OperationTimeoutError, match="partition 0 has no mark with a history"):
        marks.wait_until_applied(token_of(0), 0.0)
    assert marks.has_applied(ConsistencyToken.of(CLUSTER_KEY, {}))


def test_a_database_tells_how_far_it_is(engine: sql.Engine) -> None:
    make_marks_ready(Applying(engine).table, engine)
    marks = DatabaseMarks(engine)
    move(engine, 4)
    assert [marks.has_applied(token_of(mark)) for mark in (3, 4, 5)] == [True, True, False]
    with pytest.raises(OperationTimeoutError, match="partition 0 is at 4 of 5"):
        marks.wait_until_applied(token_of(5), 0.02)
    with pytest.raises(HistoryChangedError, match="in another history than the one"):
        marks.has_applied(token_of(0, RESTORE.history_id))


def test_who_reads_the_database_sees_what_another_process_has_applied(
    open_engine: OpenEngine,
) -> None:
    async def work(cluster: FakeCluster) -> None:
        engine, found = open_engine(), list[int]()

        def read(done: Callable[[], None]) -> None:
            DatabaseMarks(engine).wait_until_applied(token_of(9), 60.0)
            found.extend(rows(engine))
            done()

        ended = threading.Event()
        reading = threading.Thread(target=read, args=(ended.set,), daemon=True)
        async with AsyncWaltzClient(cluster.host, Applying(open_engine())) as client:
            await client.append(0, b"first")
            reading.start()
            for number in range(9):
                await client.append(0, b"%d" % number)
            await until(ended.is_set)
        assert found == [*range(10)]

    run_with_cluster(work)
