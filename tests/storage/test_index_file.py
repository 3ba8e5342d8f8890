"""The index file: entries, holes, and the order in which they become durable (SD-13)."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from tests.storage.support import DIRECTORY, fresh_disk, random, t
from waltz.limits import INDEX_SYNC_RECORDS
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk, fail_nth
from waltz.storage.log.index_file import (
    ENTRY_BYTES,
    INDEX_PREALLOCATED_BYTES,
    IndexFile,
    index_entries,
)

PATH = f"{DIRECTORY}/index"
HEADER = 16


def make_index(first: int = 0) -> tuple[SimulatedDisk, IndexFile]:
    disk = fresh_disk()
    file = disk.open(PATH, create=True)
    file.write_at(0, bytes(HEADER))
    file.sync()
    disk.sync_directory(DIRECTORY)
    return disk, IndexFile(file, t(first), header_bytes=HEADER)


def reopened(disk: SimulatedDisk, first: int = 0) -> IndexFile:
    return IndexFile(disk.open(PATH), t(first), header_bytes=HEADER)


def entries(count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(128, 128 + 40 * count, 40, dtype=np.int64)


def test_entries_are_found_again() -> None:
    disk, index = make_index()
    index.write(0, index_entries(entries(10)))
    index.write(10, index_entries(entries(3)))
    assert index.count == 13
    again = reopened(disk)
    assert again.count == again.proved_count() == 13
    assert again.entries(8, 4).tolist() == [448, 488, 128, 168]
    assert again.entries(11, 4).tolist() == [168, 208, 0, 0]
    assert again.entries(20, 2).tolist() == [0, 0]


def test_part_of_an_entry_is_none() -> None:
    disk, index = make_index()
    index.write(0, index_entries(entries(3)))
    disk.open(PATH).truncate(HEADER + 2 * ENTRY_BYTES + 7)
    again = reopened(disk)
    assert again.count == 2
    assert again.entries(0, 3).tolist() == [128, 168, 0]


def test_holes_prove_nothing() -> None:
    disk, index = make_index()
    assert index.proved_count() == 0
    index.write(0, index_entries(entries(5)))
    index.write(INDEX_SYNC_RECORDS + 100, bytes(ENTRY_BYTES))
    assert index.count == INDEX_SYNC_RECORDS + 101
    assert index.proved_count() == 5
    assert reopened(disk).proved_count() == 5


def test_entries_that_cannot_be_read_are_none() -> None:
    disk, index = make_index()
    index.write(0, index_entries(entries(5)))
    disk.fault = fail_nth(DiskOperation.READ, 1)
    assert index.entries(0, 5).tolist() == [0] * 5
    assert index.entries(0, 5).tolist() == entries(5).tolist()


def test_a_sync_that_is_not_needed_is_not_done() -> None:
    disk, index = make_index()
    index.write(0, index_entries(entries(5)))
    disk.counts.clear()
    index.sync()
    index.sync()
    assert disk.counts[DiskOperation.SYNC] == 1
    index.put(2, entries(1))
    assert disk.counts[DiskOperation.SYNC] == 2
    assert disk.crash_clone(random(1)).content(PATH) == disk.content(PATH)


def test_an_index_that_was_just_opened_counts_as_not_synced() -> None:
    """Its entries may be in the memory of the system only."""
    disk, index = make_index()
    index.write(0, index_entries(entries(5)))
    reopened(disk).sync()
    assert disk.crash_clone(random(1)).content(PATH) == disk.content(PATH)


def test_multiples_count_from_the_segments_first_transaction() -> None:
    disk, index = make_index(first=INDEX_SYNC_RECORDS - 3)
    disk.counts.clear()
    index.write(0, index_entries(entries(2)))
    assert disk.counts == {DiskOperation.WRITE: 1}
    index.write(2, index_entries(entries(2)))
    assert disk.counts == {DiskOperation.WRITE: 3, DiskOperation.SYNC: 1}


def test_resizing_is_durable_and_leaves_holes() -> None:
    disk, index = make_index()
    index.reserve(10)
    index.put(0, entries(10))
    index.resize(4)
    assert index.count == 4
    for seed in range(10):
        assert reopened(disk.crash_clone(random(seed))).count == 4
    index.resize(7)
    again = reopened(disk.crash_clone(random(1)))
    assert (again.count, again.proved_count()) == (7, 4)
    assert again.entries(0, 7).tolist() == [*entries(4).tolist(), 0, 0, 0]


def test_space_is_reserved_ahead_and_given_back() -> None:
    disk, index = make_index()
    disk.capacity_bytes = 10**6
    index.reserve(10)
    assert 10**6 - disk.free_bytes == HEADER + 80 + INDEX_PREALLOCATED_BYTES
    index.write(0, index_entries(entries(10)))
    index.give_back()
    assert 10**6 - disk.free_bytes == HEADER + 80


def test_failures_are_the_operating_systems() -> None:
    disk, index = make_index()
    disk.fault = fail_nth(DiskOperation.WRITE, 1, errno.ENOSPC)
    with pytest.raises(OSError, match="write number 1"):
        index.write(0, index_entries(entries(1)))
    index.close()
    with pytest.raises(OSError, match="closed"):
        index.put(0, entries(1))
