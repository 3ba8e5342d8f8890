"""`waltz prove` and `waltz verify-proof`: a transaction's proof for somebody without a cluster."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click

from waltz.cli.exit_codes import exit_code
from waltz.cli.moments import moment
from waltz.cli.output import json_option, print_json
from waltz.errors import AttestationError, ConfigurationError
from waltz.types import PartitionId, TransactionId

DATA_BYTES_SHOWN = 200


class PlaceType(click.ParamType[tuple[PartitionId, TransactionId]]):
    """PARTITION:TRANSACTION."""

    name = "PARTITION:TRANSACTION"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[PartitionId, TransactionId]:
        found = re.fullmatch("([0-9]{1,9}):([0-9]{1,18})", str(value))
        if found is None:
            self.fail(f"{value!r}; expected partition:transaction, 0:4711", param, ctx)
        return PartitionId(int(found[1])), TransactionId(int(found[2]))


@click.command()
@click.argument("url")
@click.argument("target", type=PlaceType())
@click.option(
    "--output",
    "-o",
    "path",
    type=click.Path(path_type=Path),
    help="File to write the proof to; standard output if not given.",
)
def prove(url: str, target: tuple[PartitionId, TransactionId], path: Path | None) -> None:
    """Write the proof that a transaction is in the log, for `waltz verify-proof`.

    URL is the archive's; TARGET is PARTITION:TRANSACTION, which has to be archived and attested.
    """
    from waltz.archive.archive import read_archive
    from waltz.archive.archive_target import open_target
    from waltz.attest.attester import prove as proof_of
    from waltz.attest.tree_files import TreeFiles

    place = open_target(url)
    archive = read_archive(place)
    partition_id, transaction_id = target
    files = TreeFiles(place, partition_id)
    proof = proof_of(files, archive, archive.cluster_key, partition_id, transaction_id)
    if path is None:
        click.echo(str(proof), nl=False)
        return
    write_proof(path, str(proof))
    click.echo(f"wrote {path}; anybody can check it: waltz verify-proof {path} --log-key KEY")


def write_proof(path: Path, text: str) -> None:
    """Write a proof whole or not at all: half of one does not hold, and says that of the log.

    Raises ConfigurationError: it cannot be written; a file that is there is what it was.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe, or a terminal
            path.write_text(text)
            return
        place = path.resolve()
        part = place.with_name(f".{place.name}.part")
        try:
            part.write_text(text)
            part.replace(place)
        except OSError:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None


@click.command("verify-proof")
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--log-key", required=True, metavar="KEY|FILE", help="Public key of the log, or its file."
)
@click.option(
    "--witness-key",
    "witness_keys",
    multiple=True,
    metavar="KEY|FILE",
    help="Public key of a witness; may be repeated.",
)
@click.option(
    "--witnesses",
    type=click.IntRange(min=0),
    help="Number of witnesses that must have cosigned; all that are named if not given.",
)
@json_option
def verify_proof(
    path: Path, log_key: str, witness_keys: tuple[str, ...], witnesses: int | None, as_json: bool
) -> None:
    """Check a proof that a transaction is in the log. Asks nobody, and needs no cluster.

    The proof says that the owner of the log's key has put this record at this place into a log that
    it has not rewritten, as far as the witnesses have seen. It does not say that the record's
    author was right. Ends with 0 if the proof holds, and with 1 if it does not.
    """
    from waltz.attest.inclusion import PROOF_BYTES_MAX, parse_proof, verify

    log = read_public_key(log_key)
    known = [read_public_key(each) for each in witness_keys]
    needed = len({each.public for each in known}) if witnesses is None else witnesses
    with path.open("rb") as file:
        content = file.read(PROOF_BYTES_MAX + 1)
    try:
        proven = verify(parse_proof(content), log, known, needed)
    except AttestationError as error:
        if as_json:
            print_json({"holds": False, "reason": str(error)})
        else:
            click.echo(f"{path}: the proof does not hold: {error}")
        sys.exit(exit_code(False))
    record, checkpoint = proven.record, proven.checkpoint
    if as_json:
        print_json(
            {
                "holds": True,
                "cluster_key": str(proven.cluster_key),
                "partition": proven.partition_id,
                "transaction": record.transaction_id,
                "request_id": ":".join(map(str, record.request_id)),
                "header": record.header,
                "data_hex": record.data.hex(),
                "checkpoint_size": checkpoint.size,
                "cosigned": [each._asdict() for each in proven.cosigned],
            }
        )
        return
    click.echo(
        f"the proof holds: transaction {record.transaction_id} of partition {proven.partition_id}"
        f" of cluster {proven.cluster_key}\n"
        f"request ID  {':'.join(map(str, record.request_id))}\n"
        f"header      {record.header}\n"
        f"data        {_shown(record.data)}\n"
        f"signed      by {log.name}, for a log of {checkpoint.size} transactions"
    )
    for each in proven.cosigned:
        click.echo(f"cosigned    by {each.witness} at {moment(each.time * 1000, 'seconds')}")
    if not proven.cosigned:
        click.echo("cosigned    by no witness that you have named")


def read_public_key(text: str) -> Any:
    """Return the public key that `text` is, or that the file of that name holds.

    Raises ConfigurationError: neither.
    """
    from waltz.attest.notes import PublicKey

    try:
        return PublicKey.parse(text)
    except ConfigurationError as error:
        path = Path(text)
        if not _is_file(path):
            raise ConfigurationError(
                f"{text[:80]!r} is neither a file nor a key: {error}"
            ) from None
    return PublicKey.parse(read_key_text(path))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # no file system has so long a name
        return False


def read_key_text(path: Path) -> str:
    """Return the text of a key's file. Raises ConfigurationError: it cannot be read, or is no
    text, or has more than 4 KiB."""
    try:
        with path.open("rb") as file:
            content = file.read(4097)
        if len(content) > 4096:
            raise ConfigurationError(f"{path} is not a key: it has more than 4 KiB")
        return content.decode("ascii")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is not a key: it is not ASCII") from None


def _shown(data: bytes) -> str:
    shown = data[:DATA_BYTES_SHOWN]
    more = f" and {len(data) - len(shown)} more bytes" if len(data) > len(shown) else ""
    try:
        text = shown.decode()
    except UnicodeDecodeError:
        return f"0x{shown.hex()}{more}"
    return f"{text if text.isprintable() else repr(text)}{more}"
