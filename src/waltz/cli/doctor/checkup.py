"""`waltz doctor`: all checks that are asked for, one after the other."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from waltz.cli.doctor.finding import Checked, verdict
from waltz.cli.exit_codes import exit_code
from waltz.cli.nodes import COORDINATOR, run_loop
from waltz.cli.output import json_option, print_json
from waltz.cli.tls_options import tls_options
from waltz.types import CoordinatorAddress, TlsSettings

FILES = click.Path(exists=True, dir_okay=False)


@click.command()
@click.option("--server", "servers", multiple=True, type=FILES, help="A server's file.")
@click.option("--storage", "storages", multiple=True, type=FILES, help="A storage node's file.")
@click.option(
    "--directory", "directories", multiple=True, type=click.Path(), help="A directory to measure."
)
@click.option("--coordinator", type=COORDINATOR, help="A coordinator to ask for its cluster.")
@click.option("--java", is_flag=True, help="Look for Spark and a Java for it, too.")
@tls_options
@json_option
def doctor(
    servers: Sequence[str],
    storages: Sequence[str],
    directories: Sequence[str],
    coordinator: CoordinatorAddress | None,
    tls: TlsSettings,
    *,
    java: bool,
    as_json: bool,
) -> None:
    """Check this machine and the nodes that files describe, and print causes and remedies.

    Of each file: is it accepted, are its ports free or held by the right node, can its certificates
    be used and until when, does its directory have room and how long does a sync take, does its
    coordinator answer. Nothing is changed: what is written to measure a directory is removed. Ends
    with 0 if all is well, with 1 if anything is wrong, and with 3 if nothing is known to be wrong
    but something could not be found out.
    """
    findings = run_loop(examine(servers, storages, directories, coordinator, tls, with_java=java))
    if as_json:
        print_json([each.to_json() for each in findings])
    else:
        for finding in findings:
            click.echo("\n".join(finding.lines()))
    if (code := exit_code(verdict(findings))) != 0:
        sys.exit(code)


async def examine(
    servers: Sequence[str],
    storages: Sequence[str],
    directories: Sequence[str],
    coordinator: CoordinatorAddress | None,
    tls: TlsSettings,
    *,
    with_java: bool,
) -> list[Checked]:
    """Return what all checks have found. Raises ConfigurationError: `tls` cannot be used."""
    from waltz.cli.doctor.disk_checks import disk_findings
    from waltz.cli.doctor.installation_checks import (
        SERVER_NODE,
        STORAGE_NODE,
        coordinator_finding,
        java_findings,
        node_findings,
    )
    from waltz.cli.doctor.machine_checks import machine_findings
    from waltz.storage.directory.space import FREE_MINIMUM

    findings = [*machine_findings()]
    nodes = [*((path, SERVER_NODE) for path in servers)]
    nodes += [(path, STORAGE_NODE) for path in storages]
    for path, kind in nodes:
        findings += [each async for each in node_findings(path, kind)]
    for directory in directories:
        findings += disk_findings(directory, FREE_MINIMUM)
    if coordinator is not None:
        findings.append(await coordinator_finding(coordinator, tls))
    if with_java:
        findings += java_findings()
    return findings
