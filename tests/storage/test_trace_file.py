"""The trace of segments: bytes, and that what was lost never passes for what never was."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest

from proofs.crash_states import RecordingDisk, crash_states
from tests.storage.support import (
    DIRECTORY,
    DIRECTORY_ID,
    ZERO,
    append,
    ask,
    fresh_disk,
    home,
    make_partition,
    open_control,
    open_partition,
    start_session,
    succeed,
    t,
)
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk
from waltz.storage.directory.trace_file import (
    TRACE_BYTES,
    TRACE_FILE_NAME,
    SegmentTrace,
    decode_trace,
    decode_trace_file,
    encode_trace,
    open_trace_file,
    trace_file_bytes,
    trace_file_count,
    trace_offsets,
)
from waltz.storage.log.segment import DATA_SUFFIX, INDEX_SUFFIX
from waltz.storage.partition_replica import StoragePartition
from waltz.types import PartitionId, SessionId, TransactionId
from waltz.wire.storage_protocol import (
    LastSessionInfoRequest,
    LastSessionInfoResponse,
    MaxTransactionIdResponse,
    TruncateRequest,
)

PATH = f"{DIRECTORY}/{TRACE_FILE_NAME}"
THRESHOLD = 300


def log_of(count: int) -> tuple[SimulatedDisk, StoragePartition]:
    """A partition of several segments, in session 0 from an empty log, that has acknowledged
    `count` records."""
    disk = fresh_disk()
    partition = open_partition(disk, threshold=THRESHOLD)
    start_session(partition, 0, -1)
    for number in range(count):
        succeed(partition, append(number, 1, size=60))
    return disk, partition


def firsts(disk: SimulatedDisk) -> list[int]:
    return [
        int(name[:-4])
        for name in disk.list_directory(f"{DIRECTORY}/0")
        if name.endswith(DATA_SUFFIX)
    ]


def killed(disk: SimulatedDisk) -> SimulatedDisk:
    """What is there once the process is gone."""
    return SimulatedDisk(contents=disk.contents())


def opened(disk: SimulatedDisk) -> StoragePartition:
    partition = make_partition(disk, open_control(disk), threshold=THRESHOLD)
    partition.open()
    return partition


def remove(disk: SimulatedDisk, first: int, *suffixes: str) -> None:
    for suffix in suffixes or (DATA_SUFFIX, INDEX_SUFFIX):
        disk.remove(home(disk).path(t(first), suffix))


def vote(partition: StoragePartition, session: int = 1) -> int:
    """The session that the replica says was its last."""
    answer = ask(partition, LastSessionInfoRequest(SessionId(session), 1, ZERO, offline=False))
    assert isinstance(answer, LastSessionInfoResponse), answer
    return answer.session_info.session_id


def test_a_trace_is_read_only_where_it_was_written() -> None:
    other = UUID(int=7)
    good = encode_trace(DIRECTORY_ID, ZERO, SegmentTrace(t(3), t(5)), 9)
    assert len(good) == TRACE_BYTES
    assert decode_trace(DIRECTORY_ID, ZERO, good) == (9, SegmentTrace(t(3), t(5)))
    assert decode_trace(other, ZERO, good) is None
    assert decode_trace(DIRECTORY_ID, PartitionId(1), good) is None
    assert decode_trace(DIRECTORY_ID, ZERO, bytes(TRACE_BYTES)) is None
    for bit in range(8 * (TRACE_BYTES - 4)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        assert decode_trace(DIRECTORY_ID, ZERO, bytes(bad)) is None


def test_the_copies_are_in_different_blocks_and_the_newer_one_counts() -> None:
    first, second = trace_offsets(130, ZERO)
    assert second % 4096 == 0
    assert second - first >= 130 * TRACE_BYTES
    content = bytearray(trace_file_bytes(130))
    content[first : first + TRACE_BYTES] = encode_trace(
        DIRECTORY_ID, ZERO, SegmentTrace(t(0), t(2)), 1
    )
    content[second : second + TRACE_BYTES] = encode_trace(
        DIRECTORY_ID, ZERO, SegmentTrace(t(7), t(7)), 2
    )
    found = decode_trace_file(bytes(content), DIRECTORY_ID, 130)
    assert found.known == {ZERO: (2, SegmentTrace(t(7), t(7)))}
    assert ZERO not in found.whole
    assert len(found.notes) == 1


def test_a_replica_without_the_files_of_its_newest_segment_does_not_vote_as_it_is() -> None:
    disk, _ = log_of(10)
    disk = killed(disk)
    newest = firsts(disk)[-1]
    remove(disk, newest)
    partition = opened(disk)
    assert partition.damage is None
    assert "lost its newest records" in str(partition.loss)
    assert vote(partition) == -1
    assert partition.log.next_transaction_id == newest


def test_a_replica_that_may_have_acknowledged_more_than_its_index_tells_does_not_vote() -> None:
    """Seed 730095: a damaged record, behind it a good one whose index entry a power cut took. The
    repair of the damaged one does not make the replica vote."""
    disk = fresh_disk()
    partition = open_partition(disk)
    start_session(partition, 0, -1)
    for number in range(3):
        succeed(partition, append(number, 1, size=60))
    lost = partition.log.records.read(t(1), count_max=1, bytes_max=1)
    disk = killed(disk)
    disk.open(home(disk).path(t(0), INDEX_SUFFIX)).truncate(128 + 2 * 8)
    disk.damage(home(disk).path(t(0), DATA_SUFFIX), 128 + 100 + 28, b"\1")
    partition = opened(disk)
    assert (partition.log.damage, partition.log.next_transaction_id) == (((1, 2),), 2)
    assert "lost its newest records" in str(partition.loss)
    partition.repair(lost)
    assert vote(partition) == -1
    assert vote(opened(killed(disk)), 2) == -1


def test_the_doubt_outlives_restarts_until_a_session_begins_there() -> None:
    disk, _ = log_of(10)
    disk = killed(disk)
    remove(disk, firsts(disk)[-1])
    for _ in range(3):
        partition = opened(disk)
        assert vote(partition) == -1
        disk = killed(disk)
    partition = opened(disk)
    assert vote(partition) == -1
    partition.set_low_water_mark(SessionId(1), TransactionId(partition.log.next_transaction_id - 1))
    assert vote(opened(killed(disk)), 2) == 1


def test_without_a_loss_a_replica_votes_as_before_however_it_ended() -> None:
    disk, partition = log_of(10)
    assert vote(opened(killed(disk))) == 0
    partition.close()
    again = opened(killed(disk))
    assert again.loss is None
    assert vote(again) == 0


@pytest.mark.parametrize("which", [0, 1, -2])
def test_a_segment_that_others_follow_is_damage_and_no_doubt(which: int) -> None:
    disk, _ = log_of(10)
    disk = killed(disk)
    found = firsts(disk)
    remove(disk, found[which])
    partition = opened(disk)
    following = found[found.index(found[which]) + 1]
    assert partition.log.damage == ((found[which], following),)
    assert partition.loss is None


def test_segments_that_are_missing_at_the_end_are_told_however_many() -> None:
    disk, _ = log_of(10)
    disk = killed(disk)
    found = firsts(disk)
    remove(disk, found[-1])
    remove(disk, found[-2])
    partition = opened(disk)
    assert partition.loss is not None
    assert partition.log.damage == ((found[-2], found[-1]),)


def test_a_directory_that_is_missing_in_the_first_session_does_not_vote() -> None:
    """No low-water mark tells that there ever was a record."""
    disk, _ = log_of(2)
    disk = killed(disk)
    remove(disk, 0)
    partition = opened(disk)
    assert "no segments any more" in str(partition.loss)
    assert vote(partition) == -1


def test_a_newest_segment_that_is_older_than_the_last_clean_stop_does_not_vote() -> None:
    disk, partition = log_of(1)
    before = killed(disk)
    succeed(partition, append(1, 1, size=60))
    assert firsts(disk) == [0]
    partition.close()
    disk = killed(disk)
    name = home(disk).path(t(0), "")
    for suffix in (DATA_SUFFIX, INDEX_SUFFIX):
        old = before.content(name + suffix)
        file = disk.open(name + suffix)
        file.truncate(len(old))
        file.write_at(0, old)
        file.sync()
        file.close()
    found = opened(disk)
    assert found.loss is not None


def test_a_session_that_began_in_the_lost_segment_does_not_limit_the_doubt() -> None:
    """Filled up to the mark alone it would vote for less than it has acknowledged."""
    disk, partition = log_of(9)
    partition.set_low_water_mark(SessionId(1), t(8))
    partition.announce(SessionId(1))
    disk = killed(disk)
    remove(disk, firsts(disk)[-1])
    found = opened(disk)
    assert found.loss is not None
    assert found.promises.session_info.session_id == SessionId(-1)
    assert found.promises.session_info.low_water_mark == t(8)


def test_what_was_cut_is_not_missed() -> None:
    disk, partition = log_of(10)
    cut = TruncateRequest(SessionId(0), 1, ZERO, t(2), offline=False)
    assert isinstance(ask(partition, cut), MaxTransactionIdResponse)
    again = opened(killed(disk))
    assert again.loss is None
    assert vote(again) == 0


def test_at_every_point_of_a_roll_over_and_of_a_cut_a_crash_is_no_loss() -> None:
    """And nothing that was acknowledged gets lost without a word."""
    steps: list[SimulatedDisk] = []
    disk, partition = log_of(3)

    def remember(operation: DiskOperation, path: str) -> None:
        steps.append(killed(disk))
        steps.extend(disk.crash_clone(Random(seed)) for seed in range(3))

    disk.fault = remember
    for number in range(3, 8):
        succeed(partition, append(number, 1, size=60))
    cut = TruncateRequest(SessionId(0), 1, ZERO, t(1), offline=False)
    assert isinstance(ask(partition, cut), MaxTransactionIdResponse)
    disk.fault = None
    assert len(steps) > 80
    for step in steps:
        found = opened(step)
        assert found.damage is None
        assert found.loss is None
        assert found.log.damage == ()


def test_a_directory_of_an_earlier_release_is_traced_from_its_first_start_on() -> None:
    disk, partition = log_of(10)
    partition.close()
    disk = killed(disk)
    disk.remove(PATH)
    control = open_control(disk)
    promises = control.promises(ZERO)
    promises._is_traced = False  # as its slot says when an earlier release has written it
    promises._remember(promises.fence, index_is_ours=True)
    control.close()
    assert not open_control(killed(disk)).promises(ZERO).is_traced
    found = opened(killed(disk))
    assert found.loss is None
    learned = killed(disk)
    opened(learned)
    learned = killed(learned)
    remove(learned, firsts(learned)[-1])
    assert opened(learned).loss is not None


def test_without_a_trace_that_checks_out_a_replica_does_not_vote() -> None:
    disk, _ = log_of(10)
    disk = killed(disk)
    disk.remove(PATH)
    found = opened(disk)
    assert "no trace" in str(found.loss)
    assert vote(found) == -1
    found.set_low_water_mark(SessionId(1), TransactionId(found.log.next_transaction_id - 1))
    assert opened(killed(disk)).loss is None


def test_a_trace_that_cannot_be_written_closes_the_writer_and_nothing_is_acknowledged() -> None:
    disk, partition = log_of(3)

    def fault(operation: DiskOperation, path: str) -> None:
        if operation is DiskOperation.SYNC and path == PATH:
            raise OSError("the disk fails")

    disk.fault = fault
    held = partition.log.next_transaction_id
    while partition.writer.is_open:
        ask(partition, append(partition.log.next_transaction_id, 1, size=60))
        assert partition.log.next_transaction_id <= held + 20
    disk.fault = None
    partition.set_access(readable=True, writable=True)
    succeed(partition, append(partition.log.next_transaction_id, 1, size=60))
    assert opened(killed(disk)).loss is None


# Growth


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 5), (3, 128), (128, 129), (5, 4096)])
def test_traces_outlive_growth_while_running_and_at_the_next_start(before: int, after: int) -> None:
    traces = {
        PartitionId(number): SegmentTrace(
            TransactionId(10 * number), TransactionId(10 * number + 3)
        )
        for number in range(before)
    }
    for restarts in (False, True):
        disk = fresh_disk()
        file = open_trace_file(disk, DIRECTORY, directory_id=DIRECTORY_ID, partition_count=before)
        for partition_id, trace in traces.items():
            file.keep(partition_id, trace)
        if restarts:
            file.close()
            file = open_trace_file(
                disk, DIRECTORY, directory_id=DIRECTORY_ID, partition_count=after
            )
        else:
            file = file.grow(disk, DIRECTORY, after)
        file.keep(PartitionId(after - 1), SegmentTrace(t(7), t(9)))
        file.close()
        content = disk.content(PATH)
        assert len(content) == trace_file_bytes(after)
        found = decode_trace_file(content, DIRECTORY_ID, after)
        assert found.notes == ()
        assert {number: trace for number, (_, trace) in found.known.items()} == {
            **traces,
            PartitionId(after - 1): SegmentTrace(t(7), t(9)),
        }


def test_a_file_that_was_cut_is_not_taken_for_one_of_fewer_partitions() -> None:
    disk = fresh_disk()
    file = open_trace_file(disk, DIRECTORY, directory_id=DIRECTORY_ID, partition_count=5)
    for number in range(5):
        file.keep(PartitionId(number), SegmentTrace(t(number), t(number)))
    file.close()
    content = disk.content(PATH)
    for count in range(1, 5):
        assert trace_file_count(content[: trace_file_bytes(count)], 5) == 5
        assert trace_file_count(bytes(trace_file_bytes(count)), 5) == count


def test_a_crash_at_any_point_of_growth_keeps_every_trace() -> None:
    disk = fresh_disk()
    file = open_trace_file(disk, DIRECTORY, directory_id=DIRECTORY_ID, partition_count=2)
    traces = {PartitionId(0): SegmentTrace(t(0), t(4)), PartitionId(1): SegmentTrace(t(6), t(8))}
    for partition_id, trace in traces.items():
        file.keep(partition_id, trace)
    file.close()
    recording = RecordingDisk(disk)
    open_trace_file(recording, DIRECTORY, directory_id=DIRECTORY_ID, partition_count=200).close()
    seen = set()
    for state in crash_states(recording.start, recording.trace, states_per_step=50, seed=0):
        seen.add(state.digest)
        again = open_trace_file(
            state.image.disk(), DIRECTORY, directory_id=DIRECTORY_ID, partition_count=200
        )
        assert {each: again.trace(each) for each in traces} == traces, state.point
    assert len(seen) > 3
