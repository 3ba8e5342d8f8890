"""TLS contexts from PEM files, and a token from its file, read again when the files change.

Owns the files, the rule which peers may speak plain, and the texts of errors. Knows no socket.
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
import tempfile
import time
from dataclasses import dataclass
from typing import Final

from waltz.bearer_tokens import TOKEN_CHARACTERS, is_token
from waltz.errors import ConfigurationError
from waltz.system.tls_session import TlsSession
from waltz.types import (
    JAVA_STORE_TO_PEM,
    Address,
    Plain,
    TlsSettings,
    is_local,
    is_loopback,
)

TLS_LOOK_SECONDS: Final = 1.0
"""Time between two checks whether certificate files have changed."""

TLS_FILE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Size of one file of certificates or keys; the system's own list of CAs has a quarter of a MiB."""


log = logging.getLogger(__name__)

HANDSHAKE_BYTE: Final = 0x16
"""First byte of a TLS handshake record; Hello frames begin with `H`, coordinator lines with `{`."""

ALERT_BYTE: Final = 0x15

NO_PLAIN_ALERT: Final = bytes((ALERT_BYTE, 3, 3, 0, 2, 2, 70))
"""A fatal alert, protocol version: the answer to a peer that speaks plain and may not."""


@dataclass(slots=True)
class TlsContexts:
    accepting: ssl.SSLContext
    connecting: ssl.SSLContext
    lacks_pair: bool
    """Whether the accepting side has no certificate yet."""

    token: str
    """The connecting side shows it to servers whose certificate it has verified; empty: none."""


class Tls:
    """TLS according to `settings`. Files that change are read again for the next connection; if
    they cannot be used the log says why, and the contents read before stay in force."""

    def __init__(self, settings: TlsSettings, *, judges_peers: bool = True) -> None:
        """`judges_peers`: peers are to be known by their certificates, so that the log has to tell
        if they are not. Raises ConfigurationError: a file cannot be used."""
        self.settings = settings
        if settings.token is not None or settings.token_file is not None:
            _check_token(settings)
        self._stamp = _stamp(settings)
        self._contexts = load(settings) if settings.files else None
        self._trouble = ""
        """Why the files could not be used at the last look; empty: they could."""
        self._looked = time.monotonic()
        if judges_peers and settings.files and settings.authorities is None:
            log.warning(
                "tls_believes_anyone: a certificate is configured and no CAs, so this process"
                " shows its certificate and trusts every peer that connects; set trustStore"
            )

    def may_be_plain(self, host: str) -> bool:
        """Whether a peer at the IP address `host` may speak plain."""
        plain = self.settings.plain_with
        return plain is Plain.ALWAYS or (plain is Plain.LOOPBACK and is_loopback(host))

    def accepted(self) -> TlsSession:
        contexts = self._current()
        if contexts.lacks_pair:
            # Made when it is needed: a process that only connects never pays for it.
            _load_self_signed(contexts.accepting)
            contexts.lacks_pair = False
        return TlsSession(contexts.accepting, server_name=None)

    def connecting_to(self, name: str) -> TlsSession:
        """Return the connecting side of a session with `name`. Raises ValueError: no certificate
        can have this name."""
        return TlsSession(self._current().connecting, server_name=name)

    @property
    def token(self) -> str:
        """The token for a verified server with which a session has begun; empty: none."""
        return "" if self._contexts is None else self._contexts.token

    def connecting_context(self) -> ssl.SSLContext:
        """Return the context for a library that has its own sockets."""
        return self._current().connecting

    def _current(self) -> TlsContexts:
        if self._contexts is None:
            self._contexts = load(self.settings)
            log.warning(
                "tls_believes_anyone: no certificate and no CAs are configured, so connections"
                " are encrypted and no peer is authenticated; set keyStore and trustStore"
            )
        elif self.settings.files and time.monotonic() - self._looked >= TLS_LOOK_SECONDS:
            self._looked = time.monotonic()
            self._reload()
        return self._contexts

    def _reload(self) -> None:
        stamp = _stamp(self.settings)
        # After trouble the files are tried again though they look the same: who may read them may
        # have changed, or this process may have had no descriptor left.
        if stamp == self._stamp and not self._trouble:
            return
        self._stamp = stamp
        try:
            self._contexts = load(self.settings)
        except ConfigurationError as error:
            if str(error) != self._trouble:
                log.error("tls_files_not_taken error=%s; the ones read before stay in force", error)
            self._trouble = str(error)
        else:
            self._trouble = ""
            log.info("tls_files_read_again files=%s", ",".join(self.settings.files))


def tell_of_open_ports(settings: TlsSettings, *addresses: Address) -> None:
    """Warn of ports that believe any peer on another machine."""
    reachable = [str(each) for each in addresses if not is_local(each.host)]
    if reachable and settings.believes_everybody:
        log.warning(
            "ports_open_to_anyone addresses=%s: every peer that reaches them may read, write and"
            " remove everything, since every client is told the cluster's key; %s, or bindAddress"
            " to 127.0.0.1 or to a network that you trust; see docs/operating/tls.md",
            ",".join(reachable),
            "set trustStore" if settings.authorities is None else "set plain to never or loopback",
        )


