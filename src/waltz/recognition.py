"""Recognises what listens at a wrong address by the first bytes of its answer.

Owns the greetings and first bytes of all ports of a cluster. Knows no connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

HELLO_START: Final = b"H\x00\x00"
FIRST_BYTES_MAX: Final = 128
"""Bytes of an answer that suffice to tell all greetings apart."""

SERVER: Final = "a Waltz server"
STORAGE: Final = "a storage node's data port"
ADMIN: Final = "a storage node's admin port"
COORDINATOR: Final = "the embedded coordinator"
ZOOKEEPER: Final = "a ZooKeeper"
HTTP: Final = "an HTTP port"

GREETINGS: Final[Mapping[str, str]] = {
    "Waltz Server": SERVER,
    "Waltz Storage Server": STORAGE,
    "Waltz Storage Admin Server": ADMIN,
}
"""The greetings of the Java original and ours."""

WANTED: Final[Mapping[str, str]] = {
    "Waltz Client": SERVER,
    "Waltz Storage Client": STORAGE,
    "Waltz Storage Admin Client": ADMIN,
}
"""The kind of port that each connecting side looks for, by its greeting."""


def mistaken(own_greeting: str, found: str | None) -> str | None:
    """Return the error text if `found` answers a side that greets with `own_greeting`; None: it is
    the right one, or unknown."""
    wanted = WANTED.get(own_greeting)
    if wanted is None or found is None or found == wanted:
        return None
    return f"{found} answers there; expected {wanted}: give the address of {wanted}"


def recognized(data: bytes) -> str | None:
    """Return the kind of port that answers with these first bytes; None: too few, or unknown."""
    if data.startswith(b"HTTP/"):
        return HTTP
    if data.startswith((b"\x15\x03", b"\x16\x03")):
        return "a port that expects TLS"
    if data.startswith((b"Zookeeper version", b"srvr is not executed")):
        return ZOOKEEPER
    if data.startswith(b"{"):
        return COORDINATOR
    if data.startswith(HELLO_START):
        # No greeting contains another one.
        return next((name for text, name in GREETINGS.items() if text.encode() in data), None)
    return None
