"""A replica of one partition: segments, sessions, failures, power cuts (SD-17 to SD-22, SN-26)."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from tests.storage.replica_files import is_writable, names, path, reopen
from tests.storage.support import (
    DIRECTORY,
    GOLDEN_KEY,
    OTHER_KEY,
    SESSION,
    ZERO,
    append,
    batch,
    fresh_disk,
    golden_disk,
    last_id,
    make_partition,
    open_control,
    open_partition,
    random,
    read_all,
    read_independently,
    record_data,
    refusal,
    start_session,
    succeed,
    t,
)
from waltz.errors import (
    CorruptionError,
    FencedError,
    NotFoundError,
    SegmentFailedError,
    StorageError,
    UnavailableError,
)
from waltz.limits import SEGMENTS_OPEN_MAX
from waltz.sim.simulated_disk import DiskOperation, fail_nth
from waltz.types import SessionId, TransactionId
from waltz.wire.storage_protocol import AppendRecordsRequest


def test_fresh_partition_is_empty_and_durable() -> None:
    """SD-01, SD-02, SN-06."""
    disk = fresh_disk()
    partition = open_partition(disk)
    assert (partition.log.next_transaction_id, partition.damage) == (0, None)
    assert len(partition.log.segments.firsts) == 1
    assert last_id(partition) == -1
    assert disk.crash_clone(random(1)).list_directory(f"{DIRECTORY}/0") == [
        "0000000000000000000.idx",
        "0000000000000000000.seg",
    ]


def test_segments_roll_over_where_the_originals_did() -> None:
    """SD-18: threshold 3000, records of 100 bytes: segments from 0, 29 and 58."""
    for step in (1, 7, 29, 30, 70):
        disk = fresh_disk()
        partition = open_partition(disk, threshold=3000)
        for first in range(0, 70, step):
            succeed(partition, append(first, min(step, 70 - first), size=60))
        assert names(disk) == [0, 29, 58]
        assert len(disk.content(path(0))) == 128 + 29 * 100
        assert len(partition.log.segments.firsts) == 3
        partition.close()
        for first in names(disk):
            read_independently(disk.content(path(first)), disk.content(path(first, ".idx")))
        assert read_all(reopen(disk, partition)) == [
            record_data(n).ljust(60)[:60] for n in range(70)
        ]


def test_record_larger_than_the_threshold_has_a_segment_of_its_own() -> None:
    partition = open_partition(fresh_disk(), threshold=1)
    partition.writer.write(batch(0, 3, size=500))
    assert len(partition.log.segments.firsts) == 3
    assert len(read_all(partition)) == 3


def test_reads_cross_segments_within_their_bounds() -> None:
    """SD-20, SN-12."""
    partition = open_partition(fresh_disk(), threshold=300)
    partition.writer.write(batch(0, 30, size=60))
    assert len(partition.log.segments.firsts) == 15
    for first in range(30):
        for count, size in ((1, 10**6), (7, 10**6), (100, 10**6), (100, 450), (100, 1)):
            records = partition.log.records.read(t(first), count_max=count, bytes_max=size)
            expected = max(1, min(count, 30 - first, size // 100))
            assert records == batch(first, expected, size=60)
    for first in (-1, -(2**63), 30, 2**62):
        assert not len(partition.log.records.read(t(first), count_max=5, bytes_max=100))
    assert not len(partition.log.records.read(t(0), count_max=0, bytes_max=100))
    assert not len(partition.log.records.read(t(0), count_max=-5, bytes_max=100))


def test_few_complete_segments_are_kept_open() -> None:
    """SD-19."""
    disk = fresh_disk()
    partition = open_partition(disk, threshold=100)
    partition.writer.write(batch(0, 100, size=60))
    assert len(partition.log.segments.firsts) == 100
    disk.counts.clear()
    for _ in range(3):
        for number in range(SEGMENTS_OPEN_MAX):
            partition.log.records.read(t(number), count_max=1, bytes_max=1)
    assert disk.counts[DiskOperation.OPEN] == 2 * SEGMENTS_OPEN_MAX
    draw = random("lru")
    for _ in range(200):
        number = draw.randrange(100)
        assert partition.log.records.read(t(number), count_max=1, bytes_max=1) == batch(
            number, 1, size=60
        )
        assert len(partition.log.segments._complete) <= SEGMENTS_OPEN_MAX


def test_truncate_to_every_id() -> None:
    """SD-21, SN-07."""
    for keep in range(-1, 12):
        disk = fresh_disk()
        partition = open_partition(disk, threshold=300)
        partition.writer.write(batch(0, 10, size=60))
        partition.writer.sync()
        kept = min(keep, 9)
        assert partition.truncate(t(keep)) == kept
        assert read_all(partition) == [record_data(n).ljust(60)[:60] for n in range(kept + 1)]
        succeed(partition, append(kept + 1, 5, size=60))
        for seed in range(5):
            clone = open_partition(disk.crash_clone(random(seed)), threshold=300)
            assert clone.damage is None
            assert len(read_all(clone)) == kept + 6


def test_truncation_interrupted_anywhere_leaves_no_gap() -> None:
    """Whatever step fails, and whatever the crash then forgets."""
    for operation in (
        DiskOperation.REMOVE,
        DiskOperation.SYNC_DIRECTORY,
        DiskOperation.TRUNCATE,
        DiskOperation.SYNC,
    ):
        for number in range(1, 10):
            disk = fresh_disk()
            partition = open_partition(disk, threshold=300)
            partition.writer.write(batch(0, 10, size=60))
            partition.writer.sync()
            disk.fault = fail_nth(operation, number)
            try:
                partition.truncate(t(2))
            except SegmentFailedError:
                assert not is_writable(partition)
            for seed in range(5):
                clone = open_partition(disk.crash_clone(random(seed)), threshold=300)
                assert clone.damage is None
                assert 3 <= len(read_all(clone)) <= 10
                assert clone.truncate(t(2)) == 2


def test_truncation_below_the_local_low_water_mark_lowers_it_first_and_durably() -> None:
    """A replica may be cut to the mark it was written off with, and filled up again; what the
    cluster has committed stays known to it. SN-07, ST-24, SD-07."""
    disk = fresh_disk()
    partition = open_partition(disk)
    partition.writer.write(batch(0, 10))
    partition.writer.sync()
    partition.set_low_water_mark(SessionId(3), t(9))
    partition.writer.write(batch(10, 10))
    assert partition.truncate(t(9)) == 9
    assert partition.promises.session_info == (3, 9, 9)
    assert partition.truncate(t(7)) == 7
    assert partition.promises.session_info == (3, 9, 7)
    for seed in range(10):
        clone = open_partition(disk.crash_clone(random(seed)))
        assert clone.damage is None
        assert clone.promises.session_info == (3, 9, 7)
        assert len(read_all(clone)) == 8
    with pytest.raises(
        StorageError, match="low-water mark 8 is lower than the one of session 3, 9"
    ):
        partition.set_low_water_mark(SessionId(4), t(8))
    partition.set_low_water_mark(SessionId(4), t(9))
    assert partition.promises.session_info == (4, 9, 7)


def test_low_water_marks_are_durable_and_not_below_what_is_held() -> None:
    """SN-08, SD-07, SN-05."""
    disk = fresh_disk()
    partition = open_partition(disk)
    partition.writer.write(batch(0, 10))
    partition.set_low_water_mark(SessionId(7), t(99))
    assert partition.promises.session_info == (7, 99, 9)
    partition.set_low_water_mark(SessionId(7), t(99))
    with pytest.raises(StorageError, match="lower than the max transaction id 9"):
        partition.set_low_water_mark(SessionId(8), t(8))
    with pytest.raises(FencedError, match="session 7 has started here, not 6"):
        partition.set_low_water_mark(SessionId(6), t(99))
    for seed in range(10):
        clone = open_partition(disk.crash_clone(random(seed)))
        assert clone.promises.session_info == (7, 99, 9)
        assert len(read_all(clone)) == 10


@pytest.mark.parametrize("directory", ["storage-partitions-added", "storage-after-clients"])
def test_golden_directories_are_opened_continued_and_read_back(directory: str) -> None:
    """Written by the original, continued here, readable by the book."""
    disk = golden_disk(directory)
    before = {number: disk.content(f"{DIRECTORY}/{number}/{0:019d}.seg") for number in (0, 1)}
    control = open_control(disk, key=GOLDEN_KEY)
    for number in (0, 1):
        partition = make_partition(disk, control, number=number, key=GOLDEN_KEY)
        assert partition.open() is None
        assert partition.damage is None
        count = partition.log.next_transaction_id
        if directory == "storage-after-clients":
            assert count == (15, 255)[number]
        assert len(read_all(partition)) == count
        seg = f"{DIRECTORY}/{number}/{0:019d}.seg"
        assert disk.content(seg) == before[number]
        partition.writer.write(batch(count, 20))
        partition.writer.sync()
        partition.set_low_water_mark(SessionId(5), TransactionId(count + 19))
        partition.close()
        assert disk.content(seg)[: len(before[number])] == before[number]
        records = read_independently(disk.content(seg), disk.content(seg[:-4] + ".idx"))
        assert [record[3] for record in records[count:]] == [
            record_data(n) for n in range(count, count + 20)
        ]
        assert len(disk.content(seg[:-4] + ".idx")) == 128 + 8 * (count + 20)


def test_assignment_and_giving_up() -> None:
    """SN-20, SN-26, SN-27, hazard S5."""
    disk = fresh_disk()
    partition = make_partition(disk, open_control(disk, assigned=()))
    partition.open()
    partition.announce(SESSION)
    assert not disk.exists(f"{DIRECTORY}/0")
    assert "Partition:0 is not assigned." in refusal(partition, append(0, 1))
    actions: list[Callable[[], object]] = [
        lambda: partition.unassign(delete_files=True),
        lambda: partition.set_access(readable=False, writable=False),
        partition.promises.check_assigned,
    ]
    for action in actions:
        with pytest.raises(NotFoundError, match="not assigned"):
            action()
    partition.assign()
    partition.assign()
    succeed(partition, append(0, 5))
    start_session(partition, 4, 4)
    partition.unassign(delete_files=False)
    assert partition.promises.session_info == (-1, -1, -1)
    assert "not assigned" in refusal(partition, append(5, 1))
    partition.assign()
    assert "changed to 4" in refusal(partition, append(5, 1))
    assert last_id(partition, session=4) == 4
    assert len(read_all(partition)) == 5
    partition.unassign(delete_files=True)
    assert disk.list_directory(f"{DIRECTORY}/0") == []
    partition.assign()
    assert read_all(partition) == []


def test_partition_of_another_cluster_is_mended_by_giving_it_up() -> None:
    disk = fresh_disk()
    partition = open_partition(disk)
    succeed(partition, append(0, 5))
    start_session(partition, 1, 4)
    for suffix in (".seg", ".idx"):
        disk.damage(path(0, suffix), 12, OTHER_KEY.bytes)
    clone = reopen(disk, partition)
    assert clone.damage is not None
    with pytest.raises(CorruptionError):
        clone.assign()
    with pytest.raises(CorruptionError):
        clone.set_access(readable=True, writable=True)
    clone.unassign(delete_files=True)
    clone.assign()
    clone.announce(SessionId(2))
    records = AppendRecordsRequest(SessionId(2), 1, ZERO, batch(0, 5), False)
    succeed(clone, records)


def test_partition_with_a_damaged_control_entry_is_mended_by_giving_it_up() -> None:
    disk = fresh_disk()
    open_control(disk).close()
    disk.damage(f"{DIRECTORY}/waltz-storage.ctl", 132, bytes(72))
    partition = open_partition(disk)
    assert isinstance(partition.damage, CorruptionError)
    assert "both structs fail" in refusal(partition, append(0, 1))
    with pytest.raises(CorruptionError):
        partition.assign()
    partition.unassign(delete_files=False)
    partition.assign()
    succeed(partition, append(0, 1))


def test_failed_assignment_leaves_the_partition_unassigned() -> None:
    disk = fresh_disk()
    partition = make_partition(disk, open_control(disk, assigned=()))
    partition.open()
    disk.fault = fail_nth(DiskOperation.WRITE, 2, errno.ENOSPC)
    with pytest.raises(UnavailableError, match="no space for a new segment"):
        partition.assign()
    assert not partition.promises.info.is_assigned
    partition.assign()
    succeed(partition, append(0, 1))


def test_availability_survives_a_restart() -> None:
    """SD-08."""
    disk = fresh_disk()
    partition = open_partition(disk)
    partition.set_access(readable=False, writable=False)
    partition.set_access(readable=False, writable=False)
    clone = reopen(disk, partition)
    assert not clone.promises.info.is_writable
    clone.set_access(readable=True, writable=True)
    assert reopen(disk, clone).promises.info.is_writable
