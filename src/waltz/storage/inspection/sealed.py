"""The records of segments that nothing is appended to any more, checked while they are read.

For programs that read a storage directory, or a copy of one, as a log. Owns which segments are
sealed, and the rule that a read returns all of a range or raises. Opens files to read only and
takes no lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from waltz.errors import ConfigurationError, CorruptionError
from waltz.host import Disk
from waltz.record import RecordBatch
from waltz.storage.inspection.judged_segments import Expectation, header_problems
from waltz.storage.inspection.promises import read_promises
from waltz.storage.inspection.survey import (
    PartitionFiles,
    find_target,
    list_partition,
    partition_directories,
)
from waltz.storage.inspection.walk import Gap, open_view, walk
from waltz.storage.log.segment import DATA_SUFFIX, INDEX_SUFFIX, SEGMENT_HEADER_BYTES
from waltz.types import PartitionId, TransactionId


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """A segment that another one follows: it has the transactions `first` to `end` - 1."""

    directory: str
    partition_id: PartitionId
    first: TransactionId
    end: TransactionId


def sealed_segments(disk: Disk, path: str) -> tuple[UUID, Sequence[SealedSegment]]:
    """Return the cluster's key and the sealed segments of the storage directory at the absolute
    `path`, ordered by partition and transaction ID.

    Raises ConfigurationError: not a storage directory; OSError.
    """
    target = find_target(disk, path)
    if target.directory is None or target.partition_directory is not None:
        raise ConfigurationError(f"{path} is not the whole directory of a storage node")
    cluster_key = read_promises(disk, target.directory).cluster_key
    if cluster_key is None:
        raise ConfigurationError(f"{path} does not say to which cluster the directory belongs")
    partitions = [list_partition(disk, each) for each in partition_directories(disk, path)]
    return cluster_key, [segment for files in partitions for segment in _sealed(files)]


def _sealed(files: PartitionFiles) -> Iterator[SealedSegment]:
    assert files.partition_id is not None, "its directory is named by its number"
    for segment in files.chain:
        following = files.following(segment.first)
        if following is not None:
            yield SealedSegment(files.directory, files.partition_id, segment.first, following)


def read_sealed(
    disk: Disk,
    segment: SealedSegment,
    cluster_key: UUID,
    *,
    first: TransactionId,
    end: TransactionId,
) -> Iterator[RecordBatch]:
    """Yield the records `first` to `end` - 1, which the segment has, each one checked.

    Raises CorruptionError: the file belongs elsewhere, is damaged or not whole; OSError.
    """
    files = list_partition(disk, segment.directory)
    data_path = files.path(segment.first, DATA_SUFFIX)
    expected = Expectation(cluster_key, segment.partition_id)
    position = segment.first
    with open_view(disk, data_path, files.path(segment.first, INDEX_SUFFIX), position) as view:
        header = view.data_file.read_at(0, SEGMENT_HEADER_BYTES)
        for problem in header_problems(header, segment.first, expected):
            raise CorruptionError(f"{data_path}: {problem}")
        for part in walk(view):
            if isinstance(part, Gap):
                raise CorruptionError(f"{data_path}: transaction {part.first}: {part.reason}")
            position = part.batch.next_transaction_id
            wanted = part.batch.slice(first, end - first)
            if len(wanted):
                yield wanted
            if position >= end:
                return
    raise CorruptionError(f"{data_path} ends before transaction {position}; expected {end - 1}")
