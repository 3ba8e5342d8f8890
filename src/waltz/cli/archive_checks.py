"""`waltz archive verify` and `repair`: is the archive what it should be, and making it so."""

from __future__ import annotations

import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import click

from waltz.cli.archive_place import FILE, opened_log, read_file, target_of
from waltz.cli.exit_codes import exit_code
from waltz.cli.output import json_option, print_json, progress_bar
from waltz.errors import WaltzError

if TYPE_CHECKING:
    from waltz.archive.archive_verification import NamedObject, Verification

_PERCENT = re.compile(r"(\d{1,3}(?:\.\d+)?)%")


class ShareType(click.ParamType[float]):
    """A share of all objects, written as 1% or 0.5%."""

    name = "percent"

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        found = _PERCENT.fullmatch(value)
        if found is None or not 0 < float(found[1]) <= 100:
            self.fail(f"{value!r} is no share; expected 1% or another up to 100%", param, ctx)
        return float(found[1]) / 100


@click.command("verify")
@FILE
@click.option(
    "--against",
    type=click.Choice(["log", "replicas"]),
    help="Compare with the log, or with each storage node's copy, too.",
)
@click.option("--sample", type=ShareType(), help="Look at a random share of the objects: 1%.")
@click.option("--full", is_flag=True, help="Look at all objects; the default.")
@json_option
def verify_archive(
    file: str, against: str | None, sample: float | None, full: bool, as_json: bool
) -> None:
    """Check every manifest, and every record of the objects, by both of its checksums.

    Ends with 1 if something is wrong, naming the first transaction concerned, with 3 if not
    everything could be learnt. Time and result are kept in the archive, for `waltz archive status`.
    """
    from waltz.archive.archive_verification import verify
    from waltz.archive.verification_record import record_of, write_record

    if full and sample is not None:
        raise click.UsageError("--sample and --full exclude each other")
    settings = read_file(file)
    target = target_of(settings)
    with ExitStack() as stack:
        log = stack.enter_context(opened_log(settings)) if against else None
        announce, progress = stack.enter_context(_bar("archive"))
        found = verify(
            target,
            chosen=_chosen(sample),
            log=log,
            replicas=against == "replicas",
            announce=announce,
            progress=progress,
        )
    try:
        write_record(target, record_of(found, int(time.time() * 1000), against))
    except WaltzError as error:
        click.echo(f"waltz archive status will not know of this run: {error}", err=True)
    if as_json:
        print_json(_verification_json(found))
    else:
        _show_verification(found)
    sys.exit(exit_code(found.verdict))


def _chosen(sample: float | None) -> Callable[[NamedObject], bool]:
    if sample is None:
        return lambda each: True
    return lambda each: secrets.randbelow(1_000_000) < sample * 1_000_000


@contextmanager
def _bar(label: str) -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """Yield what announces the total, and what counts bytes done."""
    with ExitStack() as stack:
        advance: list[Callable[[int], None]] = []

        def announce(total: int) -> None:
            advance.append(stack.enter_context(progress_bar(label, total)))

        yield announce, lambda count: advance[-1](count)


def _show_verification(found: Verification) -> None:
    click.echo(
        f"looked at {found.manifests} manifests and {found.objects} objects,"
        f" {found.transactions} transactions, {found.byte_count} bytes"
    )
    if found.objects_left_out:
        click.echo(f"left out {found.objects_left_out} objects")
    if found.orphans:
        click.echo(f"{found.orphans} objects are in no manifest; they are swept after a day")
    if found.compared:
        click.echo(f"compared with {', '.join(found.compared)}")
    for each in found.unknown:
        click.echo(f"unknown: {each}")
    for finding in found.findings:
        click.echo(f"wrong: {finding}")
    words = {
        True: "all that was looked at is right",
        False: "the archive is not right",
        None: "nothing wrong is known",
    }
    click.echo(words[found.verdict])


def _verification_json(found: Verification) -> dict[str, Any]:
    return {
        "right": found.verdict,
        "manifests": found.manifests,
        "objects": found.objects,
        "objects_left_out": found.objects_left_out,
        "transactions": found.transactions,
        "bytes": found.byte_count,
        "orphans": found.orphans,
        "compared": found.compared,
        "findings": [
            {
                "path": each.path,
                "text": each.text,
                "partition": each.partition,
                "transaction": each.transaction,
            }
            for each in found.findings
        ],
        "unknown": found.unknown,
    }


@click.command("repair")
@FILE
@json_option
def repair_archive(file: str, as_json: bool) -> None:
    """Look at all objects, and write those that are lost or damaged anew from the log.

    An object is replaced only if the log's records have the digest that the manifest names; else
    nothing is changed. Ends with 1 if an object could not be written anew.
    """
    from waltz.archive.archive_repair import repair

    settings = read_file(file)
    with ExitStack() as stack:
        log = stack.enter_context(opened_log(settings))
        announce, progress = stack.enter_context(_bar("archive"))
        report = repair(
            target_of(settings),
            log,
            unique=lambda: secrets.token_hex(8),
            now=int(time.time() * 1000),
            announce=announce,
            progress=progress,
        )
    if as_json:
        print_json(
            {
                "objects": report.objects,
                "repaired": [each.to_json() for each in report.repaired],
                "refused": report.refused,
            }
        )
    else:
        click.echo(f"looked at {report.objects} objects, wrote {len(report.repaired)} anew")
        for made in report.repaired:
            click.echo(
                f"partition {made.partition_id}, transactions {made.first} to {made.end - 1}:"
                f" {made.path}"
            )
        for path, reason in report.refused.items():
            click.echo(f"{path} was not written anew: {reason}", err=True)
    sys.exit(1 if report.refused else 0)
