"""`waltz outbox run`: the relay, from its configuration to its end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from waltz.cli.log_format import LOG_FORMAT_OPTION, LogFormat, ending_in_log, set_up_logging
from waltz.cli.nodes import (
    ObservedNode,
    Routes,
    check_http_access,
    installed_version,
    run_loop,
    until_told,
)
from waltz.cli.outbox_rows import OUTBOX_FILE, opened_outbox, read_outbox, store_of
from waltz.cli.output import json_option, print_json
from waltz.configuration.http_settings import http_access
from waltz.configuration.outbox_settings import (
    CLUSTER,
    EVERY,
    OUTBOX_HTTP_ADDRESS,
    OUTBOX_TLS,
    PARTITION_COUNT,
    ROWS,
    TAKE_OVER,
)
from waltz.configuration.settings import Settings
from waltz.configuration.tls_settings import tls_settings
from waltz.types import TlsSettings

if TYPE_CHECKING:
    from waltz import AsyncWaltzClient
    from waltz.outbox.claimed_rows import ClaimedRows
    from waltz.outbox.relay_metrics import RelayFigures
    from waltz.outbox.relay_shell import RelayProcess


@click.command("run")
@OUTBOX_FILE
@click.option("--once", is_flag=True, help="End once no row is left that can be relayed.")
@click.option("--check", is_flag=True, help="Check the configuration, print it, and end.")
@json_option
@LOG_FORMAT_OPTION
@click.option("--end-with-stdin", is_flag=True, help="Stop when standard input ends.")
def run_relay(
    file: str,
    once: bool,
    check: bool,
    as_json: bool,
    log_format: LogFormat,
    end_with_stdin: bool,
) -> None:
    """Relay the rows of an outbox to the log.

    It runs until SIGTERM or Ctrl-C.

    The tables are created if they are missing. Several relays may run: one of them holds the
    outbox, the others stand by. With --once it ends with 0 if all rows that it found are in the
    log; with 1 if a row is parked, from this run or an earlier one, or could not be relayed, or if
    the relay was told to stop before.
    """
    settings = read_outbox(file)
    if check:
        check_http_access(http_access(settings))
        for line in settings.lines():
            click.echo(line)
        return
    set_up_logging(log_format)
    with ending_in_log(log_format):
        figures, is_complete = run_loop(_run(settings, once, end_with_stdin))
    if once or as_json:
        _tell(figures, as_json)
    if once and not is_complete:
        click.echo("stopped before all rows were relayed", err=True)
        sys.exit(1)
    if once and _has_parked_rows(settings):
        sys.exit(1)


def _has_parked_rows(settings: Settings) -> bool:
    """Whether rows are parked: the later rows of their keys are not in the log either."""
    with opened_outbox(settings) as store:
        return store.counted()["parked"] > 0


async def _run(settings: Settings, once: bool, end_with_stdin: bool) -> tuple[RelayFigures, bool]:
    import waltz
    from waltz.outbox.relay import Relay
    from waltz.outbox.relay_shell import RelayProcess
    from waltz.system.own_process import own_instance
    from waltz.system.real_host import real_host

    host = real_host(None, TlsSettings())
    store = store_of(settings)
    tls = tls_settings(settings, OUTBOX_TLS, listens=False)

    def open_client(rows: ClaimedRows) -> AsyncWaltzClient:
        return waltz.open_async_client(
            settings[CLUSTER],
            rows,
            tls=tls,
            partitions=(),
            max_concurrent_transactions=settings[ROWS],
            keeps_client_id=True,  # the claim names it
            name="outbox",
        )

    process = RelayProcess(
        host,
        store,
        open_client,
        Relay(every_seconds=settings[EVERY], take_over_seconds=settings[TAKE_OVER], once=once),
        # Process IDs come again, on another host or after a restart of this one.
        holder=f"{own_instance()}:{host.random.uuid().hex[:12]}",
        rows_max=settings[ROWS],
        partition_count=settings.get(PARTITION_COUNT),
    )
    try:
        await until_told(
            ObservedNode(
                process,
                settings.get(OUTBOX_HTTP_ADDRESS),
                lambda: _routes(process),
                http_access(settings),
            ),
            end_with_stdin=end_with_stdin,
        )
    finally:
        store.engine.dispose()
    return process.figures(), process.is_complete


def _routes(process: RelayProcess) -> Routes:
    from waltz.cli.probes import relay_routes

    return relay_routes(process.figures, version=installed_version())


def _tell(figures: RelayFigures, as_json: bool) -> None:
    from waltz.outbox.relay_metrics import relay_json

    if as_json:
        print_json(relay_json(figures))
        return
    click.echo(
        f"relayed {figures.relayed:,} rows, {figures.found:,} of them found in the log; parked"
        f" {figures.parked:,}"
    )
    if figures.trouble:
        click.echo(figures.trouble, err=True)
