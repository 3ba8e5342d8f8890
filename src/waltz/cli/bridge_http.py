"""`waltz bridge http`: the bridge, from its configuration to its end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from waltz.cli.bridge_place import BRIDGE_FILE, progress_file, read_bridge
from waltz.cli.log_format import LOG_FORMAT_OPTION, LogFormat, ending_in_log, set_up_logging
from waltz.cli.nodes import (
    ObservedNode,
    Routes,
    check_http_access,
    installed_version,
    run_loop,
    until_told,
)
from waltz.cli.output import json_option, print_json
from waltz.configuration.bridge_settings import (
    BODY_BYTES,
    BRIDGE_CLUSTER,
    BRIDGE_HTTP_ADDRESS,
    BRIDGE_TLS,
    CA_FILE,
    CONNECTIONS,
    COUNT,
    DATA,
    HEADERS,
    PARTITIONS,
    RETRY_MAX,
    SECRET_FILE,
    START,
    TIMEOUT,
    URL,
)
from waltz.configuration.http_settings import http_access
from waltz.configuration.settings import Settings
from waltz.configuration.tls_settings import tls_settings
from waltz.errors import ConfigurationError
from waltz.types import TlsSettings

if TYPE_CHECKING:
    import ssl

    from waltz.bridge.bridge_metrics import BridgeFigures
    from waltz.bridge.bridge_shell import BridgeOptions, BridgeProcess

SECRET_FILE_BYTES_MAX: Final = 4 * 1024
"""Size of the file with the secret."""

SECRETS_MAX: Final = 2
"""The secret, and the one before it while receivers change over."""


@click.command("http")
@BRIDGE_FILE
@click.option("--once", is_flag=True, help="End with what the log has now.")
@click.option("--check", is_flag=True, help="Check the configuration, print it, and end.")
@json_option
@LOG_FORMAT_OPTION
@click.option("--end-with-stdin", is_flag=True, help="Stop when standard input ends.")
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
    set_up_logging(log_format)
    with ending_in_log(log_format):
        figures, is_complete = run_loop(_run(settings, once, end_with_stdin))
    if once or as_json:
        _tell(figures, as_json)
    if once and not is_complete:
        sys.exit(1)


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


async def _run(settings: Settings, once: bool, end_with_stdin: bool) -> tuple[BridgeFigures, bool]:
    import waltz
    from waltz.bridge.bridge_shell import BridgeProcess
    from waltz.system.real_host import real_host

    host = real_host(None, TlsSettings())
    tls = tls_settings(settings, BRIDGE_TLS, listens=False)
    process = BridgeProcess(
        host,
        progress_file(settings),
        lambda: waltz.open_async_reader(settings[BRIDGE_CLUSTER], tls=tls, name="bridge"),
        _options(settings, once),
    )
    await until_told(
        ObservedNode(
            process,
            settings.get(BRIDGE_HTTP_ADDRESS),
            lambda: _routes(process),
            http_access(settings),
        ),
        end_with_stdin=end_with_stdin,
    )
    return process.figures(), process.is_complete


def _options(settings: Settings, once: bool) -> BridgeOptions:
    from waltz.bridge.bridge_shell import BridgeOptions
    from waltz.bridge.webhook_choice import Choice
    from waltz.bridge.webhook_shell import Webhook

    only = settings.get(HEADERS)
    return BridgeOptions(
        webhook=Webhook(settings[URL], _webhook_tls(settings), settings[TIMEOUT]),
        secrets=read_secrets(settings[SECRET_FILE]),
        choice=Choice(
            settings[COUNT],
            settings[BODY_BYTES],
            None if only is None else frozenset(only),
            settings[DATA] == "json",
        ),
        partitions=settings.get(PARTITIONS),
        begins_with_first=settings[START] == "first",
        retry_seconds_max=settings[RETRY_MAX],
        connections_max=settings[CONNECTIONS],
        is_once=once,
    )


def _routes(process: BridgeProcess) -> Routes:
    from waltz.cli.probes import bridge_routes

    return bridge_routes(process.figures, version=installed_version())


def _tell(figures: BridgeFigures, as_json: bool) -> None:
    from waltz.bridge.bridge_metrics import bridge_json

    if as_json:
        print_json(bridge_json(figures))
        return
    posts = sum(each.posts for each in figures.partitions)
    posted = sum(each.posted for each in figures.partitions)
    click.echo(f"posted {posted:,} transactions in {posts:,} posts")
    for each in figures.partitions:
        if each.trouble:
            click.echo(
                f"partition {each.partition_id} waits at transaction {each.next_id}:"
                f" {each.trouble}",
                err=True,
            )
