"""`waltz bridge http`: the bridge, from its configuration to its end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from waltz.cli.bridge_place import progress_file, read_bridge
from waltz.cli.bridge_run import bridge_parameters, chosen_headers, run_bridge
from waltz.cli.log_format import LogFormat
from waltz.cli.nodes import check_http_access
from waltz.configuration.bridge_settings import (
    BODY_BYTES,
    CA_FILE,
    COUNT,
    DATA,
    SECRET_FILE,
    TIMEOUT,
    URL,
)
from waltz.configuration.http_settings import http_access
from waltz.configuration.settings import Settings
from waltz.errors import ConfigurationError

if TYPE_CHECKING:
    import ssl

    from waltz.bridge.destination_shell import Destination
    from waltz.bridge.webhook_destination_shell import WebhookOptions
    from waltz.host import Host

SECRET_FILE_BYTES_MAX: Final = 4 * 1024
"""Size of the file with the secret."""

SECRETS_MAX: Final = 2
"""The secret, and the one before it while receivers change over."""


@click.command("http")
@bridge_parameters
def bridge_to_http(
    file: str,
    once: bool,
    check: bool,
    as_json: bool,
    log_format: LogFormat,
    end_with_stdin: bool,
) -> None:
    """Post the transactions of a cluster to a webhook.

    It runs until SIGTERM or Ctrl-C.

    What a receiver does not accept is posted again, and the partition waits for it. With --once the
    bridge ends with 0 if all that the log had at its start was accepted, and otherwise, after a few
    attempts, with 1.
    """
    settings = read_bridge(file)
    if check:
        check_http_access(http_access(settings))
        read_secrets(settings[SECRET_FILE])
        _webhook_tls(settings)
        for line in settings.lines():
            click.echo(line)
        return

    def destination(host: Host) -> Destination:
        from waltz.bridge.webhook_destination_shell import WebhookDestination

        return WebhookDestination(host, progress_file(settings), _options(settings))

    run_bridge(
        settings,
        destination,
        once=once,
        as_json=as_json,
        log_format=log_format,
        end_with_stdin=end_with_stdin,
    )


def read_secrets(path: str) -> tuple[bytes, ...]:
    """Return the secrets of a file, one a line. Raises ConfigurationError: none, or a short one."""
    from waltz.bridge.webhook_body import SECRET_BYTES_MIN

    try:
        with Path(path).open("rb") as file:
            text = file.read(SECRET_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read the secret {path}: {error.strerror}") from error
    found = tuple(each.strip() for each in text.splitlines() if each.strip())
    if len(text) > SECRET_FILE_BYTES_MAX or not 1 <= len(found) <= SECRETS_MAX:
        raise ConfigurationError(
            f"{path} has no secret as it is to be: one line, or two while receivers change over, of"
            f" at most {SECRET_FILE_BYTES_MAX:,} bytes"
        )
    if min(map(len, found)) < SECRET_BYTES_MIN:
        raise ConfigurationError(
            f"{path} has a secret of fewer than {SECRET_BYTES_MIN} bytes, which can be guessed;"
            " `openssl rand -hex 32` makes one"
        )
    return found


def _webhook_tls(settings: Settings) -> ssl.SSLContext | None:
    """Return how the receiver is known; None: plain HTTP. Raises ConfigurationError."""
    if not settings[URL].startswith("https:"):
        return None
    import ssl

    path = settings.get(CA_FILE)
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as error:  # SSLError, too
        raise ConfigurationError(
            f"{CA_FILE.name}: no certificates can be read from {path}: {error.strerror}"
        ) from error


def _options(settings: Settings) -> WebhookOptions:
    from waltz.bridge.webhook_choice import Choice
    from waltz.bridge.webhook_destination_shell import WebhookOptions
    from waltz.bridge.webhook_shell import Webhook

    return WebhookOptions(
        webhook=Webhook(settings[URL], _webhook_tls(settings), settings[TIMEOUT]),
        secrets=read_secrets(settings[SECRET_FILE]),
        choice=Choice(
            settings[COUNT],
            settings[BODY_BYTES],
            chosen_headers(settings),
            settings[DATA] == "json",
        ),
    )
