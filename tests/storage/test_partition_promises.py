"""What a partition lets servers do, what it says of itself, and whose its index is."""

from __future__ import annotations

import errno

import pytest

from tests.storage.support import (
    DIRECTORY_ID,
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
    random,
    read_all,
    refusal,
    start_session,
    succeed,
    t,
)
from waltz.errors import CorruptionError, NotFoundError, SegmentFailedError
from waltz.limits import DAMAGED_RANGES_MAX
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk, fail_nth
from waltz.storage.partition_replica import StoragePartition
from waltz.types import SessionId
from waltz.wire.storage_protocol import (
    AcceptDamageRequest,
    AppendRecordsRequest,
    DamagedRange,
    FailureResponse,
    LastSessionInfoRequest,
    MaxTransactionIdResponse,
    RecordListRequest,
    RecordListResponse,
    RepairRequest,
    ReplicaStateRequest,
    ReplicaStateResponse,
    SessionInfo,
    SetLowWaterMarkRequest,
    SuccessResponse,
    TruncateRequest,
)

READ = RecordListRequest(SESSION, 1, ZERO, t(0), 10)
QUESTION = LastSessionInfoRequest(SESSION, 1, ZERO, offline=False)
SEGMENT = f"/storage/0/{0:019d}.seg"


def used_partition(disk: SimulatedDisk) -> StoragePartition:
    partition = open_partition(disk)
    succeed(partition, append(0, 5))
    return partition


def reopened(disk: SimulatedDisk) -> StoragePartition:
    """The partition after a power cut."""
    partition = make_partition(clone := disk.crash_clone(random(3)), open_control(clone))
    partition.open()
    return partition


def state_of(partition: StoragePartition, session: int = 0) -> ReplicaStateResponse:
    answer = ask(partition, ReplicaStateRequest(SessionId(session), 1, ZERO))
    assert isinstance(answer, ReplicaStateResponse), answer
    return answer


# Access


def test_reads_and_writes_are_switched_apart() -> None:
    """SN-21, CX-07: write off, read on, and the reverse; both survive a restart."""
    disk = fresh_disk()
    partition = used_partition(disk)
    partition.set_access(readable=True, writable=False)
    for each in (partition, reopened(disk)):
        assert isinstance(ask(each, READ), RecordListResponse)
        assert "write of partition 0 is disabled" in refusal(each, append(5, 1))
        assert not isinstance(ask(each, QUESTION), FailureResponse)
    partition.set_access(readable=False, writable=True)
    assert "read of partition 0 is disabled" in refusal(reopened(disk), READ)
    for each in (partition, reopened(disk)):
        assert "read of partition 0 is disabled" in refusal(each, READ)
        assert not isinstance(ask(each, QUESTION), FailureResponse)
    succeed(partition, append(5, 1))
    partition.set_access(readable=True, writable=True)
    assert isinstance(ask(partition, READ), RecordListResponse)
    assert partition.promises.info.flags == 5


def test_a_partition_closed_to_one_of_both_is_not_open_to_offline_recovery() -> None:
    """SN-18: only with both off."""
    partition = used_partition(fresh_disk())
    start_session(partition, 0, 4)
    offline = TruncateRequest(SESSION, 1, ZERO, t(2), offline=True)
    for readable, writable in ((True, False), (False, True)):
        partition.set_access(readable=readable, writable=writable)
        assert "offline recovery" in refusal(partition, offline)
    partition.set_access(readable=False, writable=False)
    assert "read and write of partition 0 are disabled" in refusal(partition, QUESTION)
    assert not isinstance(ask(partition, offline), FailureResponse)


def test_access_that_is_so_already_costs_nothing() -> None:
    disk = fresh_disk()
    partition = used_partition(disk)
    disk.counts.clear()
    partition.set_access(readable=True, writable=True)
    assert disk.counts == {}
    with pytest.raises(NotFoundError, match="not assigned"):
        make_partition(disk, open_control(disk.crash_clone(random(1))), number=1).set_access(
            readable=True, writable=True
        )


def test_allowing_writes_reopens_a_writer_that_has_failed_and_allowing_reads_does_not() -> None:
    disk = fresh_disk()
    partition = used_partition(disk)
    disk.fault = fail_nth(DiskOperation.SYNC, 1)
    assert isinstance(ask(partition, append(5, 1)), FailureResponse)
    disk.fault = None
    partition.set_access(readable=True, writable=False)
    assert not partition.writer.is_open
    partition.set_access(readable=True, writable=True)
    succeed(partition, append(5, 1))
    assert len(read_all(partition)) == 6


