"""Databases of each kind, as the tests of SqlCallbacks have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sql

from tests.client.conftest import engine, open_engine, servers
from tests.databases import DatabaseServer
from tests.ext.sites import make_sites

__all__ = ["database", "engine", "open_engine", "servers"]

KINDS = ["sqlite", "postgresql", pytest.param("mariadb", marks=pytest.mark.long)]


@pytest.fixture(params=KINDS)
def database(
    request: pytest.FixtureRequest, tmp_path: Path, servers: Callable[[str], DatabaseServer]
) -> sql.URL:
    """The address of an empty database of each kind."""
    if request.param == "sqlite":
        return sql.make_url(f"sqlite:///{tmp_path / 'app.db'}")
    return servers(request.param).empty_database()


@pytest.fixture(scope="session")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the applications of the page, to be copied."""
    folder = tmp_path_factory.mktemp("sites")
    make_sites(folder)
    return folder
