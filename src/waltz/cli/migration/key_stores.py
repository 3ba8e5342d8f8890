"""Java key stores: JKS and PKCS12 read, and written as PEM.

Owns the format JKS, by which Java kept keys before PKCS12, and what is refused of it. A store is
recognized by its content: since Java 9 a file called `.jks` is PKCS12 unless somebody asked for
JKS. PKCS12 is read by the library cryptography. Sources: the classes `JavaKeyStore` and
`KeyProtector` of OpenJDK, whose digests are SHA-1.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from waltz.errors import ConfigurationError
from waltz.system.real_disk import owner_only
from waltz.system.tls import TLS_FILE_BYTES_MAX

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
    from cryptography.x509 import Certificate

ENTRIES_MAX: Final = 10_000
"""Entries of a JKS store that is read; the list of all public CAs has a few hundred."""

JKS_MAGIC: Final = b"\xfe\xed\xfe\xed"
JCEKS_MAGIC: Final = b"\xce\xce\xce\xce"
PEM_BEGIN: Final = b"-----BEGIN "
DER_SEQUENCE: Final = 0x30
DER_OCTETS: Final = 0x04
DIGEST_BYTES: Final = 20
WHITENER: Final = b"Mighty Aphrodite"
"""The constant that Java mixes into the digest of a store."""

KEY_TAG: Final = 1
CERTIFICATE_TAG: Final = 2
PROTECTED_BY_SUN: Final = bytes.fromhex("060a2b060104012a02110101")
"""The object identifier of the only protection of keys that a JKS store has."""

KEY_BAGS: Final = tuple(bytes.fromhex(f"060b2a864886f70d010c0a01{kind}") for kind in ("01", "02"))
"""The object identifiers in front of each private key of a PKCS12 store: plain, and encrypted."""


class StoreKind(Enum):
    """The kind of a file, by its first bytes."""

    JKS = "JKS"
    JCEKS = "JCEKS"
    PKCS12 = "PKCS12"
    PEM = "PEM"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """A private key, and the certificates from its own to that of its CA."""

    alias: str
    key: PrivateKeyTypes
    certificates: tuple[Certificate, ...]


@dataclass(frozen=True, slots=True)
class KeyStore:
    """The content of a store. `further_keys` are there and were not read: of a PKCS12 store the
    library returns one key."""

    kind: StoreKind
    keys: tuple[KeyEntry, ...]
    trusted: tuple[Certificate, ...]
    further_keys: int = 0


def kind_of(content: bytes) -> StoreKind:
    if content.startswith(JKS_MAGIC):
        return StoreKind.JKS
    if content.startswith(JCEKS_MAGIC):
        return StoreKind.JCEKS
    if content.lstrip().startswith(PEM_BEGIN):
        return StoreKind.PEM
    return StoreKind.PKCS12 if content[:1] == bytes([DER_SEQUENCE]) else StoreKind.UNKNOWN


def read_content(path: Path) -> bytes:
    """Raises ConfigurationError: it cannot be read, or is longer than any store."""
    try:
        with path.open("rb") as file:
            content = file.read(TLS_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > TLS_FILE_BYTES_MAX:
        raise ConfigurationError(f"{path} is no key store: it has more than 4 MiB")
    return content


def read_store(path: Path, password: str | None) -> KeyStore:
    """Return the keys and trusted certificates of a Java store; None: there is no password, and as
    in Java nothing then says that the store is whole.

    Raises ConfigurationError: the file cannot be read, is no store, is damaged or has another
    password.
    """
    content = read_content(path)
    kind = kind_of(content)
    try:
        if kind is StoreKind.JKS:
            return _read_jks(content, password)
        if kind is StoreKind.PKCS12:
            return _read_pkcs12(content, password)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    remedy = f"keytool -importkeystore -srckeystore {path} -destkeystore store.p12"
    if kind is StoreKind.JCEKS:
        raise ConfigurationError(f"{path} is a JCEKS store, which is not read; {remedy}")
    raise ConfigurationError(f"{path} is no store of Java: neither JKS nor PKCS12")


def _read_pkcs12(content: bytes, password: str | None) -> KeyStore:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import pkcs12
    from cryptography.x509 import InvalidVersion

    try:
        found = pkcs12.load_pkcs12(content, None if password is None else password.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidVersion) as error:
        raise ConfigurationError(
            f"no PKCS12 that this password opens ({error}); is the password right?"
        ) from error
    others = [each.certificate for each in found.additional_certs]
    if found.key is None:
        own = [] if found.cert is None else [found.cert.certificate]
        return KeyStore(StoreKind.PKCS12, (), (*own, *others))
    if found.cert is None:
        raise ConfigurationError("the private key has no certificate")
    issuers = _issuers(found.cert.certificate, others)
    name = (found.cert.friendly_name or b"").decode(errors="replace")
    entry = KeyEntry(name, found.key, (found.cert.certificate, *issuers))
    trusted = tuple(each for each in others if each not in issuers)
    keys = sum(map(content.count, KEY_BAGS))
    return KeyStore(StoreKind.PKCS12, (entry,), trusted, max(0, keys - 1))


def _issuers(certificate: Certificate, others: list[Certificate]) -> tuple[Certificate, ...]:
    """Return the certificates of `others` that lead from `certificate` to its CA, in order."""
    found: list[Certificate] = []
    last = certificate
    while last.issuer != last.subject:
        above = next((each for each in others if is_issued(last, each)), None)
        if above is None or above in found:
            break
        found.append(above)
        last = above
    return tuple(found)


def is_issued(certificate: Certificate, issuer: Certificate) -> bool:
    """Whether `issuer` has signed `certificate`."""
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


class _Bytes:
    """The bytes of a store that are not read yet; each length is checked before it is believed."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def take(self, count: int) -> bytes:
        if count > len(self._content) - self._at:
            raise ConfigurationError("the store is cut short, or damaged")
        self._at += count
        return self._content[self._at - count : self._at]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count))

    def sized(self, count: int) -> bytes:
        """Return the bytes that follow their own length, which takes `count` bytes."""
        return self.take(self.number(count))

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._content)


