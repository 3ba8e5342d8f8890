"""One side of one TLS conversation, as bytes in and bytes out.

Owns the conversion of records into data and back. Knows nothing of sockets and time; its context
decides which certificates are trusted.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final

from waltz.types import CertificateNames

RECORD_BYTES = 16 * 1024
"""The most data of one TLS record, and of one read."""


_SHORT_NAMES: Final = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "stateOrProvinceName": "ST",
    "localityName": "L",
    "domainComponent": "DC",
    "userId": "UID",
}
"""Short names of what subjects are made of; what has none keeps the long one."""


class TlsSession:
    """A TLS session. Every method may raise ssl.SSLError; `outgoing` then has the alert for the
    peer."""

    def __init__(self, context: ssl.SSLContext, *, server_name: str | None) -> None:
        """`server_name` is the name that the connecting side demands; None: this is the accepting
        side.

        Raises ValueError: the name is invalid.
        """
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_name is None,
            server_hostname=server_name,
        )
        self.is_established = False
        self.has_ended = False
        """Whether the peer has said that it sends no more."""

    @property
    def version(self) -> str:
        """The version of the protocol, once established: `TLSv1.2`, `TLSv1.3`."""
        return self._tls.version() or ""

    @property
    def certificate(self) -> CertificateNames | None:
        """The names in the peer's certificate, if it showed one and it was verified."""
        found = self._tls.getpeercert() if self.is_established else None
        return names_in(found) if found else None

    def start(self) -> None:
        """Begin the handshake; only the connecting side does."""
        self._shake_hands()

    def receive(self, data: bytes) -> bytes:
        """Take records and return the data in them, possibly none."""
        self._incoming.write(data)
        if not self.is_established:
            self._shake_hands()
        return self._read() if self.is_established else b""

    def send(self, data: bytes) -> None:
        """Turn `data` into records; only once established."""
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]

    def finish(self) -> None:
        """Say that no more will come."""
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # the peer has not ended its side yet, which need not be waited for

    def outgoing(self) -> bytes:
        """Return the records to be sent, and forget them."""
        return self._outgoing.read()

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        self.is_established = True

    def _read(self) -> bytes:
        parts = []
        while True:
            try:
                part = self._tls.read(RECORD_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                part = b""
            if not part:
                self.has_ended = True
                break
            parts.append(part)
        return b"".join(parts)


def names_in(certificate: Mapping[str, Any]) -> CertificateNames:
    """Return the names in a certificate as the standard library shows it."""
    subject: tuple[tuple[tuple[str, str], ...], ...] = certificate.get("subject", ())
    alternative: tuple[tuple[str, str], ...] = certificate.get("subjectAltName", ())
    return CertificateNames(
        tuple(value for kind, value in alternative if kind == "URI"),
        tuple(value for kind, value in alternative if kind == "DNS"),
        tuple(value for part in subject for name, value in part if name == "commonName"),
        ",".join("+".join(_attribute(name, value) for name, value in part) for part in subject),
    )


def _attribute(name: str, value: str) -> str:
    for special in ("\\", ",", "+", "="):
        value = value.replace(special, "\\" + special)
    return f"{_SHORT_NAMES.get(name, name)}={value}"
