"""The common part of `waltz bridge http` and `kafka`: a destination, run to its end and told.

Owns what both commands share of their settings.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from waltz.cli.bridge_place import BRIDGE_FILE
from waltz.cli.log_format import LOG_FORMAT_OPTION, LogFormat, ending_in_log, set_up_logging
from waltz.cli.nodes import ObservedNode, Routes, installed_version, run_loop, until_told
from waltz.cli.output import json_option, print_json
from waltz.configuration.bridge_settings import (
    BRIDGE_CLUSTER,
    BRIDGE_HTTP_ADDRESS,
    BRIDGE_TLS,
    CONNECTIONS,
    HEADERS,
    PARTITIONS,
    RETRY_MAX,
    START,
)
from waltz.configuration.http_settings import http_access
from waltz.configuration.settings import Settings
from waltz.configuration.tls_settings import tls_settings
from waltz.types import TlsSettings

if TYPE_CHECKING:
    from waltz.bridge.bridge_metrics import BridgeFigures
    from waltz.bridge.bridge_shell import BridgeOptions, BridgeProcess
    from waltz.bridge.destination_shell import Destination
    from waltz.host import Host


def bridge_parameters(command: Callable[..., None]) -> Callable[..., None]:
    """Add the argument and the options that each bridge has."""
    for each in reversed(
        (
            BRIDGE_FILE,
            click.option("--once", is_flag=True, help="End with what the log has now."),
            click.option(
                "--check", is_flag=True, help="Check the configuration, print it, and end."
            ),
            json_option,
            LOG_FORMAT_OPTION,
            click.option("--end-with-stdin", is_flag=True, help="Stop when standard input ends."),
        )
    ):
        command = each(command)
    return command


def run_bridge(
    settings: Settings,
    destination: Callable[[Host], Destination],
    *,
    once: bool,
    as_json: bool,
    log_format: LogFormat,
    end_with_stdin: bool,
) -> None:
    """Run a bridge until it is told to stop, or once, and tell its figures. Ends the process with 1
    if not all was delivered that was to be."""
    set_up_logging(log_format)
    with ending_in_log(log_format):
        figures, is_complete = run_loop(_run(settings, destination, once, end_with_stdin))
    if once or as_json:
        _tell(figures, as_json)
    if once and not is_complete:
        sys.exit(1)


async def _run(
    settings: Settings,
    destination: Callable[[Host], Destination],
    once: bool,
    end_with_stdin: bool,
) -> tuple[BridgeFigures, bool]:
    import waltz
    from waltz.bridge.bridge_shell import BridgeProcess
    from waltz.system.real_host import real_host

    host = real_host(None, TlsSettings())
    tls = tls_settings(settings, BRIDGE_TLS, listens=False)
    process = BridgeProcess(
        host,
        destination(host),
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

    return BridgeOptions(
        partitions=settings.get(PARTITIONS),
        begins_with_first=settings[START] == "first",
        retry_seconds_max=settings[RETRY_MAX],
        connections_max=settings[CONNECTIONS],
        is_once=once,
    )


def chosen_headers(settings: Settings) -> frozenset[int] | None:
    """Return the headers of the transactions that are delivered; None: all."""
    only = settings.get(HEADERS)
    return None if only is None else frozenset(only)


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
    if figures.trouble:
        click.echo(f"nothing is posted: {figures.trouble}", err=True)
    for each in figures.partitions:
        if each.trouble:
            click.echo(
                f"partition {each.partition_id} waits at transaction {each.next_id}:"
                f" {each.trouble}",
                err=True,
            )
