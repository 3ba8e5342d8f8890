"""The segments of a partition as one log: roll-over, removal, checksums, space (SD-17 to SD-23)."""

from __future__ import annotations

import errno
import hashlib

import pytest

from tests.storage.segment_chains import (
    THRESHOLD,
    filled_disk,
    make_chain,
    open_chain,
    path,
    readable,
    reopened,
    spoil,
)
from tests.storage.support import DIRECTORY, OTHER_KEY, batch, fresh_disk, random, t
from waltz.errors import CorruptionError, NotFoundError, SegmentFailedError, UnavailableError
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk, fail_nth
from waltz.storage.log.index_file import INDEX_PREALLOCATED_BYTES
from waltz.storage.log.preallocation import PREALLOCATED_BYTES_MIN
from waltz.storage.log.segment_recovery import Trust


def test_chain_is_one_log_over_all_segments() -> None:
    disk = fresh_disk()
    chain, _ = open_chain(disk, threshold=300)
    chain.write(batch(0, 20, size=60))
    chain.sync()
    assert (chain.next_transaction_id, chain.segment_count) == (20, 10)
    assert chain.read(t(3), count_max=9, bytes_max=10**6) == batch(3, 9, size=60)
    chain.truncate(t(4))
    assert (chain.next_transaction_id, chain.segment_count) == (5, 3)
    chain.close()
    chain = reopened(disk, mark=4)
    assert (chain.next_transaction_id, chain.damage) == (5, ())


def test_ceiling_removes_whole_segments() -> None:
    disk = fresh_disk()
    chain, _ = open_chain(disk, threshold=300)
    chain.write(batch(0, 6, size=60))
    chain.sync()
    chain, torn = open_chain(disk, ceiling=3)
    assert chain.next_transaction_id == 3
    assert torn is not None
    assert chain.segment_count == 2


def test_removed_files_are_gone_and_others_stay() -> None:
    disk = filled_disk(20)
    disk.open(f"{DIRECTORY}/0/notes.txt", create=True)
    disk.damage(path(9), 12, OTHER_KEY.bytes)
    chain = reopened(disk)
    chain.repair(batch(9, 9, size=60))
    spoil(disk, 3)
    chain.scrub(t(0), 10**6)
    assert len(disk.list_directory(f"{DIRECTORY}/0")) == 6 + 3
    chain.close()
    chain.remove_files()
    assert disk.list_directory(f"{DIRECTORY}/0") == ["notes.txt"]
    assert not chain.is_open


def test_removal_interrupted_anywhere_leaves_a_shorter_log_or_none() -> None:
    """No index without data stays, which would tell of records that are lost."""
    disk = filled_disk(30)
    chain = make_chain(disk)
    clones: list[SimulatedDisk] = []
    draw = random("removal")
    disk.fault = lambda *_: clones.extend(disk.crash_clone(draw) for _ in range(4))
    chain.remove_files()
    for clone in clones:
        left = reopened(clone)
        assert left.damage == ()
        assert left.next_transaction_id in (0, 9, 18, 27, 30)


# Checksums


def test_checksum_is_that_of_the_bytes_of_the_records() -> None:
    """SD-23: whatever the segments are."""
    one, other = reopened(filled_disk(30)), reopened(filled_disk(30, threshold=10**6))
    for first, last in ((0, 29), (3, 20), (7, 7), (9, 8), (0, -1)):
        block = batch(first, last - first + 1, size=60).block
        expected = hashlib.sha256(block).hexdigest()
        assert one.checksum(t(first), t(last)) == other.checksum(t(first), t(last)) == expected
    for first, last in ((0, 30), (-1, 5), (5, 3)):
        with pytest.raises(NotFoundError, match="it holds those before 30"):
            one.checksum(t(first), t(last))


def test_checksum_over_damage_is_refused() -> None:
    disk = filled_disk(30)
    spoil(disk, 12)
    chain = reopened(disk)
    with pytest.raises(CorruptionError, match="record 12"):
        chain.checksum(t(0), t(29))
    assert chain.checksum(t(13), t(29))


# Space


def test_space_ahead_is_given_back_at_roll_over_and_close() -> None:
    disk = fresh_disk()
    disk.capacity_bytes = 10**8
    chain, _ = open_chain(disk, threshold=10**7)
    chain.write(batch(0, 3, size=60))
    ahead = PREALLOCATED_BYTES_MIN + INDEX_PREALLOCATED_BYTES
    assert 10**8 - disk.free_bytes == 2 * 128 + 324 + ahead
    chain.close()
    assert 10**8 - disk.free_bytes == 2 * 128 + 324
    disk = filled_disk(0)
    disk.capacity_bytes = 10**8
    chain = reopened(disk)
    chain.write(batch(0, 10, size=60))
    taken = 4 * 128 + 10 * 108 + INDEX_PREALLOCATED_BYTES + THRESHOLD - 128 - 100
    assert 10**8 - disk.free_bytes == taken


def test_batch_that_finds_no_space_for_a_new_segment_is_not_written_at_all() -> None:
    """SN-28: though its first records had gone into the old one."""
    needed = 10 * 108 + 2 * 128
    for free in (*range(0, needed, 50), needed + THRESHOLD):
        disk = filled_disk(5)
        chain = reopened(disk)
        disk.capacity_bytes = 10**9
        disk.capacity_bytes = 10**9 - disk.free_bytes + free
        if free < needed:
            with pytest.raises(UnavailableError, match="no space"):
                chain.write(batch(5, 10, size=60))
            assert (chain.next_transaction_id, chain.segment_count) == (5, 1)
            assert readable(chain) == list(range(5))
            disk.capacity_bytes += 10**6
        chain.write(batch(5, 10, size=60))
        chain.sync()
        assert readable(chain) == list(range(15))
        chain.close()
        assert readable(reopened(disk)) == list(range(15))


def test_removal_of_a_part_that_fails_closes_the_writer() -> None:
    disk = filled_disk(5)
    chain = reopened(disk)
    spoil(disk, 4)

    def full(operation: DiskOperation, where: str) -> None:
        if operation is DiskOperation.OPEN and where == path(9, ".idx"):
            raise OSError(errno.ENOSPC, "no space", where)

    disk.fault = full
    with pytest.raises(SegmentFailedError, match="but for a part"):
        chain.write(batch(5, 10, size=60))


def test_error_in_the_middle_leaves_nothing_open() -> None:
    disk = filled_disk(30)
    chain = make_chain(disk)
    disk.fault = fail_nth(DiskOperation.SYNC_DIRECTORY, 2)
    with pytest.raises(OSError, match="sync directory"):
        chain.open(Trust(local_low_water_mark=t(-1), index_is_proof=True))
    assert not chain.is_open


def test_opening_is_bounded_however_many_segments_there_are() -> None:
    """SN-29: of each complete segment its headers, its sizes and its last record."""
    disk = filled_disk(900)
    disk.counts.clear()
    chain = reopened(disk)
    assert chain.segment_count == 100
    assert disk.counts[DiskOperation.READ] <= 100 * 9
    assert disk.counts[DiskOperation.SYNC] == 2, "both files of the last one"
    assert disk.counts[DiskOperation.WRITE] == 0