# What a replica says of itself


def test_a_replica_tells_its_state() -> None:
    partition = used_partition(fresh_disk())
    fresh = SessionInfo(SessionId(-1), t(-1), t(-1))
    assert state_of(partition) == ReplicaStateResponse(
        SESSION, 1, ZERO, fresh, t(4), DIRECTORY_ID, True, True, ()
    )
    start_session(partition, 3, 7)
    assert state_of(partition, 3).session_info == SessionInfo(SessionId(3), t(7), t(4))


def test_a_replica_tells_what_it_would_refuse() -> None:
    disk = fresh_disk()
    partition = used_partition(disk)
    partition.set_access(readable=False, writable=True)
    assert (state_of(partition).readable, state_of(partition).writable) == (False, True)
    partition.set_access(readable=True, writable=True)
    disk.fault = fail_nth(DiskOperation.SYNC, 1)
    assert isinstance(ask(partition, append(5, 1)), FailureResponse)
    assert (state_of(partition).readable, state_of(partition).writable) == (True, False)


def test_a_damaged_replica_tells_what_it_needs_and_takes_it() -> None:
    """SD-17: no vote, but an answer about its state; what a peer has is put in place."""
    disk = fresh_disk()
    partition = used_partition(disk)
    start_session(partition, 1, 4)
    partition.close()
    place = 128 + int(batch(0, 5).offsets[2]) + 37
    disk.damage(SEGMENT, place, b"\xee")
    partition = reopened(disk)
    partition.scrub(t(0), 1_000_000)
    question = LastSessionInfoRequest(SessionId(1), 1, ZERO, offline=False)
    assert "does not vote" in refusal(partition, question)
    assert state_of(partition, 1).damaged == (DamagedRange(t(2), t(3)),)
    unasked = RepairRequest(SessionId(1), 1, ZERO, batch(3, 1, size=9))
    assert "no damage from 3 to 3" in refusal(partition, unasked)
    repair = RepairRequest(SessionId(1), 1, ZERO, batch(2, 1))
    assert isinstance(ask(partition, repair), SuccessResponse)
    assert state_of(partition, 1).damaged == ()
    assert not isinstance(ask(partition, question), FailureResponse)
    assert len(read_all(partition)) == 5


def damaged_at_2(last: int = 4, *, more: int = 0) -> tuple[SimulatedDisk, StoragePartition]:
    """A partition with records 0 to `last`, of which the third is known to be damaged; session 1
    began then, and has appended so many `more`."""
    disk = fresh_disk()
    partition = open_partition(disk)
    succeed(partition, append(0, last + 1))
    start_session(partition, 1, last)
    if more:
        first = batch(last + 1, more)
        succeed(partition, AppendRecordsRequest(SessionId(1), 1, ZERO, first, offline=False))
    partition.close()
    disk.damage(SEGMENT, 128 + int(batch(0, 5).offsets[2]) + 37, b"\xee")
    partition = reopened(disk)
    partition.scrub(t(0), 1_000_000)
    assert state_of(partition, 1).damaged == (DamagedRange(t(2), t(3)),)
    return disk, partition


def accept(session: int, *ranges: tuple[int, int]) -> AcceptDamageRequest:
    damaged = tuple(DamagedRange(t(first), t(following)) for first, following in ranges)
    return AcceptDamageRequest(SessionId(session), 1, ZERO, damaged)


def test_a_session_goes_on_with_the_damage_that_it_has_accepted() -> None:
    """F-20: it votes, may be cut behind the damage, takes appends, and gives all other records."""
    _, partition = damaged_at_2(more=2)
    question = LastSessionInfoRequest(SessionId(2), 1, ZERO, offline=False)
    assert "does not vote" in refusal(partition, question)
    cut = TruncateRequest(SessionId(2), 1, ZERO, t(5), offline=False)
    assert "damage before it" in refusal(partition, cut)
    assert isinstance(ask(partition, accept(2, (2, 3))), SuccessResponse)
    assert not isinstance(ask(partition, question), FailureResponse)
    assert ask(partition, cut) == MaxTransactionIdResponse(SessionId(2), 1, ZERO, t(5))
    start_session(partition, 2, 5)
    succeed(partition, AppendRecordsRequest(SessionId(2), 1, ZERO, batch(6, 1), offline=False))
    assert state_of(partition, 2).damaged == (DamagedRange(t(2), t(3)),)
    for first, count in ((0, 2), (3, 4)):
        answer = ask(partition, RecordListRequest(SessionId(2), 1, ZERO, t(first), 10))
        assert isinstance(answer, RecordListResponse)
        assert len(answer.records) == count
    reading = RecordListRequest(SessionId(2), 1, ZERO, t(2), 10)
    assert "record 2 of partition 0 is damaged" in refusal(partition, reading)


