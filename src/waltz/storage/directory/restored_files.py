"""A storage directory that was filled from an archive: its promises, and the mark of a restore that
is not finished.

Owns the order. The mark, `waltz-storage.restoring`, is there before any record is written. Trace,
node file and control file are written once all records are durable, the control file last; then the
mark goes. So a node never starts in a directory that was filled in part, and the Java original,
which ignores the mark, finds no control file there. Knows nothing of archives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from waltz.errors import ForeignDirectoryError
from waltz.host import Disk
from waltz.storage.directory.control_struct import (
    CONTROL_FILE_NAME,
    Entry,
    PartitionInfo,
    encode_control_file,
    encode_entry,
)
from waltz.storage.directory.node_file import NodeHeader, Slot, create_node_file
from waltz.storage.directory.trace_file import (
    TRACE_BYTES,
    TRACE_FILE_NAME,
    SegmentTrace,
    encode_trace,
    trace_file_bytes,
    trace_offsets,
)
from waltz.types import PartitionId

MARK_FILE_NAME: Final = "waltz-storage.restoring"
"""The file that is there while a directory is being filled from an archive."""


class RestoredPartition(NamedTuple):
    """The promises of a partition whose records are durable, and where its newest segment begins.

    All records up to `info.local_low_water_mark` are there, and no others.
    """

    info: PartitionInfo
    trace: SegmentTrace


def refuse_unfinished(disk: Disk, directory: str) -> None:
    """Raise ForeignDirectoryError if a restore into the directory has not been finished."""
    if disk.exists(f"{directory}/{MARK_FILE_NAME}"):
        raise ForeignDirectoryError(
            f"a restore into {directory} is under way or was cut short: {MARK_FILE_NAME} is there."
            " Nothing in it can be used until the restore has ended: run the same `waltz restore`"
            " command again with --start-over"
        )


def write_promises(
    disk: Disk,
    directory: str,
    header: NodeHeader,
    partitions: Mapping[PartitionId, RestoredPartition],
) -> None:
    """Make the trace file, the node file and the control file, each durable before the next one is
    begun. The caller has the directory's mark, and has synced all segments. Raises OSError."""
    count = header.partition_count
    traces = bytearray(trace_file_bytes(count))
    slots: dict[PartitionId, Slot] = {}
    for partition_id, (info, trace) in partitions.items():
        data = encode_trace(header.directory_id, partition_id, trace, 1)
        for offset in trace_offsets(count, partition_id):
            traces[offset : offset + TRACE_BYTES] = data
        struct_copy = encode_entry(Entry(info, 0, 1))  # as `encode_control_file` writes it
        slots[partition_id] = Slot(info.session_id, struct_copy, True, 1, is_traced=True)
    _write_file(disk, directory, TRACE_FILE_NAME, bytes(traces))
    create_node_file(disk, directory, header, slots)
    content = encode_control_file(
        header.cluster_key,
        count,
        {number: found.info for number, found in partitions.items()},
        wall_milliseconds=header.control_file_created_milliseconds,
    )
    _write_file(disk, directory, CONTROL_FILE_NAME, content)


def _write_file(disk: Disk, directory: str, name: str, content: bytes) -> None:
    """Make a file in one step and durably; the remains of an earlier attempt are replaced."""
    path = f"{directory}/{name}"
    temporary = f"{path}.new"
    exists = disk.exists(temporary)
    file = disk.open(temporary, create=not exists)
    try:
        file.truncate(0)
        file.write_at(0, content)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_directory(directory)