def load(settings: TlsSettings) -> TlsContexts:
    """Read the files. Raises ConfigurationError: one is missing, no PEM, or does not fit."""
    for path in settings.files:
        if path != settings.token_file:
            _check_pem(path)
    token = settings.token or ""
    if settings.token_file is not None:
        token = _read_token(settings.token_file)
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    connecting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (accepting, connecting):
        # The original speaks 1.2 only; both refuse a peer that offers less.
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
    connecting.check_hostname = bool(settings.authorities) and settings.verify_host_name
    if settings.authorities is None:
        connecting.verify_mode = ssl.CERT_NONE
    else:
        accepting.verify_mode = connecting.verify_mode = ssl.CERT_REQUIRED
        if settings.takes_tokens:
            accepting.verify_mode = ssl.CERT_OPTIONAL
        _load_authorities(settings.authorities, accepting, connecting)
    if settings.certificate is not None:
        for context in (accepting, connecting):
            _load_certificate(settings, settings.certificate, context)
    return TlsContexts(accepting, connecting, settings.certificate is None, token)


def _check_token(settings: TlsSettings) -> None:
    """Raises ConfigurationError: it is no token, or it would be shown to a server that is not
    known. The text does not have the token."""
    if settings.token is not None and settings.token_file is not None:
        raise ConfigurationError("give the token for servers or its file, not both")
    if settings.token is not None and not is_token(settings.token):
        raise ConfigurationError(
            "the token for servers is none: expected what `waltz policy token` printed, on one line"
        )
    if settings.authorities is None or not settings.verify_host_name:
        raise ConfigurationError(
            "every server that answers would be sent the token: give the CAs that servers'"
            " certificates are of (--tls-ca), and let host names be checked"
        )


def _read_token(path: str) -> str:
    """Raises ConfigurationError: the file cannot be read, or has no token; the text has nothing
    that stands in the file."""
    try:
        with open(path, "rb") as file:
            text = file.read(2 * TOKEN_CHARACTERS).decode("ascii", "replace").strip()
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    if not is_token(text):
        raise ConfigurationError(
            f"{path} has no token; expected what `waltz policy token` printed, on one line"
        )
    return text


def _check_pem(path: str) -> None:
    try:
        with open(path, "rb") as file:
            content = file.read(TLS_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > TLS_FILE_BYTES_MAX:
        raise ConfigurationError(f"{path} has more than {TLS_FILE_BYTES_MAX} bytes")
    if b"-----BEGIN " not in content:
        raise ConfigurationError(
            f"{path} is not PEM: there is no -----BEGIN in it; {JAVA_STORE_TO_PEM}"
        )


def _load_authorities(path: str, *contexts: ssl.SSLContext) -> None:
    try:
        for context in contexts:
            context.load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"{path} holds no certificate of a CA that can be read: {error.reason}"
        ) from error
    except OSError as error:  # it was there a moment ago
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error


def _load_certificate(settings: TlsSettings, path: str, context: ssl.SSLContext) -> None:
    key = settings.key or path
    # Without a password OpenSSL would ask on the terminal.
    try:
        context.load_cert_chain(path, settings.key, lambda: settings.password or "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            wrong = f"the key in {key} is not that of the certificate in {path}"
        elif settings.password is None:
            wrong = (
                f"{path} holds no certificate, or {key} no private key that can be read without a"
                " password; both have to be there, and a key that is encrypted needs its password"
            )
        else:
            wrong = f"{path} holds no certificate, or {key} no private key that its password opens"
        raise ConfigurationError(f"{wrong} ({error.reason or 'no PEM'})") from error
    except OSError as error:  # both files were there a moment ago
        raise ConfigurationError(f"cannot read {path} or {key}: {error.strerror}") from error


def _load_self_signed(context: ssl.SSLContext) -> None:
    from waltz.system.certificates import self_signed_pair

    pair = self_signed_pair()
    # The standard library reads certificates from files only. One in memory needs no directory
    # that can be written; elsewhere than on Linux, or without /proc, a file is deleted at once.
    with contextlib.suppress(AttributeError, OSError):
        with open(os.memfd_create("certificate"), "wb") as held:
            held.write(pair.certificate + pair.key)
            held.flush()
            context.load_cert_chain(f"/proc/self/fd/{held.fileno()}")
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(pair.certificate + pair.key)
        file.flush()
        context.load_cert_chain(file.name)


def _stamp(settings: TlsSettings) -> tuple[object, ...]:
    """Return a value that changes when a file does."""
    found: list[object] = []
    for path in settings.files:
        try:
            status = os.stat(path)
        except OSError as error:
            found.append(error.errno)
        else:
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found)
