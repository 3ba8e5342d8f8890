"""A TCP connection until its peer has said what it wants.

Greets and reads; decides nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from waltz.errors import RemoteProtocolError
from waltz.host import Connection
from waltz.wire.client_protocol import SERVER_GREETING
from waltz.wire.handshake import Link
from waltz.wire.lifecycle_protocol import (
    LIFECYCLE_SINCE,
    ConnectionRestoreRequest,
    HandshakeRequest,
)
from waltz.wire.message import Codec


class Arrival(NamedTuple):
    """A TCP connection whose peer has said what it wants; `rest` came after it."""

    connection: Connection
    link: Link
    rest: bytes
    request: HandshakeRequest | ConnectionRestoreRequest | None
    """None: a version without logical connections."""


async def receive_arrival(connection: Connection, codec: Codec) -> Arrival | None:
    """Greet, and return once the peer has said what it wants; None if it has gone.

    Raises RemoteProtocolError.
    """
    link = Link(codec, SERVER_GREETING, opens=True)
    connection.write(link.hello())
    rest: bytes | None = None
    while rest is None:
        if not (data := await connection.read(link.frames.wanted_bytes)):
            return None
        rest = link.greet(data)
    assert link.version is not None
    if link.version < LIFECYCLE_SINCE:
        link.opened()
        return Arrival(connection, link, rest, None)
    return await _receive_request(connection, link, rest)


async def receive_next_request(arrival: Arrival) -> Arrival | None:
    """The answer was another version: return what the peer says to that. As `receive_arrival`."""
    return await _receive_request(arrival.connection, arrival.link, arrival.rest)


async def _receive_request(connection: Connection, link: Link, data: bytes) -> Arrival | None:
    while (first := link.receive_first(data)) is None:
        if not (data := await connection.read(link.frames.wanted_bytes)):
            return None
    message, rest = first
    if not isinstance(message, HandshakeRequest | ConnectionRestoreRequest):
        raise RemoteProtocolError(
            f"{type(message).__name__} as first message; expected HandshakeRequest or"
            " ConnectionRestoreRequest"
        )
    return Arrival(connection, link, rest, message)