def test_damage_is_accepted_for_one_session_and_no_other() -> None:
    """Nor is it for an administrator, who comes under the last session's ID, or after a restart."""
    disk, partition = damaged_at_2()
    assert isinstance(ask(partition, accept(2, (2, 3))), SuccessResponse)
    start_session(partition, 2, 4)
    partition.set_access(readable=False, writable=False)
    offline = LastSessionInfoRequest(SessionId(2), 1, ZERO, offline=True)
    assert "does not vote" in refusal(partition, offline)
    mark = SetLowWaterMarkRequest(SessionId(2), 1, ZERO, t(4), offline=True)
    assert "does not vote" in refusal(partition, mark)
    partition.set_access(readable=True, writable=True)
    assert "does not vote" in refusal(
        partition, LastSessionInfoRequest(SessionId(3), 1, ZERO, offline=False)
    )
    partition.close()
    again = reopened(disk)
    assert "does not vote" in refusal(
        again, LastSessionInfoRequest(SessionId(3), 1, ZERO, offline=False)
    )


def test_other_damage_than_was_accepted_keeps_a_replica_from_voting() -> None:
    _, partition = damaged_at_2()
    question = LastSessionInfoRequest(SessionId(2), 1, ZERO, offline=False)
    assert isinstance(ask(partition, accept(2, (1, 2))), SuccessResponse)
    assert "record 2" in refusal(partition, question)
    assert isinstance(ask(partition, accept(2, (2, 3))), SuccessResponse)
    assert not isinstance(ask(partition, question), FailureResponse)


def test_damage_at_the_end_of_the_log_is_not_accepted() -> None:
    _, partition = damaged_at_2(last=2)
    assert "nobody knows where the log ended" in refusal(partition, accept(2, (2, 3)))
    question = LastSessionInfoRequest(SessionId(2), 1, ZERO, offline=False)
    assert "does not vote" in refusal(partition, question)


def test_no_more_damage_is_accepted_than_a_replica_names() -> None:
    _, partition = damaged_at_2(last=4)
    assert isinstance(ask(partition, accept(2, (2, 3), (2, 3))), SuccessResponse)
    same = accept(2, *[(2, 3)] * DAMAGED_RANGES_MAX)
    assert isinstance(ask(partition, same), SuccessResponse)
    reached = accept(2, *[(-1 - number, 0) for number in range(DAMAGED_RANGES_MAX)])
    assert f"at most {DAMAGED_RANGES_MAX} can" in refusal(partition, reached)


# Whose the index is


def test_the_index_of_the_original_is_ours_once_it_was_recovered() -> None:
    """The original has synced less of it than ours would have: it proves nothing before."""
    disk = golden_disk("storage-after-clients")
    control = open_control(disk, key=GOLDEN_KEY)
    assert not control.promises(ZERO).is_ours
    partition = make_partition(disk, control, key=GOLDEN_KEY)
    partition.open()
    assert control.promises(ZERO).is_ours
    for seed in range(10):
        assert open_control(disk.crash_clone(random(seed)), key=GOLDEN_KEY).promises(ZERO).is_ours


class CutError(BaseException):
    """The power is cut."""


def test_nothing_is_called_ours_before_the_index_is_durable() -> None:
    """A power cut at any moment of the first opening, which has an index to make whole."""
    index = SEGMENT.replace(".seg", ".idx")
    whole = golden_disk("storage-after-clients").content(index)
    calls, was_cut = 0, True
    while was_cut:
        calls += 1
        disk = golden_disk("storage-after-clients")
        disk.damage(index, 128 + 8 * 3, bytes(len(whole) - 128 - 8 * 3))
        partition = make_partition(disk, open_control(disk, key=GOLDEN_KEY), key=GOLDEN_KEY)
        seen = 0

        def cut(operation: DiskOperation, path: str, at: int = calls) -> None:
            nonlocal seen
            seen += 1
            if seen == at:
                raise CutError

        disk.fault = cut
        was_cut = False
        try:
            partition.open()
        except CutError:
            was_cut = True
        for seed in range(10):
            clone = disk.crash_clone(random(seed))
            if open_control(clone, key=GOLDEN_KEY).promises(ZERO).is_ours:
                assert clone.content(index) == whole
            else:
                assert was_cut
    assert calls > 5


