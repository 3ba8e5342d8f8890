"""The connection of a thread: replaced when broken, and refused if it commits only by hand."""

from __future__ import annotations

import pytest
import sqlalchemy as sql
from django import db
from django.db import connections

from tests.client.sql_applications import P0
from tests.ext.conftest import KINDS
from tests.ext.django_project import DjangoApplying, alias_of, migrate
from waltz.errors import ConfigurationError
from waltz.ext.django.usable_connection import usable_connection


@pytest.mark.parametrize("database", KINDS[1:2], indirect=True)
def test_a_connection_that_an_error_has_left_is_replaced(engine: sql.Engine) -> None:
    """A thread of the client serves no request, so Django does not close its broken connection."""
    alias = alias_of(engine.url)
    usable_connection(alias).cursor().execute("SELECT pg_backend_pid()")
    before = connections[alias].connection
    assert usable_connection(alias).connection is before
    with pytest.raises(db.OperationalError):
        connections[alias].cursor().execute("SELECT pg_terminate_backend(pg_backend_pid())")
    with usable_connection(alias).cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)
    assert connections[alias].connection is not before


@pytest.mark.parametrize("database", KINDS[:1], indirect=True)
def test_a_database_that_commits_only_by_hand_is_refused(engine: sql.Engine) -> None:
    """With AUTOCOMMIT False the end of atomic() commits nothing."""
    migrate(engine.url)
    callbacks = DjangoApplying(engine)
    settings = connections[alias_of(engine.url)].settings_dict
    settings["AUTOCOMMIT"] = False
    try:
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT False"):
            callbacks.get_client_high_water_mark(P0)
    finally:
        settings["AUTOCOMMIT"] = True
