"""The keys that secure connections, the same below any prefix.

`storage.ssl`, `server.ssl` and `client.ssl` are the original's prefixes; a process with two roles
may have one for each. Keys have the original's names if it has them; the files are PEM.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from waltz.configuration.keys import Key, ValueKind, boolean, text
from waltz.configuration.settings import Settings, raise_faults
from waltz.types import JAVA_STORE_TO_PEM, Plain, TlsSettings

JAVA_ONLY: Final = "the key chooses a Java class; here certificates are checked by PKIX"
PEM_HAS_NO_PASSWORD: Final = "certificates in PEM are not encrypted"  # noqa: S105 -- says why none


def pem() -> ValueKind[str]:
    """Return the kind of the file format, which can only be PEM."""

    def convert(value: object) -> str:
        if not isinstance(value, str) or value.strip().upper() != "PEM":
            raise ValueError
        return "PEM"

    return ValueKind(f"PEM; {JAVA_STORE_TO_PEM}", convert)


def plain() -> ValueKind[Plain]:
    def convert(value: object) -> Plain:
        return Plain(value.strip().lower() if isinstance(value, str) else value)

    return ValueKind("never, loopback or always", convert, lambda value: value.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsKeys:
    """The keys of one prefix."""

    certificate: Key[str]
    key: Key[str]
    password: Key[str]
    authorities: Key[str]
    verify_host_name: Key[bool]
    plain: Key[Plain]
    token_file: Key[str] | None
    """None: whom this process connects to takes no tokens."""

    others: tuple[Key[Any], ...]
    """Keys of the original that have no effect here, or only say that a file is PEM."""

    @property
    def all(self) -> tuple[Key[Any], ...]:
        return (
            self.certificate,
            self.key,
            self.password,
            self.authorities,
            self.verify_host_name,
            self.plain,
            *(() if self.token_file is None else (self.token_file,)),
            *self.others,
        )


def tls_keys(prefix: str, *, shows_token: bool = False) -> TlsKeys:
    """Return the keys below `prefix`, such as `server.ssl`, for the list of a process's keys.

    `shows_token`: the process is a client of servers, to which it may show a token.
    """

    key = partial(_key, prefix)
    return TlsKeys(
        certificate=key(
            "keyStore.location",
            text("the path of a PEM file"),
            "This process's certificate, then the certificates between it and its CA, then its"
            " private key unless `keyStore.keyLocation` has the key. Without this file the process"
            " makes a self-signed certificate at each start.",
            option="--tls-cert",
        ),
        key=key(
            "keyStore.keyLocation",
            text("the path of a PEM file"),
            "Private key of the certificate.",
            default_text="in keyStore.location",
            option="--tls-key",
        ),
        password=key("keyStore.password", text(), "Password of the private key.", secret=True),
        authorities=key(
            "trustStore.location",
            text("the path of a PEM file"),
            "Trusted CAs. With this file every peer must show a certificate that one of these CAs"
            " signed; without it peers are not authenticated.",
            option="--tls-ca",
        ),
        verify_host_name=key(
            "verifyHostName",
            boolean(),
            "Whether a peer's certificate must be for the host name by which this process"
            " connected to the peer; only with trusted CAs.",
            default=True,
        ),
        plain=key(
            "plain",
            plain(),
            "Peers with which this process speaks no TLS: its connections to them are plain,"
            " and theirs to it may be.",
            default_text="loopback; never once a certificate or CAs are given",
        ),
        token_file=key(
            "tokenFile",
            text("the path of a file with one token"),
            "File of the token that this process shows servers in place of a certificate;"
            " docs/operating/policy.md. The file is read again when it changes. Needs"
            " `trustStore.location`.",
        )
        if shows_token
        else None,
        others=_keys_of_the_original(prefix),
    )


def _key(prefix: str, name: str, kind: ValueKind[Any], description: str, **more: Any) -> Key[Any]:
    return Key(name=f"{prefix}.{name}", kind=kind, description=description, guarded=prefix, **more)


def _keys_of_the_original(prefix: str) -> tuple[Key[Any], ...]:
    """Return the keys that say nothing here."""
    key = partial(_key, prefix)
    password = "Password of the trusted CAs."  # noqa: S105 -- a description
    return (
        key("keyStore.type", pem(), "Format of keyStore.location.", default_text="PEM"),
        key("trustStore.type", pem(), "Format of trustStore.location.", default_text="PEM"),
        key("trustStore.password", text(), password, secret=True, unused=PEM_HAS_NO_PASSWORD),
        key("keyManager.algorithm", text(), "Java only.", unused=JAVA_ONLY),
        key("trustManager.algorithm", text(), "Java only.", unused=JAVA_ONLY),
    )


def tls_settings(settings: Settings, keys: TlsKeys, *, listens: bool) -> TlsSettings:
    """Return the TLS settings below the prefix of `keys`; no file is read.

    `listens`: the process accepts connections. Raises ConfigurationError: half of what is needed is
    missing.
    """
    raise_faults(tls_faults(settings, keys, listens=listens))
    return TlsSettings(
        certificate=settings.get(keys.certificate),
        key=settings.get(keys.key),
        password=settings.get(keys.password),
        authorities=settings.get(keys.authorities),
        verify_host_name=settings[keys.verify_host_name],
        plain=settings.get(keys.plain),
        token_file=None if keys.token_file is None else settings.get(keys.token_file),
    )


def tls_faults(settings: Settings, keys: TlsKeys, *, listens: bool) -> list[str]:
    """Return the faults of keys that do not go together; `listens` as for `tls_settings`."""
    has_certificate = settings.is_set(keys.certificate)
    has_authorities = settings.is_set(keys.authorities)
    faults = [
        f"{key.name} is set and {keys.certificate.name} is not; set both, or none"
        for key in (keys.key, keys.password)
        if settings.is_set(key) and not has_certificate
    ]
    if listens and has_authorities and not has_certificate:
        faults.append(
            f"{keys.authorities.name} is set and {keys.certificate.name} is not: this process"
            " would demand certificates of its peers and show none; set both"
        )
    if not listens and has_certificate and not has_authorities:
        faults.append(
            f"{keys.certificate.name} is set and {keys.authorities.name} is not: this process"
            " would trust every peer that answers; set both"
        )
    if keys.token_file is not None and settings.is_set(keys.token_file) and not has_authorities:
        faults.append(
            f"{keys.token_file.name} is set and {keys.authorities.name} is not: every server that"
            " answers would be sent the token; set both"
        )
    return faults
