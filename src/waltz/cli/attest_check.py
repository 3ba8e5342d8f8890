"""`waltz attest check`: archive, servers and storage nodes compared with what was attested."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from waltz.cli.attest import open_place, shown_progress
from waltz.cli.cluster_place import LogPlace, log_options_on_demand
from waltz.cli.exit_codes import exit_code
from waltz.cli.output import json_option, print_json
from waltz.cli.prove import read_public_key
from waltz.errors import (
    ArchiveDamagedError,
    AttestationError,
    ClusterChangedError,
    CorruptionError,
    RemoteStorageError,
    WaltzError,
)
from waltz.types import PartitionId, TransactionId

if TYPE_CHECKING:
    from waltz.archive.archive import Archive
    from waltz.archive.archive_target import Target
    from waltz.attest.checkpoints import Checkpoint
    from waltz.attest.comparison import Difference
    from waltz.attest.notes import PublicKey
    from waltz.operators.replicas_shell import Replica, ReplicaReader
    from waltz.reader.blocking_reader import LogReader
    from waltz.record import RecordBatch

ARCHIVE, LOG = "archive", "log"


@dataclass(frozen=True, slots=True)
class Finding:
    """A comparison's result, and its place. `partition` None: it concerns all; `is_well` None: not
    all could be learnt; `transaction`: the first one that differs."""

    partition: PartitionId | None
    where: str
    is_well: bool | None
    text: str
    transaction: TransactionId | None = None

    def place(self, *, named: bool) -> str:
        """Return the words for partition and place; the archive's only if it is `named`."""
        if self.partition is None:
            return self.where
        is_plain = self.where == ARCHIVE and not named
        return f"partition {self.partition}" + ("" if is_plain else f", {self.where}")

    def to_json(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "where": self.where,
            "is_well": self.is_well,
            "transaction": self.transaction,
            "finding": self.text,
        }


@click.command("check")
@click.argument("url")
@click.option(
    "--log-key", required=True, metavar="KEY|FILE", help="Public key of the log, or its file."
)
@click.option("--partition", type=click.IntRange(min=0), help="Only this partition.")
@click.option(
    "--against",
    type=click.Choice(["log", "replicas"]),
    multiple=True,
    help="Compare what servers hand out, or each storage node's copy, too; may be repeated.",
)
@log_options_on_demand
@json_option
def check(
    url: str,
    log_key: str,
    partition: int | None,
    against: tuple[str, ...],
    as_json: bool,
    find_place: Callable[[], LogPlace],
) -> None:
    """Compare all records of the archive at URL, and of the running log, with what was attested.

    Ends with 1 and names the first transaction that differs, and whether the record or the tree was
    changed; with 3 if nothing was attested, or if not everything could be compared.
    """
    key = read_public_key(log_key)
    target, archive = open_place(url)
    known = sorted({*archive.partitions, *attested_partitions(target)})
    chosen = [each for each in known if partition is None or each == partition]
    with ExitStack() as stack:
        checks = [Check(target, archive, each, key) for each in chosen]
        findings = [*manifest_faults(target), *(each.archived() for each in checks)]
        if against and checks:
            log = stack.enter_context(RunningLog(find_place(), archive, against))
            findings += [found for each in checks for found in log.compared(each)]
    if as_json:
        print_json({"partitions": [each.to_json() for each in findings]})
    else:
        for each in findings:
            click.echo(f"{each.place(named=bool(against))}: {each.text}")
        if not checks:
            click.echo("the archive has no such partition" if partition is not None else "empty")
    wells = [each.is_well for each in findings]
    sys.exit(exit_code(False if False in wells else None if None in wells or not checks else True))


def attested_partitions(target: Target) -> list[PartitionId]:
    """Return the partitions that have a checkpoint: an archive that was set back may lack some."""
    found = []
    for each in target.list("attest"):
        _, partition, *name = each.path.split("/")
        if name == ["checkpoint"] and partition.isascii() and partition.isdigit():
            found.append(PartitionId(int(partition)))
    return found


