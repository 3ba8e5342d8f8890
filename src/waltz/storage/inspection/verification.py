"""Judges a storage directory, a partition, a segment or one record.

Owns what belongs together: promises, the chain of segments, files that have no place in it. A
running node may write at the same time: a finding is believed only if a second look has it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from posixpath import basename
from typing import Final

from waltz.errors import NotFoundError
from waltz.host import Disk
from waltz.storage.directory.control_struct import CONTROL_FILE_NAME, PartitionInfo
from waltz.storage.directory.node_file import NODE_FILE_NAME
from waltz.storage.directory.reserve import RESERVE_NAME
from waltz.storage.directory.trace_file import TRACE_FILE_NAME, SegmentTrace
from waltz.storage.inspection.findings import Finding, FindingKind, Report
from waltz.storage.inspection.judged_segments import Expectation, Progress, SegmentCheck
from waltz.storage.inspection.promises import NO_PROMISES, Promises, read_promises
from waltz.storage.inspection.survey import (
    InspectionTarget,
    PartitionFiles,
    list_partition,
    partition_directories,
    read_file,
)
from waltz.storage.inspection.walk import open_view
from waltz.storage.log.damage import (
    DAMAGE_FILE_BYTES_MAX,
    DAMAGE_FILE_NAME,
    NONE,
    Remembered,
    damage_text,
    decode_damage,
)
from waltz.storage.log.segment import DATA_SUFFIX, INDEX_SUFFIX, SET_ASIDE_SUFFIX
from waltz.types import NO_SESSION, NOTHING, PartitionId, TransactionId

UNFINISHED_SUFFIX: Final = ".new"

FIRST: Final = TransactionId(0)


def ignore_progress(count: int) -> None:
    """Do nothing: for callers that show no progress."""


@dataclass(frozen=True, slots=True)
class Options:
    """The way to verify. `wait` is called between the two looks; None: no node is running, and one
    look is enough."""

    data_checksums: bool = False
    progress: Progress = ignore_progress
    wait: Callable[[], None] | None = None


def verify(disk: Disk, target: InspectionTarget, options: Options) -> Report:
    """Judge everything that `target` names, and its promises. Raises OSError."""
    report = Report()
    promises = _promises(disk, target, options)
    for finding in promises.findings:
        report.add(finding)
    if target.partition_directory is not None:
        report.merge(
            _verify_partition(disk, target.partition_directory, promises, target.first, options)
        )
        return report
    assert target.directory is not None
    directories = partition_directories(disk, target.directory)
    for finding in _verify_names(disk, target.directory, promises, directories):
        report.add(finding)
    for directory in directories:
        report.merge(_verify_partition(disk, directory, promises, None, options))
    return report


def verify_transaction(
    disk: Disk, target: InspectionTarget, transaction_id: TransactionId, options: Options
) -> Report:
    """Judge one record and its index entry, in a partition or a segment.

    Raises NotFoundError: there is no such record; OSError.
    """
    assert target.partition_directory is not None
    promises = _promises(disk, target, options)
    files = list_partition(disk, target.partition_directory)
    firsts = [segment.first for segment in files.segments if segment.first <= transaction_id]
    if not firsts or (target.first is not None and firsts[-1] != target.first):
        raise NotFoundError(f"no segment here has transaction {transaction_id}")
    first = firsts[-1]

    def look() -> Report:
        found = list_partition(disk, files.directory)
        with _open_check(disk, found, first, promises, options) as check:
            return check.run_one(transaction_id)

    return _confirmed(look(), look, options)


def _promises(disk: Disk, target: InspectionTarget, options: Options) -> Promises:
    if target.directory is None:
        return NO_PROMISES
    return read_promises(disk, target.directory, options.wait)


def _confirmed(report: Report, look_again: Callable[[], Report], options: Options) -> Report:
    """Return `report` without the findings that a second look does not have."""
    if not report.findings or options.wait is None:
        return report
    options.wait()
    again = look_again()
    if again.findings == report.findings:
        return report
    confirmed = Report(
        files=report.files, records=report.records, entries=report.entries, bytes=report.bytes
    )
    for finding in report.findings:
        if finding in again.findings:
            confirmed.add(finding)
    return confirmed


def _verify_names(
    disk: Disk, directory: str, promises: Promises, partitions: Sequence[str]
) -> list[Finding]:
    """Judge the names in a storage directory: strange files, and partitions without directory."""
    findings = []
    known = {
        CONTROL_FILE_NAME,
        NODE_FILE_NAME,
        TRACE_FILE_NAME,
        RESERVE_NAME,
        *map(basename, partitions),
    }
    for name in disk.list_directory(directory):
        if name not in known:
            findings.append(_stranger(f"{directory}/{name}"))
    for number in range(promises.partition_count):
        path = f"{directory}/{number}"
        info = promises.info(PartitionId(number))
        if path in partitions or info is None or not info.is_assigned:
            continue
        text = f"partition {number} is assigned and has no directory"
        if info.session_id == NO_SESSION:
            findings.append(Finding(FindingKind.NOTE, path, f"{text}; the next start makes it"))
        else:
            findings.append(_missing(path, text, info))
    return findings


def _stranger(path: str) -> Finding:
    if path.endswith(UNFINISHED_SUFFIX):
        return Finding(FindingKind.ORPHAN, path, "left by a crash; the node does not read it")
    if path.endswith(SET_ASIDE_SUFFIX):
        return Finding(FindingKind.NOTE, path, "set aside by a repair; the node does not read it")
    return Finding(FindingKind.NOTE, path, "not a file of a storage node")


def remembered_next(disk: Disk, files: PartitionFiles) -> TransactionId:
    """Return one past the last record that was durable according to the damage file."""
    if DAMAGE_FILE_NAME not in files.others:
        return FIRST
    found = _read_damage(disk, f"{files.directory}/{DAMAGE_FILE_NAME}")
    return FIRST if found is None else found.durable_next


def _read_damage(disk: Disk, path: str) -> Remembered | None:
    """Return the content of the damage file; None: it does not check out."""
    try:
        content = read_file(disk, path, bytes_max=DAMAGE_FILE_BYTES_MAX)
    except FileNotFoundError:
        return NONE  # the damage has been repaired in the meantime
    return decode_damage(content)


def _remembered(disk: Disk, path: str) -> Finding | None:
    """Judge the damage file; None: there is none, for all damage is repaired."""
    found = _read_damage(disk, path)
    if found is None:
        return Finding(
            FindingKind.PROMISE, path, "does not check out; the next start reads all records"
        )
    if not found.damage:
        return None
    return Finding(
        FindingKind.NOTE, path, f"the node remembers damage: {damage_text(found.damage)}"
    )


def _missing(path: str, text: str, info: PartitionInfo) -> Finding:
    following = TransactionId(info.local_low_water_mark + 1)
    return Finding(FindingKind.DAMAGE, path, text, FIRST, following)


def _verify_partition(
    disk: Disk,
    directory: str,
    promises: Promises,
    only: TransactionId | None,
    options: Options,
) -> Report:
    """Judge a partition's directory, or one segment of it."""
    report = Report()
    files = list_partition(disk, directory)
    if only is None:
        chain = _check_chain(disk, files, promises)

        def look_at_chain() -> Report:
            return _check_chain(disk, list_partition(disk, directory), promises)

        report.merge(_confirmed(chain, look_at_chain, options))
    for segment in files.segments:
        if only in (None, segment.first):
            report.merge(_verify_segment(disk, files, segment.first, promises, options))
    return report


