"""Writes lost or damaged objects of an archive anew, from the log.

Owns the rule: an object is replaced only by records with the digest that its manifest names. The
manifest that names the new object is the archive's next one; nothing is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace

from waltz.archive.archive import read_archive, read_contents
from waltz.archive.archive_target import Target
from waltz.archive.archive_verification import NamedObject, judged_object
from waltz.archive.cluster_log import ArchivedLog
from waltz.archive.commits import commit, write_object
from waltz.archive.log_object import ObjectWriter
from waltz.archive.manifest import ArchivedFile, Contents, Manifest
from waltz.errors import ConfigurationError, VersionConflictError, WaltzError
from waltz.record import RecordBatch
from waltz.types import PartitionId


@dataclass
class RepairReport:
    """Objects that were looked at, those written anew, and those that could not be."""

    objects: int = 0
    repaired: list[ArchivedFile] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """The reason by the name of the object."""


def repair(
    target: Target,
    log: ArchivedLog,
    *,
    unique: Callable[[], str],
    now: int,
    progress: Callable[[int], None] = lambda count: None,
    announce: Callable[[int], None] = lambda total: None,
) -> RepairReport:
    """Look at all objects, and write the bad ones anew. `unique` returns 16 hexadecimal digits that
    nobody else uses; `now` in milliseconds since 1970.

    Raises ConfigurationError: it is another cluster's archive; ArchiveDamagedError: a manifest is
    damaged, which the log cannot mend; ArchiveUnreachableError. What was repaired before stays.
    """
    archive = read_archive(target)
    if archive.cluster_key != log.cluster_key:
        raise ConfigurationError(
            f"{target.url} has the log of cluster {archive.cluster_key}, not of cluster"
            f" {log.cluster_key}; nothing was changed"
        )
    report = RepairReport()
    contents = archive.contents
    files = [each for _, found in sorted(contents.files.items()) for each in found]
    announce(sum(each.byte_count for each in files))
    for file in files:
        report.objects += 1
        if any(True for _ in judged_object(target, str(archive.cluster_key), _named(file))):
            try:
                made = _made_anew(target, log, contents, file, unique())
            except WaltzError as error:
                report.refused[file.path] = str(error)
            else:
                change = Manifest(0, None, now, unique(), files=(made,), removed={file.path: now})
                contents, is_replaced = _committed(target, contents, file, change)
                if is_replaced:
                    report.repaired.append(made)
        progress(file.byte_count)
    return report


def _committed(
    target: Target, contents: Contents, file: ArchivedFile, change: Manifest
) -> tuple[Contents, bool]:
    """Replace an object, also if an archiver commits meanwhile; return the contents after it.
    False: another writer has replaced it, and nothing was changed."""
    while file in contents.files.get(file.partition_id, ()):
        try:
            return commit(target, contents, change), True
        except VersionConflictError:
            contents = read_contents(target, contents)
    return contents, False


def _made_anew(
    target: Target, log: ArchivedLog, contents: Contents, file: ArchivedFile, unique: str
) -> ArchivedFile:
    writer = ObjectWriter(contents.cluster_key, file.partition_id, file.first)
    for batch in _read(log, file):
        writer.add(batch)
    made = writer.finish()
    if made.raw_digest.hex() != file.raw_digest:
        raise ConfigurationError(
            f"the log's transactions {file.first} to {file.end - 1} of partition"
            f" {file.partition_id} are not those that were archived: their SHA-256 is"
            f" {made.raw_digest.hex()}, the manifest says {file.raw_digest}. Nothing was changed;"
            " find out which of the two is right: `waltz cluster verify`, `waltz disk checksum`"
        )
    return replace(write_object(target, made, unique), level=file.level)


def _read(log: ArchivedLog, file: ArchivedFile) -> Iterator[RecordBatch]:
    with closing(log.read(None, PartitionId(file.partition_id), file.first, file.end)) as batches:
        yield from batches


def _named(file: ArchivedFile) -> NamedObject:
    return NamedObject(
        file.path,
        file.partition_id,
        file.first,
        file.end,
        file.byte_count,
        file.raw_count,
        file.footer_offset,
        file.digest,
        file.footer_digest,
        file.raw_digest,
    )
