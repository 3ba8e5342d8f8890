"""`waltz attest keygen` and `run`: the trees of an archive are signed, and cosigned."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from waltz.cli.exit_codes import exit_code
from waltz.cli.output import json_option, print_json, progress_bar
from waltz.cli.prove import read_key_text
from waltz.errors import (
    AttestationError,
    ConfigurationError,
    CorruptionError,
    UnavailableError,
    WaltzError,
)
from waltz.types import PartitionId

if TYPE_CHECKING:
    from waltz.archive.archive import Archive
    from waltz.archive.archive_target import Target
    from waltz.attest.attester import Attester
    from waltz.attest.merkle import TreeHashes
    from waltz.attest.notes import Note, SecretKey, Signature
    from waltz.cli.cosigning import Witness


@click.command()
@click.argument("name")
@click.option(
    "--output",
    "-o",
    "path",
    required=True,
    type=click.Path(path_type=Path),
    help="File to write the secret key to; it must not exist.",
)
@click.option("--witness", "is_witness", is_flag=True, help="A key for `waltz witness`.")
def keygen(name: str, path: Path, is_witness: bool) -> None:
    """Make a key called NAME, and print its public part.

    The key of a log is called waltz/CLUSTER-KEY, where CLUSTER-KEY is what `waltz cluster
    show-cluster-key` prints. A witness's name should be a URL without the scheme.
    """
    from waltz.attest.notes import KeyKind, SecretKey
    from waltz.system.real_disk import RealDisk

    key = SecretKey.generate(name, KeyKind.WITNESS if is_witness else KeyKind.LOG)
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(number, "w") as file:
                file.write(f"{key.secret_text()}\n")
                file.flush()
                os.fsync(file.fileno())
            RealDisk().sync_directory(str(path.absolute().parent))
        except BaseException:
            path.unlink()
            raise
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
    click.echo(f"wrote {path}, to sign with; give away this public key:", err=True)
    click.echo(key.public_key)


@click.command()
@click.argument("url")
@click.option(
    "--key",
    "key_path",
    required=True,
    type=click.Path(path_type=Path),
    help="File with the log's secret key: waltz attest keygen.",
)
@click.option(
    "--witness",
    "witnesses",
    multiple=True,
    metavar="URL=KEY|FILE",
    help="A witness that has to cosign, and its public key; may be repeated.",
)
@click.option(
    "--every",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Go on, and look for newly archived transactions every so many seconds.",
)
@json_option
def run(
    url: str, key_path: Path, witnesses: tuple[str, ...], every: float | None, as_json: bool
) -> None:
    """Sign what the archive at URL has, and have witnesses cosign it.

    Ends with 1 if a tree is not the one that was signed before, or an object is damaged, and with 3
    if a witness did not cosign; everything else is done then. With --every it says so and goes on.
    """
    from waltz.attest.notes import KeyKind, SecretKey
    from waltz.cli.cosigning import Witness

    key = SecretKey.parse(read_key_text(key_path))
    if key.public_key.kind is not KeyKind.LOG:
        raise ConfigurationError(f"{key_path} is the key of a witness, and signs no log")
    asked = [Witness.parse(each) for each in witnesses]
    if every is None:
        sys.exit(exit_code(_run_once(url, key, asked, as_json=as_json)))
    while True:
        try:
            _run_once(url, key, asked, as_json=as_json)
        except UnavailableError as error:
            click.echo(f"waltz: {error}; asked again in {every:g} s", err=True)
        time.sleep(every)


def _run_once(
    url: str, key: SecretKey, witnesses: Sequence[Witness], *, as_json: bool
) -> bool | None:
    """Attest all partitions. Return False: one of them could not be, for its tree is not the one
    that was signed before, or its objects are damaged; None: a cosignature was refused or not
    given; else True."""
    target, archive = open_place(url)
    rows = []
    faults = []
    troubles = []
    # Also those that an archiver has found empty: an archive that was set back may lack all of one.
    for partition_id in sorted({*archive.partitions, *archive.contents.time_marks}):
        attester = _attester(target, archive, partition_id, key)
        end = archive.end(partition_id)
        try:
            count = end - attester.opened().size
            if not end and not count:
                continue
            with shown_progress(f"partition {partition_id}", count) as advance:
                attested = attester.extend(archive, end, advance)
            lacking, said = _cosign(attester, witnesses)
        except (AttestationError, CorruptionError) as error:
            faults.append(f"partition {partition_id}: {error}")
            continue
        troubles += said
        rows.append(
            {
                "partition": partition_id,
                "attested": attested.checkpoint.size,
                "new": attested.checkpoint.size - attested.earlier_size,
                "root": attested.checkpoint.root.hex(),
                "cosigned": len(witnesses) - lacking,
            }
        )
        if not as_json:
            cosigned = f", cosigned by {len(witnesses) - lacking} of {len(witnesses)} witnesses"
            click.echo(
                f"partition {partition_id}: {attested.checkpoint.size:,} transactions attested,"
                f" {rows[-1]['new']:,} of them new{cosigned if witnesses else ''}"
            )
    if as_json:
        print_json({"partitions": rows, "not_attested": faults, "not_cosigned": troubles})
    for each in (*faults, *troubles):
        click.echo(f"waltz: {each}", err=True)
    return False if faults else None if troubles else True


def _cosign(attester: Attester, witnesses: Sequence[Witness]) -> tuple[int, list[str]]:
    """Have a checkpoint cosigned by the witnesses that have not cosigned it; return how many
    lack now, with their reasons."""
    troubles: list[str] = []

    def ask(note: Note, tree: TreeHashes) -> list[Signature]:
        found = []
        for each in witnesses:
            if each.key.verified_time(note) is not None:
                continue
            try:
                found.append(each.cosign(note, tree))
            except WaltzError as error:
                troubles.append(f"{note.text.partition(chr(10))[0]} is not cosigned: {error}")
        return found

    if witnesses:
        attester.cosign(ask)
    return len(troubles), troubles


def open_place(url: str) -> tuple[Target, Archive]:
    """Return the place at `url` and the archive in it. Raises as `open_archive`."""
    from waltz.archive.archive import read_archive
    from waltz.archive.archive_target import open_target

    target = open_target(url)
    return target, read_archive(target)


def _attester(
    target: Target, archive: Archive, partition_id: PartitionId, key: SecretKey
) -> Attester:
    from waltz.attest.attester import Attester
    from waltz.attest.checkpoints import origin_of
    from waltz.attest.tree_files import TreeFiles
    from waltz.attest.witness_judge import key_for

    origin = origin_of(archive.cluster_key, partition_id)
    if key_for(origin, [key.public_key]) is None:
        raise ConfigurationError(
            f"the key is called {key.public_key.name}; the key of this archive's log has to be"
            f" called waltz/{archive.cluster_key}: waltz attest keygen"
        )
    return Attester(TreeFiles(target, partition_id), archive.cluster_key, partition_id, key)


def shown_progress(label: str, count: int) -> Any:
    """Return a context with what counts transactions, and shows them on a terminal."""
    from rich.progress import MofNCompleteColumn

    return progress_bar(label, count, MofNCompleteColumn())
