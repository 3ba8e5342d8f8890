"""Databases for the tests of SqlCallbacks: each kind is started once, where a test asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import sqlalchemy as sql

from tests.client.sql_applications import APPLIED, new_engine
from tests.databases import SERVERS, DatabaseServer, running_database

OpenEngine = Callable[[], sql.Engine]


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[str], DatabaseServer]]:
    """The running server of a kind."""
    running: dict[str, DatabaseServer] = {}
    with ExitStack() as stack:

        def server(kind: str) -> DatabaseServer:
            if kind not in running:
                running[kind] = stack.enter_context(running_database(kind))
            return running[kind]

        yield server


@pytest.fixture(params=["sqlite", *SERVERS])
def database(
    request: pytest.FixtureRequest, tmp_path: Path, servers: Callable[[str], DatabaseServer]
) -> sql.URL:
    """The address of an empty database of each kind."""
    if request.param == "sqlite":
        return sql.make_url(f"sqlite:///{tmp_path / 'app.db'}")
    return servers(request.param).empty_database()


@pytest.fixture
def open_engine(database: sql.URL) -> Iterator[OpenEngine]:
    """Makes engines for the database, as each process has one; `applied` is there already."""
    engines: list[sql.Engine] = []

    def open_one() -> sql.Engine:
        engines.append(new_engine(database))
        return engines[-1]

    APPLIED.metadata.create_all(open_one())
    yield open_one
    for engine in engines:
        engine.dispose()


@pytest.fixture
def engine(open_engine: OpenEngine) -> sql.Engine:
    return open_engine()
