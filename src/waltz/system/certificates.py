"""Makes certificates: those of a small CA, and a self-signed one where none is given.

Owns their content. Import this module only where one has to be made: its library takes 50 ms to
import.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import secrets
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from waltz.errors import ConfigurationError
from waltz.types import CertificateNames

TLS_SELF_SIGNED_DAYS: Final = 3650
"""Validity of a self-signed pair, which is made at each start; nobody verifies it."""

NAME_CHARACTERS_MAX: Final = 47
"""Characters of a CA's name, without its random part; RFC 5280 allows 64 for both."""

SELF_SIGNED_NAME = "waltz self-signed"

BACKDATED: Final = datetime.timedelta(days=1)
"""A certificate is valid from a day before it was made: a peer whose clock is slow would refuse it
otherwise."""

BOTH_SIDES: Final = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
CONNECTING_SIDE: Final = (ExtendedKeyUsageOID.CLIENT_AUTH,)

SIGNS_CONNECTIONS: Final = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=False,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)
SIGNS_CERTIFICATES: Final = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True, slots=True)
class CertificatePair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Identity:
    """The content of a certificate that says whose it is."""

    name: str
    """The common name."""
    hosts: tuple[str, ...]
    """Names and IP addresses by which peers connect; a process that only connects has none."""
    uri: str
    accepts: bool
    """Whether its holder accepts connections, besides making some."""


@dataclass(frozen=True, slots=True)
class Described:
    """The content of a certificate in words that people read."""

    name: str
    hosts: tuple[str, ...]
    uris: tuple[str, ...]
    uses: tuple[str, ...]
    """`server`, `client`: its extended key usages; `CA` for a CA."""
    serial: str
    """Hexadecimal."""
    fingerprint: str
    """SHA-256 of the certificate, hexadecimal."""
    not_before: datetime.datetime
    not_after: datetime.datetime


