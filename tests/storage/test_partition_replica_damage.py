"""A replica whose files are damaged, missing or not its own (SD-17 to SD-22)."""

from __future__ import annotations

import errno

import pytest

from tests.storage.replica_files import damaged, disk_without_lock, names, path, reopen
from tests.storage.support import (
    DIRECTORY,
    GOLDEN_KEY,
    SESSION,
    ZERO,
    append,
    ask,
    batch,
    fresh_disk,
    golden_disk,
    make_partition,
    open_control,
    open_partition,
    read_all,
    refusal,
    succeed,
    t,
)
from waltz.errors import NotFoundError
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk
from waltz.types import SessionId
from waltz.wire.storage_protocol import (
    FailureResponse,
    LastSessionInfoRequest,
    MaxTransactionIdRequest,
    RecordListRequest,
    RecordListResponse,
    SetLowWaterMarkRequest,
    StorageMessage,
    TruncateRequest,
)


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


def test_missing_files_are_told_once_something_was_promised() -> None:
    """A replica that has lost records must abstain, not vote."""
    for first, following in ((0, 2), (2, 4), (4, 5)):
        disk = fresh_disk()
        partition = open_partition(disk, threshold=300)
        partition.writer.write(batch(0, 5, size=60))
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
    partition.writer.write(batch(0, 5))
    partition.set_low_water_mark(SessionId(1), t(4))
    disk.remove(path(0))
    disk.remove(path(0, ".idx"))
    blank = reopen(disk, partition)
    assert blank.damage is None
    assert "has no segments any more" in str(blank.loss)
    assert blank.promises.session_info == (SessionId(-1), t(-1), t(-1))


def test_damaged_replica_votes_again_once_it_is_repaired_or_cut() -> None:
    """I11: neither of what it holds nor of a new session."""
    for mend in ("repair", "truncate"):
        disk = fresh_disk()
        partition = open_partition(disk)
        succeed(partition, append(0, 10))
        disk.damage(path(0), 128 + int(batch(0, 10).offsets[6]) + 37, b"!")
        assert len(partition.scrub(t(0), 10**6).damaged) == 1
        assert len(partition.log.records.read(t(0), count_max=10, bytes_max=10**6)) == 6
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
            partition.writer.repair(batch(6, 1))
        else:
            request = TruncateRequest(SessionId(1), 1, ZERO, t(5), False)
            assert not isinstance(ask(partition, request), FailureResponse)
        assert partition.log.damage == ()
        for vote in votes:
            assert not isinstance(ask(partition, vote), FailureResponse)


def test_scrub_of_a_partition_that_is_not_open_is_refused() -> None:
    disk = fresh_disk()
    partition = make_partition(disk, open_control(disk, assigned=()))
    partition.open()
    with pytest.raises(NotFoundError, match="not assigned"):
        partition.scrub(t(0), 100)


def test_a_missing_directory_is_made_anew_and_promises_nothing() -> None:
    disk = SimulatedDisk([DIRECTORY])
    control = open_control(disk)
    started = control.promises(ZERO).info
    control.promises(ZERO).update(type(started)(SessionId(1), t(4), t(4), started.flags))
    partition = make_partition(disk, control)
    partition.open()
    assert partition.damage is None
    assert "no segments any more" in str(partition.loss)
    assert partition.promises.session_info == (SessionId(-1), t(-1), t(-1))
    assert partition.promises.info.is_assigned
    assert partition.promises.fence == SessionId(1)


def test_unfinished_segment_of_a_crashed_roll_over_is_made_anew() -> None:
    """Hazards D2, D3."""
    for content in (b"", bytes(60), bytes(128)):
        disk = fresh_disk()
        partition = open_partition(disk, threshold=300)
        partition.writer.write(batch(0, 2, size=60))
        partition.writer.sync()
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
    partition.writer.write(batch(0, 6, size=60))
    partition.close()
    disk.remove(path(2))
    disk.remove(path(2, ".idx"))
    clone = reopen(disk, partition, threshold=300)
    assert damaged(clone) == [(2, 4)]
    assert clone.log.next_transaction_id == 6


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
    clone.set_access(readable=True, writable=True)
    assert len(read_all(clone)) == 3


def test_files_other_than_segments_are_left_alone() -> None:
    disk = fresh_disk()
    partition = open_partition(disk)
    for name in ("notes.txt", "12.seg", "00000000000000000xx.seg", f"{5:019d}.idx"):
        disk.open(f"{DIRECTORY}/0/{name}", create=True)
    assert reopen(disk, partition).damage is None