class Check:
    """The tree of one partition, with which records are compared."""

    def __init__(
        self, target: Target, archive: Archive, partition_id: PartitionId, key: PublicKey
    ) -> None:
        from waltz.attest.tree_files import TreeFiles

        self.partition_id = partition_id
        self._target = target
        self._archive = archive
        self._key = key
        self._files = TreeFiles(target, partition_id)

    def archived(self) -> Finding:
        """Compare the archive, each byte of its objects."""
        from waltz.archive.archive import read_archive

        damages: list[ArchiveDamagedError] = []

        def records(checkpoint: Checkpoint) -> Iterator[RecordBatch]:
            if checkpoint.size > self._archive.end(self.partition_id):
                # Archiver and attester may have gone on since the archive was opened.
                self._archive = read_archive(self._target)
            end = min(checkpoint.size, self._archive.end(self.partition_id))
            yield from archived_records(
                self._target, self._archive, self.partition_id, end, damages
            )

        found = self.compared(ARCHIVE, records)
        if found.is_well and (fault := self._fault_beside_records(damages)) is not None:
            return Finding(self.partition_id, ARCHIVE, False, f"{fault}; {found.text}")
        return found

    def compared(
        self, where: str, records: Callable[[Checkpoint], Iterable[RecordBatch]]
    ) -> Finding:
        """Compare `records` of the partition's transactions from 0 on with the tree."""
        from waltz.attest.attester import own_checkpoint
        from waltz.attest.checkpoints import origin_of
        from waltz.attest.comparison import first_difference
        from waltz.attest.leaves import Leaves

        def finding(is_well: bool | None, text: str) -> Finding:
            return Finding(self.partition_id, where, is_well, text)

        try:
            note = self._files.checkpoint()
            if note is None:
                return finding(None, "nothing was attested")
            key, cluster_key = self._key, self._archive.cluster_key
            checkpoint = own_checkpoint(note, key, origin_of(cluster_key, self.partition_id))
            with shown_progress(f"{where}, partition {self.partition_id}", checkpoint.size) as step:
                difference = first_difference(
                    self._files,
                    Leaves(cluster_key, self.partition_id),
                    records(checkpoint),
                    checkpoint,
                    step,
                )
        except (AttestationError, ArchiveDamagedError) as error:
            return finding(False, str(error))
        except WaltzError as error:
            return finding(None, f"it could not be compared to the end: {error}")
        if difference is None:
            return finding(True, f"{checkpoint.size:,} transactions are as they were attested")
        return Finding(
            self.partition_id, where, False, _told(difference, where), difference.transaction_id
        )

    def _fault_beside_records(self, damages: Sequence[ArchiveDamagedError]) -> str | None:
        """Return what is wrong with an object whose records are all as they were attested."""
        from waltz.archive.salvage import header_fault

        if damages:
            return str(damages[0])
        for file in self._archive.partitions[self.partition_id].files:
            if (fault := header_fault(self._target, self._archive, file)) is not None:
                return fault
        return None


def _told(difference: Difference, where: str) -> str:
    number = difference.transaction_id
    if difference.damage is not None:
        return f"transaction {number} was attested and cannot be read: {difference.damage}"
    if difference.found is None:
        there = {ARCHIVE: "in the archive", LOG: "in the log that the servers know"}
        return f"transaction {number} was attested and is not {there.get(where, 'there')}"
    if difference.is_of_the_tile:
        return f"the tree was changed at transaction {number}, the record was not"
    return f"transaction {number} is not the one that was attested"


