"""The bytes that the Java original printed, said to one of our ports, and the bytes it must answer.

Nothing here decodes or encodes: frames are cut by their length, and compared as they are.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Mapping, Sequence
from typing import Final

from tests.wire.golden import GOLDEN_FRAMES
from waltz.types import Address

FRAMES: Final[Mapping[str, bytes]] = {
    golden.name: golden.frame for golden in GOLDEN_FRAMES if golden.frame is not None
}
HEADER_BYTES: Final = 7
SECONDS_MAX: Final = 60.0


class Conversation:
    """The client's side of one connection to `address`, over TLS if there is a context for it."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None = None) -> None:
        self._socket = socket.create_connection((address.host, address.port), SECONDS_MAX)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=address.host)

    def say(self, *frames: bytes) -> None:
        self._socket.sendall(b"".join(frames))

    def hear(self) -> bytes:
        """The next frame, header and all. Raises AssertionError: the connection has ended."""
        header = self._exactly(HEADER_BYTES)
        (length,) = struct.unpack(">i", header[3:])
        return header + self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            data = self._socket.recv(count - len(found))
            assert data, f"the connection has ended after {found.hex(' ')}"
            found += data
        return found

    def close(self) -> None:
        self._socket.close()


def patched(frame: bytes, places: Sequence[tuple[int, bytes]]) -> bytes:
    """`frame` with other bytes at these places of its payload: where they must differ."""
    content = bytearray(frame)
    for place, data in places:
        start = HEADER_BYTES + place
        assert start + len(data) <= len(content)
        content[start : start + len(data)] = data
    return bytes(content)


def with_versions(hello: bytes, *versions: int) -> bytes:
    """A Hello of the original, of a release that knew these versions and none besides."""
    (count,) = struct.unpack_from(">i", hello, HEADER_BYTES)
    text = hello[HEADER_BYTES + 4 + 2 * count :]
    payload = struct.pack(f">i{len(versions)}h", len(versions), *versions) + text
    return hello[:3] + struct.pack(">i", len(payload)) + payload
