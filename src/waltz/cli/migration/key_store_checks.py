"""The key stores that a file of the original names: found, opened, and judged for use as PEM.

Owns which keys name a store, and the names of the PEM files in their place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from waltz.cli.doctor.certificate_checks import validity_finding
from waltz.cli.doctor.finding import Checked
from waltz.cli.migration.key_stores import (
    KeyStore,
    StoreKind,
    is_issued,
    kind_of,
    own_pem,
    read_content,
    read_store,
    trusted_of,
    trusted_pem,
)
from waltz.cli.migration.original_files import ROLES, Role
from waltz.configuration.settings import Given
from waltz.errors import ConfigurationError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

KEY_STORE: Final = "keyStore"
TRUST_STORE: Final = "trustStore"
CORRECT: Final = "correct the key, or the store"


@dataclass(frozen=True, slots=True)
class NamedStore:
    """A store that a file names. `key` is the key with its place, such as
    `server.ssl.keyStore.location`."""

    role: Role
    kind: str
    key: str
    path: Path
    password: str | None

    @property
    def pem_name(self) -> str:
        """The name of the PEM file in its place, such as `server-keyStore.pem`."""
        return f"{self.role}-{self.kind}.pem"

    def is_pem(self) -> bool:
        """Raises ConfigurationError: it cannot be read."""
        return kind_of(read_content(self.path)) is StoreKind.PEM

    def read(self) -> KeyStore:
        """Raises ConfigurationError: it is not there, or cannot be opened."""
        return read_store(self.path, self.password)

    def pem(self) -> bytes:
        """Return the store as PEM. Raises ConfigurationError: it does not have what it is for."""
        store = self.read()
        try:
            return own_pem(store) if self.kind == KEY_STORE else trusted_pem(trusted_of(store))
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.path}: {error}") from error


def named_stores(role: Role, given: Mapping[str, Given]) -> Iterator[NamedStore]:
    """Yield the stores that a file names, whatever they are."""
    for kind in (KEY_STORE, TRUST_STORE):
        key = f"{ROLES[role].tls_prefix}.{kind}.location"
        if key in given:
            password = given.get(f"{ROLES[role].tls_prefix}.{kind}.password")
            yield NamedStore(
                role,
                kind,
                key,
                Path(str(given[key].value)),
                None if password is None else str(password.value),
            )


def store_findings(role: Role, given: Mapping[str, Given], now: datetime) -> Iterator[Checked]:
    """Yield what is found of the stores that a file names. PEM files are left to `waltz doctor`."""
    found: dict[str, KeyStore] = {}
    for store in named_stores(role, given):
        try:
            if store.is_pem():
                continue
            found[store.kind] = store.read()
            store.pem()
        except ConfigurationError as error:
            yield Checked("tls-store", store.key, False, "cannot be converted", str(error), CORRECT)
            continue
        kind = found[store.kind].kind.value
        remedy = "waltz migrate convert-tls"
        yield Checked("tls-store", store.key, True, f"{store.path}, {kind}: {remedy} writes PEM")
        yield from _validity(store, found[store.kind], now)
    if {*found} == {KEY_STORE, TRUST_STORE} and found[KEY_STORE].keys:
        yield from _trust(role, found)


def _validity(store: NamedStore, content: KeyStore, now: datetime) -> Iterator[Checked]:
    certificates = [each for entry in content.keys for each in entry.certificates]
    for certificate in certificates if store.kind == KEY_STORE else trusted_of(content):
        named = f"{store.path} ({certificate.subject.rfc4514_string()})"
        yield validity_finding(
            named, certificate.not_valid_before_utc, certificate.not_valid_after_utc, now
        )


def _trust(role: Role, found: Mapping[str, KeyStore]) -> Iterator[Checked]:
    """Judge whether peers with the same trust store believe the process."""
    own = found[KEY_STORE].keys[0].certificates
    if not _is_believed(own, trusted_of(found[TRUST_STORE])):
        yield Checked(
            "tls-trust",
            ROLES[role].tls_prefix,
            False,
            "the key store's certificate is signed by no CA of the trust store",
            "peers that have the same trust store refuse this process",
            "put the CA into the trust stores, or take a certificate that one of their CAs signed",
        )


def _is_believed(own: tuple[Certificate, ...], trusted: tuple[Certificate, ...]) -> bool:
    return any(each in trusted or any(is_issued(each, above) for above in trusted) for each in own)
