"""What answers at an address, by its first words, for who has been given the wrong one.

Owns the greetings and first bytes of everything that a cluster listens with. Knows no connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

HELLO_START: Final = b"H\x00\x00"
FIRST_BYTES_MAX: Final = 128
"""With fewer every greeting is told from the others."""

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
"""Those of the Java original and ours."""

WANTED: Final[Mapping[str, str]] = {
    "Waltz Client": SERVER,
    "Waltz Storage Client": STORAGE,
    "Waltz Storage Admin Client": ADMIN,
}
"""What each of those who connect looks for."""


def mistaken(own_greeting: str, found: str | None) -> str | None:
    """Return what is wrong when `found` answers to who greets like that; None: nothing is, or
    nobody knows it."""
    wanted = WANTED.get(own_greeting)
    if wanted is None or found is None or found == wanted:
        return None
    return f"{found} answers there; expected {wanted}: give that one's address"


def recognized(data: bytes) -> str | None:
    """Return what the first bytes of an answer belong to; None: too few, or nothing known."""
    if data.startswith(b"HTTP/"):
        return HTTP
    if data.startswith((b"\x15\x03", b"\x16\x03")):
        return "a port that expects TLS"
    if data.startswith((b"Zookeeper version", b"srvr is not executed")):
        return ZOOKEEPER
    if data.startswith(b"{"):
        return COORDINATOR
    if data.startswith(HELLO_START):
        # Of two greetings one may contain the other's end, never its own beginning.
        return next((name for text, name in GREETINGS.items() if text.encode() in data), None)
    return None