def _verify_segment(
    disk: Disk,
    files: PartitionFiles,
    first: TransactionId,
    promises: Promises,
    options: Options,
) -> Report:
    def look(found: PartitionFiles) -> Report:
        with _open_check(disk, found, first, promises, options) as check:
            return check.run()

    def look_again() -> Report:
        return look(list_partition(disk, files.directory))

    return _confirmed(look(files), look_again, options)


def _check_chain(disk: Disk, files: PartitionFiles, promises: Promises) -> Report:
    """Judge the files of a partition's directory, missing ones included, by their names."""
    report = Report()
    for name in files.others:
        path = f"{files.directory}/{name}"
        finding = _remembered(disk, path) if name == DAMAGE_FILE_NAME else _stranger(path)
        if finding is not None:
            report.add(finding)
    partition_id = files.partition_id
    info = promises.info(partition_id)
    if promises.control is not None and (
        partition_id is None or partition_id >= promises.partition_count
    ):
        text = f"the cluster has {promises.partition_count} partitions"
        report.add(Finding(FindingKind.ORPHAN, files.directory, text))
    elif info is not None and not info.is_assigned and files.segments:
        report.add(Finding(FindingKind.NOTE, files.directory, "not assigned, its files are left"))
    firsts = [segment.first for segment in files.segments]
    if info is not None and info.is_assigned and not firsts and info.session_id != NO_SESSION:
        report.add(_missing(files.directory, "there are no segments", info))
    trace = _trace(promises, files)
    last = max((segment.first for segment in files.chain), default=NOTHING)
    if trace is not None and last < trace.newest:
        text = "the newest segment is missing, with all that was in it"
        following = TransactionId(trace.newest + 1)
        report.add(Finding(FindingKind.DAMAGE, files.directory, text, trace.newest, following))
    if firsts and firsts[0] != FIRST:
        text = "there is no segment with the first transactions"
        report.add(Finding(FindingKind.DAMAGE, files.directory, text, FIRST, firsts[0]))
    return report


def _trace(promises: Promises, files: PartitionFiles) -> SegmentTrace | None:
    return None if files.partition_id is None else promises.traces.get(files.partition_id)


@contextmanager
def _open_check(
    disk: Disk,
    files: PartitionFiles,
    first: TransactionId,
    promises: Promises,
    options: Options,
) -> Iterator[SegmentCheck]:
    info = promises.info(files.partition_id)
    trace = _trace(promises, files)
    traced_next = FIRST if trace is None else trace.durable_next
    is_assigned = info is not None and info.is_assigned
    promised_next = TransactionId(info.local_low_water_mark + 1) if info and is_assigned else FIRST
    expected = Expectation(
        cluster_key=promises.cluster_key,
        partition_id=files.partition_id,
        following=files.following(first),
        durable_next=max(promised_next, remembered_next(disk, files), traced_next),
        index_is_proof=promises.index_is_proof(files.partition_id),
    )
    paths = (files.path(first, DATA_SUFFIX), files.path(first, INDEX_SUFFIX))
    with open_view(disk, *paths, first) as view:
        yield SegmentCheck(
            files,
            view,
            expected,
            data_checksums=options.data_checksums,
            progress=options.progress,
        )