def _read_jks(content: bytes, password: str | None) -> KeyStore:
    secret = (password or "").encode("utf-16-be")
    body, digest = content[:-DIGEST_BYTES], content[-DIGEST_BYTES:]
    if password is not None and not hmac.compare_digest(_sha1(secret, WHITENER, body), digest):
        raise ConfigurationError("another password, or the store is damaged")
    reading = _Bytes(body)
    reading.take(len(JKS_MAGIC))
    version, count = reading.number(4), reading.number(4)
    if version not in (1, 2) or count > ENTRIES_MAX:
        raise ConfigurationError(f"version {version}, {count} entries; expected version 1 or 2")
    keys, trusted = [], []
    for _ in range(count):
        tag, alias = reading.number(4), reading.sized(2).decode(errors="replace")
        reading.take(8)  # the time at which the entry was made
        if tag == KEY_TAG:
            protected = reading.sized(4)
            length = reading.number(4)
            certificates = tuple(
                _read_certificate(reading, version) for _ in range(min(length, ENTRIES_MAX))
            )
            if not certificates:
                raise ConfigurationError(f"key {alias} has no certificate")
            keys.append(KeyEntry(alias, _read_key(protected, secret, alias), certificates))
        elif tag == CERTIFICATE_TAG:
            trusted.append(_read_certificate(reading, version))
        else:
            raise ConfigurationError(f"entry {alias} is of unknown kind {tag}")
    if not reading.is_at_end:
        raise ConfigurationError("there are bytes after the last entry")
    return KeyStore(StoreKind.JKS, tuple(keys), tuple(trusted))


def _read_certificate(reading: _Bytes, version: int) -> Certificate:
    from cryptography import x509

    kind = reading.sized(2) if version == 2 else b"X.509"
    content = reading.sized(4)
    if kind != b"X.509":
        raise ConfigurationError(f"a certificate is of kind {kind!r}; expected X.509")
    try:
        return x509.load_der_x509_certificate(content)
    except (ValueError, x509.InvalidVersion) as error:
        raise ConfigurationError(f"a certificate cannot be read: {error}") from error


