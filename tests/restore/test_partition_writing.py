"""A partition's records as an archive gives them: checked before they are written, and after."""

from __future__ import annotations

import pytest

from tests.restore.memory_archive import KEY, make_archive
from waltz.errors import CorruptionError
from waltz.restore.partition_writing import (
    WrittenPartition,
    checked_batch,
    held_in,
    write_partition,
)
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk
from waltz.storage.log.segment import SegmentHome
from waltz.types import PartitionId, TransactionId


def test_a_flipped_byte_of_the_archive_is_never_restored() -> None:
    """Were the archive to hand it out, which it must not, either."""
    archive = make_archive([6])
    block = archive.log(0, 5)
    for position in range(len(block)):
        for mask in (0x01, 0x80):
            wrong = bytearray(block)
            wrong[position] ^= mask
            with pytest.raises(CorruptionError):
                checked_batch(bytes(wrong), PartitionId(0), TransactionId(0))
    assert checked_batch(block, PartitionId(0), TransactionId(0)).block == block


def test_a_disk_that_does_not_keep_what_it_is_given_is_found() -> None:
    archive = make_archive([50])
    disk = SimulatedDisk(["/p"])
    home = SegmentHome(disk, "/p", KEY, PartitionId(0))

    def rot(operation: DiskOperation, path: str) -> None:
        if operation is DiskOperation.READ and path.endswith(".seg"):
            disk.fault = None
            file = disk.open(path)
            file.write_at(300, bytes([file.read_at(300, 1)[0] ^ 1]))

    written = WrittenPartition(home, segment_bytes_threshold=10_000, wall_milliseconds=lambda: 1)
    right = written.close

    def close(held: object) -> None:
        disk.fault = rot
        right(held)  # type: ignore[arg-type]

    written.close = close  # type: ignore[method-assign]
    with pytest.raises(CorruptionError, match="the disk does not keep what it is given"):
        write_partition([written], archive.blocks, PartitionId(0), TransactionId(49))


def test_what_was_written_is_what_is_held() -> None:
    archive = make_archive([50])
    disk = SimulatedDisk(["/p"])
    home = SegmentHome(disk, "/p", KEY, PartitionId(0))
    written = WrittenPartition(home, segment_bytes_threshold=1_000, wall_milliseconds=lambda: 1)
    held = write_partition([written], archive.blocks, PartitionId(0), TransactionId(39))
    assert held.last == 39
    assert held_in(disk, "/p") == held
    written.release()
