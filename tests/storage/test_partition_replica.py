"""A replica of one partition: segments, sessions, failures, power cuts (SD-17 to SD-22, SN-26)."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from tests.storage.support import (
    DIRECTORY,
    GOLDEN_KEY,
    OTHER_KEY,
    SESSION,
    ZERO,
    append,
    ask,
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
from waltz.limits import INDEX_SYNC_RECORDS, SEGMENTS_OPEN_MAX
from waltz.sim.simulated_disk import DiskOperation, Fault, SimulatedDisk, fail_nth
from waltz.storage.partition_replica import StoragePartition
from waltz.types import SessionId, TransactionId
from waltz.wire.storage_protocol import (
    AppendRecordsRequest,
    FailureResponse,
    LastSessionInfoRequest,
    MaxTransactionIdRequest,
    RecordListRequest,
    RecordListResponse,
    SetLowWaterMarkRequest,
    StorageMessage,
    SuccessResponse,
    TruncateRequest,
)


def names(disk: SimulatedDisk, suffix: str = ".seg") -> list[int]:
    return [
        int(name[:19]) for name in disk.list_directory(f"{DIRECTORY}/0") if name.endswith(suffix)
    ]


def path(first: int, suffix: str = ".seg") -> str:
    return f"{DIRECTORY}/0/{first:019d}{suffix}"


def reopen(disk: SimulatedDisk, old: StoragePartition, **options: int) -> StoragePartition:
    """As a restart of the node does, without a word from the old one."""
    disk.release_locks()
    partition = open_partition(disk, **options)
    partition.announce(old.info.session_id)
    return partition


def is_writable(partition: StoragePartition) -> bool:
    return partition.is_writable


def test_fresh_partition_is_empty_and_durable() -> None:
    """SD-01, SD-02, SN-06."""
    disk = fresh_disk()
    partition = open_partition(disk)
    assert (partition.next_transaction_id, partition.damage, partition.segment_count) == (
        0,
        None,
        1,
    )
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
        assert partition.segment_count == 3
        partition.close()
        for first in names(disk):
            read_independently(disk.content(path(first)), disk.content(path(first, ".idx")))
        assert read_all(reopen(disk, partition)) == [
            record_data(n).ljust(60)[:60] for n in range(70)
        ]


def test_record_larger_than_the_threshold_has_a_segment_of_its_own() -> None:
    partition = open_partition(fresh_disk(), threshold=1)
    partition.write(batch(0, 3, size=500))
    assert partition.segment_count == 3
    assert len(read_all(partition)) == 3


def test_reads_cross_segments_within_their_bounds() -> None:
    """SD-20, SN-12."""
    partition = open_partition(fresh_disk(), threshold=300)
    partition.write(batch(0, 30, size=60))
    assert partition.segment_count == 15
    for first in range(30):
        for count, size in ((1, 10**6), (7, 10**6), (100, 10**6), (100, 450), (100, 1)):
            records = partition.read(t(first), count_max=count, bytes_max=size)
            expected = max(1, min(count, 30 - first, size // 100))
            assert records == batch(first, expected, size=60)
    for first in (-1, -(2**63), 30, 2**62):
        assert not len(partition.read(t(first), count_max=5, bytes_max=100))
    assert not len(partition.read(t(0), count_max=0, bytes_max=100))
    assert not len(partition.read(t(0), count_max=-5, bytes_max=100))


def test_few_complete_segments_are_kept_open() -> None:
    """SD-19."""
    disk = fresh_disk()
    partition = open_partition(disk, threshold=100)
    partition.write(batch(0, 100, size=60))
    assert partition.segment_count == 100
    disk.counts.clear()
    for _ in range(3):
        for number in range(SEGMENTS_OPEN_MAX):
            partition.read(t(number), count_max=1, bytes_max=1)
    assert disk.counts[DiskOperation.OPEN] == 2 * SEGMENTS_OPEN_MAX
    draw = random("lru")
    for _ in range(200):
        number = draw.randrange(100)
        assert partition.read(t(number), count_max=1, bytes_max=1) == batch(number, 1, size=60)
        assert len(partition._chain._complete) <= SEGMENTS_OPEN_MAX


def test_truncate_to_every_id() -> None:
    """SD-21, SN-07."""
    for keep in range(-1, 12):
        disk = fresh_disk()
        partition = open_partition(disk, threshold=300)
        partition.write(batch(0, 10, size=60))
        partition.sync()
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
            partition.write(batch(0, 10, size=60))
            partition.sync()
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
    partition.write(batch(0, 10))
    partition.sync()
    partition.set_low_water_mark(SessionId(3), t(9))
    partition.write(batch(10, 10))
    assert partition.truncate(t(9)) == 9
    assert partition.session_info == (3, 9, 9)
    assert partition.truncate(t(7)) == 7
    assert partition.session_info == (3, 9, 7)
    for seed in range(10):
        clone = open_partition(disk.crash_clone(random(seed)))
        assert clone.damage is None
        assert clone.session_info == (3, 9, 7)
        assert len(read_all(clone)) == 8
    with pytest.raises(
        StorageError, match="low-water mark 8 is lower than the one of session 3, 9"
    ):
        partition.set_low_water_mark(SessionId(4), t(8))
    partition.set_low_water_mark(SessionId(4), t(9))
    assert partition.session_info == (4, 9, 7)


def test_low_water_marks_are_durable_and_not_below_what_is_held() -> None:
    """SN-08, SD-07, SN-05."""
    disk = fresh_disk()
    partition = open_partition(disk)
    partition.write(batch(0, 10))
    partition.set_low_water_mark(SessionId(7), t(99))
    assert partition.session_info == (7, 99, 9)
    partition.set_low_water_mark(SessionId(7), t(99))
    with pytest.raises(StorageError, match="lower than the max transaction id 9"):
        partition.set_low_water_mark(SessionId(8), t(8))
    with pytest.raises(FencedError, match="session 7 has started here, not 6"):
        partition.set_low_water_mark(SessionId(6), t(99))
    for seed in range(10):
        clone = open_partition(disk.crash_clone(random(seed)))
        assert clone.session_info == (7, 99, 9)
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
        count = partition.next_transaction_id
        if directory == "storage-after-clients":
            assert count == (15, 255)[number]
        assert len(read_all(partition)) == count
        seg = f"{DIRECTORY}/{number}/{0:019d}.seg"
        assert disk.content(seg) == before[number]
        partition.write(batch(count, 20))
        partition.sync()
        partition.set_low_water_mark(SessionId(5), TransactionId(count + 19))
        partition.close()
        assert disk.content(seg)[: len(before[number])] == before[number]
        records = read_independently(disk.content(seg), disk.content(seg[:-4] + ".idx"))
        assert [record[3] for record in records[count:]] == [
            record_data(n) for n in range(count, count + 20)
        ]
        assert len(disk.content(seg[:-4] + ".idx")) == 128 + 8 * (count + 20)


def test_golden_directory_damaged_below_a_mark_serves_what_is_good() -> None:
    """SD-17 (c)."""
    disk = golden_disk("storage-after-clients")
    control = open_control(disk, key=GOLDEN_KEY)
    partition = make_partition(disk, control, key=GOLDEN_KEY)
    partition.open()
    partition.set_low_water_mark(SessionId(1), t(14))
    partition.close()
    content = disk.content(path(0))
    disk.damage(path(0), len(content) - 1, bytes([content[-1] ^ 1]))
    partition.open()
    assert partition.damage is None
    assert damaged(partition) == [(14, 15)]
    partition.announce(SessionId(1))
    assert "record 14" in refusal(partition, RecordListRequest(SessionId(1), 1, ZERO, t(14), 5))
    answer = ask(partition, RecordListRequest(SessionId(1), 1, ZERO, t(0), 50))
    assert isinstance(answer, RecordListResponse)
    assert len(answer.records) == 14
    assert len(disk.content(path(0))) == len(content)


def damaged(partition: StoragePartition) -> list[tuple[int, int]]:
    return [(first, following) for first, following in partition.damaged_ranges]


def test_missing_files_are_told_once_something_was_promised() -> None:
    """A replica that has lost records must abstain, not vote."""
    for first, following in ((0, 2), (2, 4), (4, 5)):
        disk = fresh_disk()
        partition = open_partition(disk, threshold=300)
        partition.write(batch(0, 5, size=60))
        partition.set_low_water_mark(SessionId(1), t(4))
        partition.close()
        disk.remove(path(first))
        clone = reopen(disk, partition, threshold=300)
        assert damaged(clone) == [(first, following)]
        request = RecordListRequest(SessionId(1), 1, ZERO, t(first), 1)
        assert "CorruptionError" in refusal(clone, request)
        request = RecordListRequest(SessionId(1), 1, ZERO, t((first + 2) % 6), 1)
        assert not isinstance(ask(clone, request), FailureResponse)
        assert "does not vote" in refusal(
            clone, LastSessionInfoRequest(SessionId(1), 1, ZERO, False)
        )
    disk = fresh_disk()
    partition = open_partition(disk)
    partition.write(batch(0, 5))
    partition.set_low_water_mark(SessionId(1), t(4))
    disk.remove(path(0))
    disk.remove(path(0, ".idx"))
    blank = reopen(disk, partition)
    assert blank.damage is None
    assert "has no segments any more" in str(blank.loss)
    assert blank.session_info == (SessionId(-1), t(-1), t(-1))


def test_damaged_replica_votes_again_once_it_is_repaired_or_cut() -> None:
    """I11: neither of what it holds nor of a new session."""
    for mend in ("repair", "truncate"):
        disk = fresh_disk()
        partition = open_partition(disk)
        succeed(partition, append(0, 10))
        disk.damage(path(0), 128 + int(batch(0, 10).offsets[6]) + 37, b"!")
        assert len(partition.scrub(t(0), 10**6).damaged) == 1
        assert len(partition.read(t(0), count_max=10, bytes_max=10**6)) == 6
        mark = SetLowWaterMarkRequest(SessionId(1), 1, ZERO, t(99), False)
        votes: list[StorageMessage] = [
            LastSessionInfoRequest(SessionId(1), 1, ZERO, False),
            MaxTransactionIdRequest(SessionId(1), 1, ZERO, False),
            mark,
        ]
        for vote in votes:
            assert "partition 0 does not vote" in refusal(partition, vote)
        for last in (6, 7, 9, 50):
            request = TruncateRequest(SessionId(1), 1, ZERO, t(last), False)
            assert "damage before it" in refusal(partition, request)
        if mend == "repair":
            partition.repair(batch(6, 1))
        else:
            request = TruncateRequest(SessionId(1), 1, ZERO, t(5), False)
            assert not isinstance(ask(partition, request), FailureResponse)
        assert partition.damaged_ranges == ()
        for vote in votes:
            assert not isinstance(ask(partition, vote), FailureResponse)


def test_scrub_of_a_partition_that_is_not_open_is_refused() -> None:
    disk = fresh_disk()
    partition = make_partition(disk, open_control(disk, assigned=()))
    partition.open()
    with pytest.raises(NotFoundError, match="not assigned"):
        partition.scrub(t(0), 100)


def test_checksums_of_replicas_are_equal() -> None:
    """SD-23."""
    sums = set()
    for threshold in (300, 1000, 10**9):
        partition = open_partition(fresh_disk(), threshold=threshold)
        succeed(partition, append(0, 30, size=60))
        sums.add(partition.checksum(t(0), t(29)))
    assert len(sums) == 1
    assert partition.checksum(t(0), t(28)) not in sums


def test_a_missing_directory_is_made_anew_and_promises_nothing() -> None:
    disk = SimulatedDisk([DIRECTORY])
    control = open_control(disk)
    started = control.info(ZERO)
    control.update(ZERO, type(started)(SessionId(1), t(4), t(4), started.flags))
    partition = make_partition(disk, control)
    partition.open()
    assert partition.damage is None
    assert "no segments any more" in str(partition.loss)
    assert partition.session_info == (SessionId(-1), t(-1), t(-1))
    assert partition.info.is_assigned
    assert partition.fence == SessionId(1)


def test_unfinished_segment_of_a_crashed_roll_over_is_made_anew() -> None:
    """Hazards D2, D3."""
    for content in (b"", bytes(60), bytes(128)):
        disk = fresh_disk()
        partition = open_partition(disk, threshold=300)
        partition.write(batch(0, 2, size=60))
        partition.sync()
        partition.close()
        disk.open(path(2, ".idx"), create=True)
        disk.open(path(2), create=True).write_at(0, content)
        clone = reopen(disk, partition, threshold=250)
        assert clone.damage is None
        assert names(disk) == [0]
        succeed(clone, append(2, 2, size=60))
        assert names(disk) == [0, 2]
        assert len(read_all(clone)) == 4


def test_gap_between_segments_is_damage() -> None:
    """Hazard D5."""
    disk = fresh_disk()
    partition = open_partition(disk, threshold=300)
    partition.write(batch(0, 6, size=60))
    partition.close()
    disk.remove(path(2))
    disk.remove(path(2, ".idx"))
    clone = reopen(disk, partition, threshold=300)
    assert damaged(clone) == [(2, 4)]
    assert clone.next_transaction_id == 6


def test_partition_that_cannot_be_read_refuses_service() -> None:
    disk = fresh_disk()
    partition = open_partition(disk)
    succeed(partition, append(0, 3))
    control = open_control(disk_without_lock(disk))

    def broken(operation: DiskOperation, where: str) -> None:
        if operation is DiskOperation.READ:
            raise OSError(errno.EIO, "unreadable", where)

    disk.fault = broken
    clone = make_partition(disk, control)
    clone.open()
    assert "cannot be opened" in str(clone.damage)
    clone.announce(SESSION)
    assert "unreadable" in refusal(clone, append(3, 1))
    disk.fault = None
    clone.set_available(True)
    assert len(read_all(clone)) == 3


def disk_without_lock(disk: SimulatedDisk) -> SimulatedDisk:
    disk.release_locks()
    return disk


def test_files_other_than_segments_are_left_alone() -> None:
    disk = fresh_disk()
    partition = open_partition(disk)
    for name in ("notes.txt", "12.seg", "00000000000000000xx.seg", f"{5:019d}.idx"):
        disk.open(f"{DIRECTORY}/0/{name}", create=True)
    assert reopen(disk, partition).damage is None


@pytest.mark.parametrize("operation", [DiskOperation.WRITE, DiskOperation.SYNC])
def test_writer_stays_closed_after_a_failure_until_it_is_reopened(operation: DiskOperation) -> None:
    """A sync that fails and then succeeds must not be believed."""
    disk = fresh_disk()
    partition = open_partition(disk)
    succeed(partition, append(0, 5))
    disk.fault = fail_nth(operation, 1, errno.ENOSPC)
    assert "SegmentFailedError" in refusal(partition, append(5, 5))
    assert not is_writable(partition)
    for _ in range(3):
        assert "no writes after a failed one" in refusal(partition, append(5, 5))
    with pytest.raises(SegmentFailedError):
        partition.set_low_water_mark(SessionId(1), t(9))
    with pytest.raises(SegmentFailedError):
        partition.truncate(t(2))
    assert last_id(partition) == 4
    assert len(read_all(partition)) == 5
    torn = partition.set_available(True)
    assert torn is None or torn.next_transaction_id == 5
    assert is_writable(partition)
    assert last_id(partition) == 4
    succeed(partition, append(5, 5))
    for seed in range(20):
        assert len(read_all(open_partition(disk.crash_clone(random(seed))))) == 10


def test_failed_truncation_is_said_again_when_the_writer_is_reopened() -> None:
    """Else records that were cut could come back with the next power cut."""
    disk = fresh_disk()
    partition = open_partition(disk)
    succeed(partition, append(0, 10, size=60))
    disk.fault = fail_nth(DiskOperation.SYNC, 3)
    with pytest.raises(SegmentFailedError, match="truncation to transaction 2"):
        partition.truncate(t(2))
    partition.set_available(True)
    count = partition.next_transaction_id
    succeed(partition, append(count, 1, size=60))
    for seed in range(10):
        assert len(read_all(open_partition(disk.crash_clone(random(seed))))) == count + 1


def test_failed_control_file_update_closes_the_writer() -> None:
    disk = fresh_disk()
    partition = open_partition(disk)
    succeed(partition, append(0, 5))
    disk.fault = fail_nth(DiskOperation.WRITE, 1)
    with pytest.raises(SegmentFailedError):
        partition.set_low_water_mark(SessionId(1), t(4))
    assert not is_writable(partition)
    assert partition.session_info == (-1, -1, -1)


def test_failed_roll_over_or_index_sync_closes_the_writer() -> None:
    for number in range(1, 5):
        disk = fresh_disk()
        partition = open_partition(disk, threshold=100)
        succeed(partition, append(0, 1))
        disk.fault = fail_nth(DiskOperation.SYNC, number)
        answer = ask(partition, append(1, 1))
        assert not isinstance(answer, SuccessResponse)
        assert not is_writable(partition)
        assert len(read_all(partition)) == 1
        partition.set_available(True)
        succeed(partition, append(1, 1))
        assert len(read_all(open_partition(disk.crash_clone(random(1)), threshold=100))) == 2
    disk = fresh_disk()
    partition = open_partition(disk)
    disk.fault = fail_nth(DiskOperation.SYNC, 2)
    assert "write of the index" in refusal(partition, append(0, INDEX_SYNC_RECORDS, size=0))
    assert not is_writable(partition)
    assert partition.next_transaction_id == INDEX_SYNC_RECORDS
    partition.close()


def test_full_disk_refuses_appends_and_nothing_else_and_the_writer_stays_open() -> None:
    """SN-28: what was written before in the same drain is fine."""
    disk = fresh_disk()
    partition = open_partition(disk)
    succeed(partition, append(0, 5))
    partition.close()
    partition = reopen(disk, partition)
    disk.capacity_bytes = 10**9
    disk.capacity_bytes = 10**9 - disk.free_bytes + len(batch(5, 2).block) + 2 * 8
    last = MaxTransactionIdRequest(SESSION, 9, ZERO, False)
    answers = partition.process([append(5, 2), last, append(7, 1), append(8, 1), last])
    assert [type(answer).__name__ for answer in answers] == [
        "SuccessResponse",
        "MaxTransactionIdResponse",
        "FailureResponse",
        "FailureResponse",
        "MaxTransactionIdResponse",
    ]
    for position in (2, 3):
        refused = answers[position]
        assert isinstance(refused, FailureResponse)
        assert "UnavailableError: no space for 2 records" in refused.message
    assert is_writable(partition)
    assert len(read_all(partition)) == 7
    assert len(read_all(open_partition(disk.crash_clone(random(3))))) == 7
    disk.capacity_bytes += 10**6
    succeed(partition, append(7, 2))
    assert last_id(partition) == 8


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
        lambda: partition.set_available(False),
        partition.check_assigned,
    ]
    for action in actions:
        with pytest.raises(NotFoundError, match="not assigned"):
            action()
    partition.assign()
    partition.assign()
    succeed(partition, append(0, 5))
    start_session(partition, 4, 4)
    partition.unassign(delete_files=False)
    assert partition.session_info == (-1, -1, -1)
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
        clone.set_available(True)
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
    assert not partition.info.is_assigned
    partition.assign()
    succeed(partition, append(0, 1))


def test_availability_survives_a_restart() -> None:
    """SD-08."""
    disk = fresh_disk()
    partition = open_partition(disk)
    partition.set_available(False)
    partition.set_available(False)
    clone = reopen(disk, partition)
    assert not clone.info.is_writable
    clone.set_available(True)
    assert reopen(disk, clone).info.is_writable


class Driver:
    """Random work on a partition; the power is cut at random steps of it, on a copy of the disk."""

    def __init__(self, seed: int) -> None:
        self.draw = random(seed)
        self.disk = fresh_disk()
        self.threshold, self.counts = self.draw.choice(
            ((500, (1, 3, 8)), (3000, (1, 3, 80)), (10**9, (1, 40, 400)))
        )
        self.partition = open_partition(self.disk, threshold=self.threshold)
        self.session = SESSION
        self.acknowledged = 0
        """Records that were answered for and must be there."""
        self.promised = 0
        self.survivors: list[tuple[SimulatedDisk, int, int]] = []
        """Disks after a cut, with what must be there at least and what may be there at most."""

    def work(self) -> None:
        step = self.draw.random()
        if step < 0.15:
            self.session = SessionId(self.session + 1)
            start_session(self.partition, self.session, self.acknowledged - 1)
            self.promised = self.acknowledged
        elif step < 0.35:
            keep = self.draw.randrange(self.promised, self.acknowledged + 1)
            self.observe(keep, self.acknowledged)
            request = TruncateRequest(self.session, 1, ZERO, t(keep - 1), False)
            assert not isinstance(ask(self.partition, request), FailureResponse)
            self.acknowledged = keep
        else:
            count = self.draw.choice(self.counts)
            self.observe(self.acknowledged, self.acknowledged + count)
            records = batch(self.acknowledged, count)
            succeed(self.partition, AppendRecordsRequest(self.session, 1, ZERO, records, False))
            self.acknowledged += count
        self.disk.fault = None
        self.survivors.append(
            (self.disk.crash_clone(self.draw), self.acknowledged, self.acknowledged)
        )

    def observe(self, at_least: int, at_most: int) -> None:
        """Cut the power before some of the operations that follow."""

        def cut(operation: DiskOperation, _: str) -> None:
            if operation is not DiskOperation.READ and self.draw.random() < 0.15:
                self.survivors.append((self.disk.crash_clone(self.draw), at_least, at_most))

        self.disk.fault = cut

    def check_survivors(self) -> None:
        for disk, at_least, at_most in self.survivors:
            survivor = open_partition(disk, threshold=self.threshold)
            assert survivor.damage is None, survivor.damage
            found = read_all(survivor)
            assert at_least <= len(found) <= at_most
            assert found == [record_data(number) for number in range(len(found))]
            assert survivor.next_transaction_id == len(found)
            survivor.announce(self.session)
            records = batch(len(found), 3)
            succeed(survivor, AppendRecordsRequest(self.session, 1, ZERO, records, False))
            again = open_partition(disk_without_lock(disk.crash_clone(self.draw)))
            assert len(read_all(again)) == len(found) + 3


def test_whatever_was_acknowledged_survives_any_power_cut() -> None:
    """SN-09: hundreds of crash points in random work, each with what the disk happens to keep."""
    cuts = 0
    for seed in range(60):
        driver = Driver(seed)
        for _ in range(8):
            driver.work()
            driver.check_survivors()
            cuts += len(driver.survivors)
            driver.survivors.clear()
    assert cuts > 500


class Killed(BaseException):
    """The process ends between two operations of its disk."""


def killed_at(number: int) -> Fault:
    left = number

    def fault(operation: DiskOperation, path: str) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            raise Killed

    return fault


def test_what_a_killed_process_left_is_durable_before_the_next_one_builds_on_it() -> None:
    """The dead one's writes and names are seen without ever having been synced; a power cut after
    that must not take what the next process has promised."""
    for number in range(1, 200):
        disk = fresh_disk()
        disk.fault = killed_at(number)
        try:
            dying = open_partition(disk, threshold=300)
            for first in range(0, 12, 3):
                dying.process([append(first, 3)])
            start_session(dying, 1, 11)
        except Killed:
            pass
        else:
            break
        disk.fault = None
        disk.release_locks()
        partition = open_partition(disk, threshold=300)
        held = partition.next_transaction_id
        request = AppendRecordsRequest(SessionId(2), 1, ZERO, batch(held, 2), offline=False)
        succeed(partition, request)
        start_session(partition, 2, held + 1)
        for seed in range(5):
            clone = open_partition(disk.crash_clone(random(seed)), threshold=300)
            assert clone.damage is None
            assert clone.session_info == (2, held + 1, held + 1)
            assert len(read_all(clone)) == held + 2
    else:
        pytest.fail("more disk operations than were tried")
