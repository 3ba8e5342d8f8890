"""The options by which a command secures its connections."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from waltz.types import TlsSettings


def tls_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--tls-ca`, `--tls-cert` and `--tls-key`; `command` is given `tls`, TlsSettings."""

    @wraps(command)
    def with_tls(
        *, tls_ca: str | None, tls_cert: str | None, tls_key: str | None, **others: Any
    ) -> Any:
        if (tls_cert is not None or tls_key is not None) and None in (tls_ca, tls_cert):
            raise click.UsageError(
                "--tls-cert needs --tls-ca, and --tls-key both: without CAs anyone who answers"
                " would be believed"
            )
        return command(tls=TlsSettings(tls_cert, tls_key, authorities=tls_ca), **others)

    for name, text in (
        ("--tls-key", "Its key, if in another file."),
        ("--tls-cert", "Own certificate, PEM."),
        ("--tls-ca", "Trusted CAs, PEM. Default: anyone is believed."),
    ):
        environment = f"WALTZ_{name[2:].upper().replace('-', '_')}"
        with_tls = click.option(name, type=click.Path(), envvar=environment, help=text)(with_tls)
    return with_tls
