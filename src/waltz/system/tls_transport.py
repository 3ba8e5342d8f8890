"""The transport of an accepted connection that speaks TLS, for a protocol that knows of none.

The handshake is a part of the connection, which so is counted and bounded from its first byte on.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Final

from waltz.system.tls import HANDSHAKE_BYTE, NO_PLAIN_ALERT, Tls
from waltz.system.tls_session import TlsSession
from waltz.system.tls_trouble import explain

SPEAKS_PLAIN: Final = "it speaks plain, and this port TLS only"


class TlsTransport(asyncio.Transport):
    """The writing side for the protocol; the reading side hands what arrives to `received`."""

    def __init__(self, transport: asyncio.Transport, security: Tls) -> None:
        super().__init__({"sslcontext": True})
        self._transport = transport
        self._security = security
        self._session: TlsSession | None = None

    @property
    def is_established(self) -> bool:
        """Whether the handshake is finished."""
        return self._session is not None and self._session.is_established

    @property
    def has_ended(self) -> bool:
        """Whether the peer has said that it sends no more."""
        return self._session is not None and self._session.has_ended

    def received(self, data: bytes) -> tuple[bytes, str]:
        """Return the data in what has arrived, and why the connection cannot go on: empty if it
        can. The peer was told the latter."""
        if self._session is None:
            if data[0] != HANDSHAKE_BYTE:
                self._transport.write(_no_plain(data))
                return b"", SPEAKS_PLAIN
            self._session = self._security.accepted()
        try:
            found, trouble = self._session.receive(data), ""
        except ssl.SSLError as error:
            found, trouble = b"", explain(error, self._security.settings)
        self._transport.write(self._session.outgoing())
        return found, trouble

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if not self.is_established or self._transport.is_closing():
            return  # nobody can read it
        assert self._session is not None
        self._session.send(bytes(data))
        self._transport.write(self._session.outgoing())

    def close(self) -> None:
        if self.is_established and not self._transport.is_closing():
            assert self._session is not None
            self._session.finish()
            self._transport.write(self._session.outgoing())
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return super().get_extra_info(name, self._transport.get_extra_info(name, default))


def _no_plain(data: bytes) -> bytes:
    """Return the answer to a peer that speaks plain: to a browser or scraper in its own words."""
    if not data[:2].isalpha():
        return NO_PLAIN_ALERT
    text = b"this port speaks TLS only: use https://\n"
    head = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\n"
    return head + b"content-length: %d\r\n\r\n" % len(text) + text
