"""The keys that protect an HTTP port, the same for every process that has one."""

from __future__ import annotations

from typing import Any, Final

from waltz.configuration.keys import Key, ValueKind, text
from waltz.configuration.settings import Settings
from waltz.types import Address, HttpAccess, TlsSettings, is_local

PEM_FILE: Final = text("the path of a PEM file")


def _key(name: str, kind: ValueKind[str], description: str, **more: Any) -> Key[str]:
    return Key(name=name, kind=kind, description=description, guarded="http", **more)


CERTIFICATE: Final = _key(
    "http.tls.keyStore.location",
    PEM_FILE,
    "Certificate of the HTTP port, then the certificates between it and its CA, then its private"
    " key unless `http.tls.keyStore.keyLocation` has the key. With this file the port speaks TLS"
    " only; without it the port is plain. The file is read again when it changes.",
)
PRIVATE_KEY: Final = _key(
    "http.tls.keyStore.keyLocation",
    PEM_FILE,
    "Private key of the certificate.",
    default_text="in http.tls.keyStore.location",
)
PASSWORD: Final = _key(
    "http.tls.keyStore.password", text(), "Password of the private key.", secret=True
)
AUTHORITIES: Final = _key(
    "http.tls.trustStore.location",
    PEM_FILE,
    "Trusted CAs. With this file every client of the HTTP port, probes too, must show a"
    " certificate that one of these CAs signed.",
)
TOKENS: Final = _key(
    "http.tokens",
    text("the path of a file of tokens"),
    "File of the tokens of which every HTTP request has to show one, but for /live and /health;"
    " docs/operating/http.md. The file is read again when it changes. Without it no request needs a"
    " token.",
)

HTTP_ACCESS_KEYS: Final = (CERTIFICATE, PRIVATE_KEY, PASSWORD, AUTHORITIES, TOKENS)


def http_access(settings: Settings) -> HttpAccess:
    """Return the protection of the HTTP port; no file is read."""
    certificate = settings.get(CERTIFICATE)
    tls = None
    if certificate is not None:
        tls = TlsSettings(
            certificate=certificate,
            key=settings.get(PRIVATE_KEY),
            password=settings.get(PASSWORD),
            authorities=settings.get(AUTHORITIES),
        )
    return HttpAccess(tls, settings.get(TOKENS))


def http_faults(settings: Settings, address: Address | None) -> list[str]:
    """Return the faults of these keys; `address` is that of the port, None: there is no port."""
    faults = [
        f"{key.name} is set and {CERTIFICATE.name} is not; set both, or none"
        for key in (PRIVATE_KEY, PASSWORD, AUTHORITIES)
        if settings.is_set(key) and not settings.is_set(CERTIFICATE)
    ]
    if address is not None and settings.is_set(TOKENS) and not settings.is_set(CERTIFICATE):
        fault = unsafe_tokens(address, TOKENS.name, CERTIFICATE.name)
        faults += [fault] if fault is not None else []
    return faults


def unsafe_tokens(address: Address, tokens: str, certificate: str) -> str | None:
    """Return the fault of tokens at a plain port that other machines reach; None: `address` is no
    such port. The last two are the names by which the user gives a file of tokens and a
    certificate."""
    if is_local(address.host):
        return None
    return (
        f"{tokens} is set, and HTTP at {address} is plain: everybody on the way could read the"
        f" tokens and use them; set {certificate}, or have HTTP listen at 127.0.0.1"
    )