def archived_records(
    target: Target,
    archive: Archive,
    partition_id: PartitionId,
    end: int,
    damages: list[ArchiveDamagedError],
) -> Iterator[RecordBatch]:
    """Yield the records 0 to `end` - 1 of an archive.

    Of a damaged object all records are yielded that can still be unpacked, unchecked; the damage
    goes into `damages`. Raises CorruptionError: the next record cannot be read.
    """
    from waltz.archive.salvage import salvaged_records
    from waltz.arrays import np
    from waltz.attest.attester import batches
    from waltz.record import RecordBatch

    position = TransactionId(0)
    while position < end:
        try:
            for batch in batches(archive.blocks(partition_id, position, end), position):
                yield batch
                position = batch.next_transaction_id
        except ArchiveDamagedError as error:
            damages.append(error)
            files = archive.partitions[partition_id].files
            file = next(each for each in files if each.first <= position < each.end)
            for number, record in enumerate(salvaged_records(target, file), int(file.first)):
                if number == position < end:
                    yield RecordBatch(position, record, np.array([0, len(record)], np.int64))
                    position = TransactionId(position + 1)
            if position < min(file.end, end):
                raise


class RunningLog:
    """The log as servers hand it out, or as each storage node holds it; a context manager."""

    def __init__(self, place: LogPlace, archive: Archive, against: Sequence[str]) -> None:
        """Raises ClusterChangedError: the log is another cluster's; as `open_reader`."""
        import waltz

        self._stack = ExitStack()
        self._reader: LogReader | None = None
        self._replicas: ReplicaReader | None = None
        try:
            if "log" in against:
                self._reader = waltz.open_reader(place.cluster, tls=place.tls)
                self._stack.callback(self._reader.close)
                expect_key(archive, self._reader.cluster_key)
            if "replicas" in against:
                self._replicas = waltz.open_replicas(place.cluster, tls=place.tls)
                self._stack.callback(self._replicas.close)
                expect_key(archive, self._replicas.cluster_key)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> RunningLog:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def compared(self, check: Check) -> Iterator[Finding]:
        """Yield what servers and storage nodes have of the partition of `check`."""
        if (reader := self._reader) is not None:
            yield check.compared(LOG, lambda at: _handed_out(reader, check.partition_id, at.size))
        if self._replicas is None:
            return
        try:
            replicas = self._replicas.replicas_of([check.partition_id])
        except WaltzError as error:
            yield Finding(check.partition_id, "replicas", None, f"they are not known: {error}")
            return
        if not replicas:
            yield Finding(check.partition_id, "replicas", None, "no replica is known")
        for each in replicas:
            yield self._compared_replica(check, self._replicas, each)

    def _compared_replica(self, check: Check, reader: ReplicaReader, replica: Replica) -> Finding:
        where = f"storage node {replica.replica_id}"
        if not replica.is_current:
            text = "not compared: it takes no part in the partition's store session"
            return Finding(check.partition_id, where, None, text)
        return check.compared(where, lambda at: held_records(reader, replica, at.size))


def expect_key(archive: Archive, found: object) -> None:
    """Raises ClusterChangedError: the archive is not that of the cluster with the key `found`."""
    if archive.cluster_key != found:
        raise ClusterChangedError(
            f"the archive has the log of cluster {archive.cluster_key}; the log is that of {found}"
        )


def _handed_out(reader: LogReader, partition_id: PartitionId, size: int) -> Iterator[RecordBatch]:
    """Yield the records that servers hand out, at most `size`."""
    from waltz.reader.transaction_columns import records_of

    end = min(size, reader.high_water_mark(partition_id) + 1)
    for columns in reader.read(partition_id, 0, end):
        yield records_of(columns)


def held_records(reader: ReplicaReader, replica: Replica, size: int) -> Iterator[RecordBatch]:
    """Yield the records that a storage node holds, at most `size`, unchecked.

    Raises CorruptionError: the node does not hand out the next one; UnavailableError.
    """
    try:
        yield from reader.read_records(replica, 0, size)
    except RemoteStorageError as error:
        raise CorruptionError(f"the storage node says: {error}") from None


def manifest_faults(target: Target) -> Iterator[Finding]:
    """Yield what is wrong with the manifests, by the judge of `waltz archive verify`."""
    from waltz.archive.archive_verification import Verification, named_objects

    found = Verification()
    named_objects(target, found)
    for each in found.findings:
        yield Finding(None, ARCHIVE, False, f"{each.path}: {each.text}")