def _read_key(protected: bytes, secret: bytes, alias: str) -> PrivateKeyTypes:
    """Return the key that JKS keeps with a chain of digests of the password."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_der_private_key

    algorithm, octets = _protected_parts(protected, alias)
    if PROTECTED_BY_SUN not in algorithm or len(octets) <= 2 * DIGEST_BYTES:
        raise ConfigurationError(f"key {alias} is protected in a way that JKS does not have")
    last, hidden, check = (
        octets[:DIGEST_BYTES], octets[DIGEST_BYTES:-DIGEST_BYTES], octets[-DIGEST_BYTES:],
    )  # fmt: skip
    stream = bytearray()
    while len(stream) < len(hidden):
        last = _sha1(secret, last)
        stream += last
    plain = bytes(one ^ other for one, other in zip(hidden, stream, strict=False))
    if not hmac.compare_digest(_sha1(secret, plain), check):
        raise ConfigurationError(f"key {alias} has a password of its own, which is not supported")
    try:
        return load_der_private_key(plain, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigurationError(f"key {alias} cannot be read: {error}") from error


def _protected_parts(content: bytes, alias: str) -> tuple[bytes, bytes]:
    """Return algorithm and octets of an EncryptedPrivateKeyInfo in DER."""
    try:
        inner = _Bytes(_der(_Bytes(content), DER_SEQUENCE))
        return _der(inner, DER_SEQUENCE), _der(inner, DER_OCTETS)
    except ConfigurationError as error:
        raise ConfigurationError(f"key {alias} is damaged: {error}") from error


def _der(reading: _Bytes, tag: int) -> bytes:
    if (found := reading.number(1)) != tag:
        raise ConfigurationError(f"tag {found} where {tag} is expected")
    length = reading.number(1)
    if length >= 0x80:
        length = reading.number(min(length & 0x7F, 4))
    return reading.take(length)


def _sha1(*parts: bytes) -> bytes:
    digest = hashlib.sha1(usedforsecurity=False)
    for part in parts:
        digest.update(part)
    return digest.digest()


def own_pem(store: KeyStore) -> bytes:
    """Return the first key's certificates, then the key, not encrypted.

    Raises ConfigurationError: the store has no private key, or several.
    """
    from cryptography.hazmat.primitives import serialization

    count = len(store.keys) + store.further_keys
    if count != 1:
        names = ", ".join(each.alias for each in store.keys) or "none"
        more = f" and {store.further_keys} more" if store.further_keys else ""
        raise ConfigurationError(f"the store has {count} private keys ({names}{more}); expected 1")
    (entry,) = store.keys
    key = entry.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return trusted_pem(entry.certificates) + key


def trusted_pem(certificates: tuple[Certificate, ...]) -> bytes:
    """Return the certificates. Raises ConfigurationError: there are none."""
    from cryptography.hazmat.primitives.serialization import Encoding

    if not certificates:
        raise ConfigurationError("the store has no certificate")
    return b"".join(each.public_bytes(Encoding.PEM) for each in certificates)


def trusted_of(store: KeyStore) -> tuple[Certificate, ...]:
    """Return the certificates that a trust store has Java trust: those without a key, and the first
    of each key's."""
    own = (each.certificates[0] for each in store.keys)
    return tuple(dict.fromkeys(chain(store.trusted, own)))


def write_owner_only(path: Path, content: bytes) -> None:
    """Write a new file with mode 0600, whole or not at all. Raises ConfigurationError: the file is
    there already, or cannot be written."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        if path.exists():
            raise ConfigurationError(f"{path} is there already; remove it, or write elsewhere")
        file = open(temporary, "xb", opener=owner_only)  # noqa: SIM115 only what is ours is removed
        try:
            with file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)
        finally:
            temporary.unlink()
    except FileExistsError as error:
        raise ConfigurationError(
            f"{path} is there already, or {temporary} is: remove it"
        ) from error
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from error