def test_a_partition_that_cannot_be_opened_is_not_called_ours() -> None:
    disk = golden_disk("storage-after-clients")
    control = open_control(disk, key=GOLDEN_KEY)
    partition = make_partition(disk, control, key=GOLDEN_KEY)
    disk.fault = fail_nth(DiskOperation.SYNC_DIRECTORY, 1)
    partition.open()
    assert partition.damage is not None
    assert not control.promises(ZERO).is_ours


@pytest.mark.parametrize("error_number", [errno.EIO, errno.ENOSPC])
def test_where_that_cannot_be_written_there_are_reads_and_no_writes(error_number: int) -> None:
    """SN-28: the next opening knows less, and nothing is lost."""
    disk = golden_disk("storage-after-clients")
    control = open_control(disk, key=GOLDEN_KEY)
    partition = make_partition(disk, control, key=GOLDEN_KEY)

    def fail(operation: DiskOperation, path: str) -> None:
        if operation is DiskOperation.WRITE and path.endswith("node"):
            raise OSError(error_number, "write fails", path)

    disk.fault = fail
    partition.open()
    assert partition.damage is None
    assert not partition.writer.is_open
    assert not control.promises(ZERO).is_ours
    assert len(read_all(partition)) == 15
    disk.fault = None
    if error_number == errno.ENOSPC:
        assert partition.is_closed_for_space
        partition.reopen()
        assert isinstance(ask(partition, append(15, 1)), SuccessResponse)
        assert control.promises(ZERO).is_ours


def test_an_assignment_that_cannot_be_promised_is_no_assignment() -> None:
    for number in range(1, 5):
        disk = fresh_disk()
        control = open_control(disk, assigned=())
        partition = make_partition(disk, control)
        partition.open()

        def fail(operation: DiskOperation, path: str) -> None:
            if "waltz-storage" in path:
                fault(operation, path)  # noqa: B023

        fault = fail_nth(DiskOperation.SYNC, number)
        disk.fault = fail
        with pytest.raises(SegmentFailedError, match="waltz-storage"):
            partition.assign()
        assert not partition.writer.is_open
        disk.fault = None
        clone = disk.crash_clone(random(number))
        again = make_partition(clone, open_control(clone))
        again.open()
        assert again.damage is None


def test_a_partition_whose_promises_are_lost_refuses_and_is_given_up() -> None:
    disk = fresh_disk()
    partition = used_partition(disk)
    ask(partition, LastSessionInfoRequest(SessionId(3), 1, ZERO, offline=False))
    start_session(partition, 3, 4)
    partition.close()
    for start in (0, 4096):
        disk.damage("/storage/waltz-storage.node", start + 128 + 20, b"\xaa\xbb")
    clone = disk.crash_clone(random(1))
    partition = make_partition(clone, control := open_control(clone))
    partition.open()
    assert isinstance(partition.damage, CorruptionError)
    assert "give the partition up and take it again" in refusal(partition, append(5, 1))
    partition.unassign(delete_files=False)
    partition.assign()
    assert partition.promises.session_info == (-1, -1, -1)
    assert control.promises(ZERO).fence == 3
    answer = ask(partition, SetLowWaterMarkRequest(SessionId(3), 1, ZERO, t(4), offline=False))
    assert isinstance(answer, SuccessResponse)


@pytest.mark.parametrize("number", [-2, -1000, -(2**63)])
def test_a_truncation_to_before_the_beginning_is_refused_and_changes_nothing(number: int) -> None:
    """SN-07: it lowered the local mark to what no replica can hold, then ended the whole node."""
    disk = fresh_disk()
    partition = used_partition(disk)
    start_session(partition, SESSION, 4)
    before = partition.promises.session_info
    said = refusal(partition, TruncateRequest(SESSION, 2, ZERO, t(number), offline=False))
    assert f"cannot be truncated to {number}" in said
    for each in (partition, reopened(disk)):
        assert each.promises.session_info == before
        assert len(read_all(each)) == 5
