"""Databases for the tests of relays, as those of SqlCallbacks have them."""

from __future__ import annotations

from tests.client.conftest import database, servers

__all__ = ["database", "servers"]
