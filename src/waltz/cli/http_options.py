"""The options by which a command protects the HTTP port that it serves."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from waltz.types import Address, HttpAccess

TOKENS_OPTION: Final = "--http-tokens"
CERTIFICATE_OPTION: Final = "--http-tls-cert"

OPTIONS: Final = (
    (TOKENS_OPTION, "File of tokens; each request then has to show one."),
    ("--http-tls-ca", "CAs of which browsers and scrapers must show a certificate, PEM."),
    ("--http-tls-key", "Key of that certificate, if in another file."),
    (CERTIFICATE_OPTION, "Certificate of the HTTP port, PEM; HTTP is plain without it."),
)


def http_options(*, tokens: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the options; the command is given `http_access`, HttpAccess.
    `tokens`: requests can be made to show tokens."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_http(
            *,
            http_tls_ca: str | None,
            http_tls_cert: str | None,
            http_tls_key: str | None,
            http_tokens: str | None = None,
            **others: Any,
        ) -> Any:
            from waltz.types import HttpAccess, TlsSettings

            if http_tls_cert is None and (http_tls_ca or http_tls_key):
                raise click.UsageError(
                    f"--http-tls-ca and --http-tls-key need {CERTIFICATE_OPTION}: HTTP is plain"
                    " without a certificate"
                )
            tls = None
            if http_tls_cert is not None:
                tls = TlsSettings(http_tls_cert, http_tls_key, authorities=http_tls_ca)
            return command(http_access=HttpAccess(tls, http_tokens), **others)

        for name, text in OPTIONS if tokens else OPTIONS[1:]:
            environment = f"WALTZ_{name[2:].upper().replace('-', '_')}"
            option = click.option(name, type=click.Path(), envvar=environment, help=text)
            with_http = option(with_http)
        return with_http

    return add


def refuse_unsafe_tokens(address: Address, access: HttpAccess) -> None:
    """Raise ConfigurationError if tokens would cross a network in plain."""
    from waltz.configuration.http_settings import unsafe_tokens
    from waltz.errors import ConfigurationError

    if access.tokens is not None and access.tls is None:
        fault = unsafe_tokens(address, TOKENS_OPTION, CERTIFICATE_OPTION)
        if fault is not None:
            raise ConfigurationError(fault)
