"""The connection of a thread to one of Django's databases, where Django does not look after it."""

from __future__ import annotations

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from waltz.errors import ConfigurationError


def usable_connection(using: str) -> BaseDatabaseWrapper:
    """Return this thread's connection: a new one after an error, or if the old one is older than
    CONN_MAX_AGE. Django does so per request; a thread of the client serves none. With a
    CONN_MAX_AGE of 0 the connection is kept: there would be a new one per statement.

    Raises ConfigurationError: the database has AUTOCOMMIT False.
    """
    connection = connections[using]
    if not connection.settings_dict["AUTOCOMMIT"]:
        raise ConfigurationError(
            f"the database {using!r} has AUTOCOMMIT False; Waltz needs True: without it Django"
            " commits nothing at the end of atomic()"
        )
    if connection.errors_occurred or connection.settings_dict["CONN_MAX_AGE"] != 0:
        connection.close_if_unusable_or_obsolete()
    return connection
