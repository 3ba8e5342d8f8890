"""Databases of each kind, as the tests of SqlCallbacks have them."""

from tests.client.conftest import database, engine, open_engine, servers

__all__ = ["database", "engine", "open_engine", "servers"]
