"""Makes certificates: a self-signed one where none is given, and the throw-away CA of a trial.

Owns their content. Import this module only where one has to be made: its library takes 50 ms to
import.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

TLS_SELF_SIGNED_DAYS: Final = 3650
"""Validity of a self-signed pair, which is made at each start; nobody verifies it."""

TLS_TRIAL_DAYS: Final = 365
"""Validity of the certificates of `waltz up --tls`; each start makes new ones."""


SELF_SIGNED_NAME = "waltz self-signed"
AUTHORITY_NAME = "waltz up, throw-away CA"


@dataclass(frozen=True, slots=True)
class CertificatePair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


def self_signed_pair() -> CertificatePair:
    """Return a new pair that proves nothing: TLS needs some pair."""
    key = generate_private_key(SECP256R1())
    name = _name(SELF_SIGNED_NAME)
    builder = _builder(name, name, key, TLS_SELF_SIGNED_DAYS)
    return _pair(builder.sign(key, SHA256()), key)


class ThrowAwayAuthority:
    """A CA whose key is never written to a file and ends with this object."""

    def __init__(self, *, days: float = TLS_TRIAL_DAYS) -> None:
        """`days` below 0: issued certificates have expired."""
        self._days = days
        self._key = generate_private_key(SECP256R1())
        # A unique name: peers tell two CAs apart by their names.
        self._name = _name(f"{AUTHORITY_NAME} {x509.random_serial_number():x}"[:64])
        self._certificate = (
            _builder(self._name, self._name, self._key, max(days, TLS_TRIAL_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, SHA256())
        )

    @property
    def certificate(self) -> bytes:
        """The CA's certificate as PEM, for processes that shall trust it."""
        return self._certificate.public_bytes(Encoding.PEM)

    def issue(self, common_name: str, hosts: Sequence[str] = ()) -> CertificatePair:
        """Return a pair for `hosts`, names or IP addresses; a client's pair needs none."""
        key = generate_private_key(SECP256R1())
        builder = _builder(_name(common_name), self._name, key, self._days).add_extension(
            x509.BasicConstraints(ca=False, path_length=None), critical=True
        )
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        return _pair(builder.sign(self._key, SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, days: float
) -> x509.CertificateBuilder:
    # Valid from a day ago: a peer whose clock is slow would refuse it otherwise.
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start + datetime.timedelta(days=min(days, 0)))
        .not_valid_after(start + datetime.timedelta(days=1 + days))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pair(certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> CertificatePair:
    return CertificatePair(
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
