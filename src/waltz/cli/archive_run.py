"""`waltz archive run`: the archiver, from its configuration to its end."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import click

from waltz.cli.archive_place import FILE, open_log, read_file, target_of
from waltz.cli.log_format import LOG_FORMAT_OPTION, LogFormat, ending_in_log, set_up_logging
from waltz.cli.nodes import (
    ObservedNode,
    Routes,
    check_http_access,
    installed_version,
    run_loop,
    until_told,
)
from waltz.configuration.archive_settings import (
    EVERY,
    OBJECT_BYTES,
    PARTITIONS,
    RATE,
    VERIFY_REPLICAS,
    http_address,
)
from waltz.configuration.http_settings import http_access
from waltz.configuration.settings import Settings
from waltz.types import PartitionId, TlsSettings

if TYPE_CHECKING:
    from waltz.archive.archiver_shell import ArchiverProcess
    from waltz.archive.cluster_log import ClusterLog

log = logging.getLogger(__name__)


@click.command("run")
@FILE
@click.option("--once", is_flag=True, help="End once all that the log has now is archived.")
@click.option("--check", is_flag=True, help="Check the configuration, print it, and end.")
@LOG_FORMAT_OPTION
@click.option("--end-with-stdin", is_flag=True, help="Stop when standard input ends.")
def run_archiver(
    file: str, once: bool, check: bool, log_format: LogFormat, end_with_stdin: bool
) -> None:
    """Archive what the log has and what it gets, until SIGTERM or Ctrl-C.

    The archive is made if there is none. Several may run: one of them commits at a time, and no
    transaction is archived twice. With --once it ends with 0 if everything is archived, with 1 if
    not.
    """
    settings = read_file(file)
    if check:
        check_http_access(http_access(settings))
        for line in settings.lines():
            click.echo(line)
        return
    set_up_logging(log_format)
    with ending_in_log(log_format):
        is_well = run_loop(_run(settings, once, end_with_stdin))
    if once and not is_well:
        sys.exit(1)


async def _run(settings: Settings, once: bool, end_with_stdin: bool) -> bool:
    from waltz.archive.archiver import Archiver
    from waltz.archive.archiver_shell import ArchiverProcess
    from waltz.system.real_host import real_host

    target = target_of(settings, create=True)
    opened: list[ClusterLog] = []

    def open_once() -> ClusterLog:
        opened.append(open_log(settings))
        return opened[0]

    partitions = settings.get(PARTITIONS)
    machine = Archiver(
        every_seconds=settings[EVERY],
        object_bytes=settings[OBJECT_BYTES],
        partitions=None if partitions is None else frozenset(map(PartitionId, partitions)),
        once=once,
    )
    process = ArchiverProcess(
        real_host(None, TlsSettings()),
        open_once,
        target,
        machine,
        object_bytes=settings[OBJECT_BYTES],
        verify_replicas=settings[VERIFY_REPLICAS],
        bytes_per_second=settings.get(RATE),
    )
    try:
        await until_told(
            ObservedNode(
                process, http_address(settings), lambda: _routes(process), http_access(settings)
            ),
            end_with_stdin=end_with_stdin,
        )
    finally:
        for each in opened:
            each.close()
    state = process.state()
    if once:
        for partition in state.partitions:
            click.echo(
                f"partition {partition.partition_id}: archived to transaction"
                f" {partition.archived}" + (f"; {partition.trouble}" if partition.trouble else "")
            )
        if state.trouble:
            click.echo(state.trouble, err=True)
    return state.is_healthy


def _routes(process: ArchiverProcess) -> Routes:
    from waltz.cli.probes import archiver_routes

    return archiver_routes(process.state, version=installed_version())
