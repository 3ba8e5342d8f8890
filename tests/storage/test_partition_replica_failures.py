"""A replica whose disk fails or fills up, and one whose power is cut or whose process is killed."""

from __future__ import annotations

import errno

import pytest

from tests.storage.replica_files import disk_without_lock, is_writable, reopen
from tests.storage.support import (
    SESSION,
    ZERO,
    append,
    ask,
    batch,
    fresh_disk,
    last_id,
    open_partition,
    random,
    read_all,
    record_data,
    refusal,
    start_session,
    succeed,
    t,
)
from waltz.errors import SegmentFailedError
from waltz.limits import INDEX_SYNC_RECORDS
from waltz.sim.simulated_disk import DiskOperation, Fault, SimulatedDisk, fail_nth
from waltz.storage.drain import Drain
from waltz.types import SessionId
from waltz.wire.storage_protocol import (
    AppendRecordsRequest,
    FailureResponse,
    MaxTransactionIdRequest,
    SuccessResponse,
    TruncateRequest,
)


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
    torn = partition.set_access(readable=True, writable=True)
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
    partition.set_access(readable=True, writable=True)
    count = partition.log.next_transaction_id
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
    assert partition.promises.session_info == (-1, -1, -1)


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
        partition.set_access(readable=True, writable=True)
        succeed(partition, append(1, 1))
        assert len(read_all(open_partition(disk.crash_clone(random(1)), threshold=100))) == 2
    disk = fresh_disk()
    partition = open_partition(disk)
    disk.fault = fail_nth(DiskOperation.SYNC, 2)
    assert "write of the index" in refusal(partition, append(0, INDEX_SYNC_RECORDS, size=0))
    assert not is_writable(partition)
    assert partition.log.next_transaction_id == INDEX_SYNC_RECORDS
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
    answers = Drain(partition, [append(5, 2), last, append(7, 1), append(8, 1), last]).run()
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
            assert survivor.log.next_transaction_id == len(found)
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
                Drain(dying, [append(first, 3)]).run()
            start_session(dying, 1, 11)
        except Killed:
            pass
        else:
            break
        disk.fault = None
        disk.release_locks()
        partition = open_partition(disk, threshold=300)
        held = partition.log.next_transaction_id
        request = AppendRecordsRequest(SessionId(2), 1, ZERO, batch(held, 2), offline=False)
        succeed(partition, request)
        start_session(partition, 2, held + 1)
        for seed in range(5):
            clone = open_partition(disk.crash_clone(random(seed)), threshold=300)
            assert clone.damage is None
            assert clone.promises.session_info == (2, held + 1, held + 1)
            assert len(read_all(clone)) == held + 2
    else:
        pytest.fail("more disk operations than were tried")
