"""The options by which a command secures its connections."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import click

from waltz.errors import ConfigurationError
from waltz.types import TlsSettings

if TYPE_CHECKING:
    from waltz.host import Host

TOKEN_VARIABLE: Final = "WALTZ_TOKEN"  # noqa: S105 -- the name of a variable


def tls_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--tls-ca` and its like; `command` is given `tls`, TlsSettings."""

    @wraps(command)
    def with_tls(
        *,
        tls_ca: str | None,
        tls_cert: str | None,
        tls_key: str | None,
        token_file: str | None,
        local_sockets: str | None,
        **others: Any,
    ) -> Any:
        if (tls_cert is not None or tls_key is not None) and None in (tls_ca, tls_cert):
            raise click.UsageError(
                "--tls-cert needs --tls-ca, and --tls-key both: without CAs every peer would"
                " be trusted"
            )
        # A token itself is never an option: everybody on the machine could read it.
        token = None if token_file else os.environ.get(TOKEN_VARIABLE) or None
        if (token or token_file) and tls_ca is None:
            raise click.UsageError(
                "a token needs --tls-ca: without CAs every server that answers would be sent it"
            )
        tls = TlsSettings(
            tls_cert,
            tls_key,
            authorities=tls_ca,
            token=token,
            token_file=token_file,
            local_sockets=local_sockets,
        )
        return command(tls=tls, **others)

    for name, text in (
        ("--local-sockets", "Directory of servers' sockets on this machine."),
        ("--token-file", f"File of the token shown to servers; or {TOKEN_VARIABLE} has the token."),
        ("--tls-key", "Key of the certificate, if in another file."),
        ("--tls-cert", "Certificate of this process, PEM."),
        ("--tls-ca", "Trusted CAs, PEM. Default: every peer is trusted."),
    ):
        environment = f"WALTZ_{name[2:].upper().replace('-', '_')}"
        with_tls = click.option(name, type=click.Path(), envvar=environment, help=text)(with_tls)
    return with_tls


def secured_by_file(path: str | None) -> Callable[[Host], Host]:
    """Return a function that makes doors whose connections are secured by the file at `path`; with
    None it returns doors unchanged.

    The file is one for a server, or for the original's tools: its keys below `server.ssl` count,
    and nothing else. Raises ConfigurationError: it has none of them, or half of what is needed, or
    names a file that cannot be used.
    """
    if path is None:
        return lambda host: host
    from waltz.cli.command_settings import read_settings
    from waltz.configuration.server_settings import TLS
    from waltz.configuration.settings import judge
    from waltz.configuration.tls_settings import tls_settings
    from waltz.system.tcp_network import RealNetwork

    prefix = f"{TLS.certificate.guarded}."
    settings = read_settings(
        path,
        {},
        TLS.all,
        lambda given: judge(TLS.all, {key: given[key] for key in given if key.startswith(prefix)}),
    )
    found = tls_settings(settings, TLS, listens=False)
    if not any(map(settings.is_set, TLS.all)):
        raise ConfigurationError(f"{path} has no {prefix}* keys, which say how to connect")
    network = RealNetwork(found)
    return lambda host: replace(host, network=network)
