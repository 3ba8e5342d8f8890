"""Statistics and digests of records, and records one by one, as far as they check out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from waltz.host import Disk
from waltz.record import RECORD_OVERHEAD_BYTES
from waltz.storage.inspection.survey import (
    InspectionTarget,
    PartitionFiles,
    list_partition,
    partition_directories,
)
from waltz.storage.inspection.walk import Gap, Run, open_view, walk
from waltz.storage.log.segment import DATA_SUFFIX, INDEX_SUFFIX
from waltz.types import NOTHING, TransactionId


@dataclass(frozen=True, slots=True)
class Statistics:
    """The count of records that check out, and the sizes of their data: None if there are none.

    `total_bytes` counts whole records, as they lie on disk; `gaps` counts places that do not check
    out.
    """

    rows: int
    total_bytes: int
    data_bytes: int
    data_bytes_min: int | None
    data_bytes_max: int | None
    data_bytes_average: float | None
    data_bytes_median: float | None
    gaps: int


def target_partitions(disk: Disk, target: InspectionTarget) -> list[PartitionFiles]:
    """Return the partitions that `target` names; a single segment counts as a partition.

    Raises OSError.
    """
    if target.partition_directory is None:
        assert target.directory is not None
        directories = partition_directories(disk, target.directory)
        return [list_partition(disk, directory) for directory in directories]
    files = list_partition(disk, target.partition_directory)
    if target.first is None:
        return [files]
    one = tuple(segment for segment in files.segments if segment.first == target.first)
    return [PartitionFiles(files.directory, files.partition_id, one, files.others)]


def partition_parts(
    disk: Disk, files: PartitionFiles, start: TransactionId | None = None
) -> Iterator[tuple[TransactionId, Run | Gap]]:
    """Yield the runs and gaps of the segments, each with its segment's first ID; segments that end
    before `start` are skipped. Raises OSError."""
    for segment in files.segments:
        following = files.following(segment.first)
        if start is not None and following is not None and following <= start:
            continue
        yield from ((segment.first, part) for part in segment_parts(disk, files, segment.first))


def segment_parts(disk: Disk, files: PartitionFiles, first: TransactionId) -> Iterator[Run | Gap]:
    paths = (files.path(first, DATA_SUFFIX), files.path(first, INDEX_SUFFIX))
    with open_view(disk, *paths, first) as view:
        yield from walk(view)


def statistics(parts: Iterator[Run | Gap], progress: Callable[[int], None]) -> Statistics:
    sizes = [np.empty(0, np.int64)]
    gaps = 0
    for part in parts:
        if isinstance(part, Gap):
            gaps += 1
            continue
        sizes.append(np.diff(part.batch.offsets) - RECORD_OVERHEAD_BYTES)
        progress(len(part.batch.block))
    data = np.concatenate(sizes)
    rows, data_bytes = len(data), int(data.sum())
    total = data_bytes + rows * RECORD_OVERHEAD_BYTES
    if not rows:
        return Statistics(0, 0, 0, None, None, None, None, gaps)
    return Statistics(
        rows,
        total,
        data_bytes,
        int(data.min()),
        int(data.max()),
        data_bytes / rows,
        float(np.median(data)),
        gaps,
    )


@dataclass(frozen=True, slots=True)
class Digests:
    """SHA-256 of a partition's records from 0 on, back to back as they lie on disk.

    `by_last` has the digest for each requested last transaction ID that is there. The records that
    check out, without a gap, end with `last_transaction_id`; `reason` says why they end there, None
    if it is the end of the last file.
    """

    by_last: dict[TransactionId, str]
    last_transaction_id: TransactionId
    sha256: str
    reason: str | None


def digests(
    disk: Disk,
    files: PartitionFiles,
    *,
    lasts: Collection[TransactionId],
    progress: Callable[[int], None],
) -> Digests:
    """Return the digests of a partition's records up to each of `lasts`. Raises OSError."""
    found = sha256()
    by_last = {NOTHING: found.hexdigest()} if NOTHING in lasts else {}
    rest = sorted(last for last in lasts if last > NOTHING)
    next_transaction_id = TransactionId(NOTHING + 1)
    reason = None
    for _, part in partition_parts(disk, files):
        if isinstance(part, Gap):
            reason = f"transaction {part.first}: {part.reason}"
            break
        batch = part.batch
        if batch.first_transaction_id != next_transaction_id:
            reason = f"transaction {next_transaction_id} is missing"
            break
        while rest and rest[0] < batch.next_transaction_id:
            last = rest.pop(0)
            head = batch.slice(batch.first_transaction_id, last + 1 - batch.first_transaction_id)
            until = found.copy()
            until.update(head.block)
            by_last[last] = until.hexdigest()
        found.update(batch.block)
        next_transaction_id = batch.next_transaction_id
        progress(len(batch.block))
    last_transaction_id = TransactionId(next_transaction_id - 1)
    return Digests(by_last, last_transaction_id, found.hexdigest(), reason)