class Authority:
    """A CA with its key."""

    def __init__(self, certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(cls, name: str, domain: str, *, now: datetime.datetime, days: int) -> Authority:
        """Return a new CA, for the certificates of the trust domain `spiffe://domain`.

        Its common name is `name` and a random part: peers tell two CAs apart by their names.
        """
        key = generate_private_key(SECP256R1())
        subject = _name(f"{name[:NAME_CHARACTERS_MAX]} {secrets.token_hex(8)}")
        return cls(_authority_certificate(subject, f"spiffe://{domain}", key, now, days), key)

    @classmethod
    def load(cls, pair: CertificatePair) -> Authority:
        """Return the CA of the pair; of several certificates the first one counts.

        Raises ConfigurationError: they cannot be read, are not of a CA, or do not belong together.
        """
        certificate, key = _read_certificate(pair.certificate), _read_key(pair.key)
        if certificate.public_key() != key.public_key():
            raise ConfigurationError("the CA's key is not that of the CA's certificate")
        if not is_authority(certificate):
            raise ConfigurationError("the CA's certificate is not a CA's")
        return cls(certificate, key)

    @property
    def pair(self) -> CertificatePair:
        return _pair(self._certificate, self._key)

    @property
    def domain(self) -> str:
        """The trust domain of its certificates. Raises ConfigurationError: it has none."""
        uris = _alternative_names(self._certificate, x509.UniformResourceIdentifier)
        for uri in uris:
            if uri.startswith("spiffe://"):
                return uri.removeprefix("spiffe://").partition("/")[0]
        raise ConfigurationError("the CA's certificate has no URI spiffe://DOMAIN")

    def renewed(self, *, now: datetime.datetime, days: int) -> Authority:
        """Return the CA with a certificate that is valid from now on: the same name and key, so
        that the certificates issued before are its own, too."""
        fresh = _authority_certificate(
            self._certificate.subject, f"spiffe://{self.domain}", self._key, now, days
        )
        return Authority(fresh, self._key)

    def issue(self, identity: Identity, *, now: datetime.datetime, days: int) -> CertificatePair:
        """Return a certificate of `identity` for a new key.

        Raises ConfigurationError: it would be valid for longer than the CA.
        """
        key = generate_private_key(SECP256R1())
        names: list[x509.GeneralName] = [general_name(host) for host in identity.hosts]
        names.append(x509.UniformResourceIdentifier(identity.uri))
        uses = BOTH_SIDES if identity.accepts else CONNECTING_SIDE
        builder = (
            self._dated(_name(identity.name), key, now, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(SIGNS_CONNECTIONS, critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
        )
        return self._signed(builder, key)

    def renew(
        self,
        pair: CertificatePair,
        *,
        now: datetime.datetime,
        days: int,
        new_key: bool = False,
    ) -> CertificatePair:
        """Return a certificate like that of `pair`, valid from now on; its key is the same one
        unless a new one is asked for.

        Raises ConfigurationError: the pair cannot be read, is not of this CA, or would be valid for
        longer than the CA.
        """
        old = _read_certificate(pair.certificate)
        key = generate_private_key(SECP256R1()) if new_key else _read_key(pair.key)
        if not _has_signed(self._certificate, old):
            raise ConfigurationError("the certificate is of another CA")
        builder = self._dated(old.subject, key, now, days)
        for extension in old.extensions:
            if not isinstance(
                extension.value, x509.SubjectKeyIdentifier | x509.AuthorityKeyIdentifier
            ):
                builder = builder.add_extension(extension.value, critical=extension.critical)
        return self._signed(builder, key)

    def _dated(
        self, subject: x509.Name, key: EllipticCurvePrivateKey, now: datetime.datetime, days: int
    ) -> x509.CertificateBuilder:
        end = self._certificate.not_valid_after_utc
        if now + datetime.timedelta(days=days) > end:
            raise ConfigurationError(
                f"the CA is valid until {end:%Y-%m-%d}, and a certificate of {days} days would"
                " outlast it: renew the CA first (waltz certs renew ca), or give fewer --days"
            )
        return _builder(subject, self._certificate.subject, key, now, days)

    def _signed(
        self, builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey
    ) -> CertificatePair:
        public = key.public_key()
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(public), critical=False
        ).add_extension(issuer, critical=False)
        return _pair(builder.sign(self._key, SHA256()), key)


def describe(pem: bytes) -> Described:
    """Return the content of the first certificate in `pem`.

    Raises ConfigurationError: there is none that can be read.
    """
    certificate = _read_certificate(pem)
    return Described(
        name=common_name(certificate),
        hosts=(
            *_alternative_names(certificate, x509.DNSName),
            *_alternative_names(certificate, x509.IPAddress),
        ),
        uris=_alternative_names(certificate, x509.UniformResourceIdentifier),
        uses=("CA",) if is_authority(certificate) else _uses(certificate),
        serial=f"{certificate.serial_number:x}",
        fingerprint=certificate.fingerprint(SHA256()).hex(),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
    )


def is_issued_by(pem: bytes, authority: bytes) -> bool:
    """Whether the CA of `authority` has signed the certificate in `pem`; its key is not needed.

    Raises ConfigurationError: one of them cannot be read.
    """
    return _has_signed(_read_certificate(authority), _read_certificate(pem))


def general_name(host: str) -> x509.GeneralName:
    """Return `host` as a certificate has it. Raises ValueError: not ASCII."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def common_name(certificate: x509.Certificate) -> str:
    """Return the subject's common name; empty: it has none."""
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def self_signed_pair() -> CertificatePair:
    """Return a new pair that proves nothing: TLS needs some pair."""
    key = generate_private_key(SECP256R1())
    name = _name(SELF_SIGNED_NAME)
    now = datetime.datetime.now(datetime.UTC)
    return _pair(_builder(name, name, key, now, TLS_SELF_SIGNED_DAYS).sign(key, SHA256()), key)


def _authority_certificate(
    subject: x509.Name,
    uri: str,
    key: EllipticCurvePrivateKey,
    now: datetime.datetime,
    days: int,
) -> x509.Certificate:
    public = key.public_key()
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)])
    return (
        _builder(subject, subject, key, now, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(SIGNS_CERTIFICATES, critical=True)
        .add_extension(names, critical=False)
        .add_extension(identifier, critical=False)
        .sign(key, SHA256())
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: EllipticCurvePrivateKey,
    now: datetime.datetime,
    days: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _has_signed(issuer: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def names_in_file(pem: bytes) -> CertificateNames:
    """Return the URIs, DNS names and common names of the first certificate; not its whole subject,
    the text of which is the TLS library's. Raises ConfigurationError: there is none."""
    certificate = _read_certificate(pem)
    uris: list[str] = []
    dns_names: list[str] = []
    with contextlib.suppress(x509.ExtensionNotFound):
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = found.get_values_for_type(x509.UniformResourceIdentifier)
        dns_names = found.get_values_for_type(x509.DNSName)
    common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return CertificateNames(
        tuple(uris), tuple(dns_names), tuple(str(each.value) for each in common), ""
    )


def _read_certificate(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except (ValueError, x509.InvalidVersion) as error:
        raise ConfigurationError("there is no certificate in it that can be read") from error


def _read_key(pem: bytes) -> EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigurationError(
            "there is no private key in it that can be read without a password"
        ) from error
    if not isinstance(key, EllipticCurvePrivateKey):
        raise ConfigurationError("its private key is not one of an elliptic curve")
    return key


def _alternative_names(
    certificate: x509.Certificate,
    kind: type[x509.DNSName] | type[x509.IPAddress] | type[x509.UniformResourceIdentifier],
) -> tuple[str, ...]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(each.value) for each in names.value if isinstance(each, kind))


def _uses(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the extended key usages; none restricts nothing."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return ("any",)
    names = {
        ExtendedKeyUsageOID.SERVER_AUTH: "server",
        ExtendedKeyUsageOID.CLIENT_AUTH: "client",
    }
    return tuple(names.get(each, each.dotted_string) for each in found)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pair(certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> CertificatePair:
    return CertificatePair(
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
