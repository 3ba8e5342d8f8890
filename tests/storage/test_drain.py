"""Requests of one partition, processed together (SN-01 to SN-18, SD-12)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    refusal,
    start_session,
    succeed,
    t,
)
from waltz.errors import CorruptionError
from waltz.limits import RECORD_LIST_BYTES_MAX, RECORD_LIST_RECORDS_MAX
from waltz.record import RecordBatch, empty_batch
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk, fail_nth
from waltz.storage.drain import Drain
from waltz.storage.partition_replica import StoragePartition
from waltz.types import SessionId, TransactionId
from waltz.wire.header_columns import header_columns
from waltz.wire.storage_protocol import (
    AppendRecordsRequest,
    FailureResponse,
    LastSessionInfoRequest,
    LastSessionInfoResponse,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    OpenRequest,
    RecordHeader,
    RecordHeaderListRequest,
    RecordHeaderListResponse,
    RecordHeaderRequest,
    RecordHeaderResponse,
    RecordListRequest,
    RecordListResponse,
    RecordRequest,
    RecordResponse,
    SessionInfo,
    SetLowWaterMarkRequest,
    StorageMessage,
    SuccessResponse,
    TruncateRequest,
)

Requests = list[Callable[[SessionId, bool], StorageMessage]]

FLAGGED: Requests = [
    lambda session, offline: LastSessionInfoRequest(session, 1, ZERO, offline),
    lambda session, offline: SetLowWaterMarkRequest(session, 1, ZERO, t(4), offline),
    lambda session, offline: TruncateRequest(session, 1, ZERO, t(4), offline),
    lambda session, offline: AppendRecordsRequest(session, 1, ZERO, empty_batch(t(0)), offline),
    lambda session, offline: MaxTransactionIdRequest(session, 1, ZERO, offline),
]
READS: Requests = [
    lambda session, _: RecordRequest(session, 1, ZERO, t(1)),
    lambda session, _: RecordHeaderRequest(session, 1, ZERO, t(1)),
    lambda session, _: RecordListRequest(session, 1, ZERO, t(1), 5),
    lambda session, _: RecordHeaderListRequest(session, 1, ZERO, t(1), 5),
]


def partition_with(count: int) -> tuple[SimulatedDisk, StoragePartition]:
    disk = fresh_disk()
    partition = open_partition(disk)
    if count:
        succeed(partition, append(0, count))
    return disk, partition


def outcome(answers: list[StorageMessage]) -> list[type[StorageMessage]]:
    return [type(answer) for answer in answers]


def test_a_drain_of_appends_is_one_write_and_one_sync() -> None:
    """SD-12: whatever the number of requests; and a write to the index, which waits for none."""
    disk, partition = partition_with(1)
    requests = [append(1 + 3 * number, 3) for number in range(50)]
    disk.counts.clear()
    answers = Drain(partition, requests).run()
    assert outcome(answers) == [SuccessResponse] * 50
    assert disk.counts == {DiskOperation.WRITE: 2, DiskOperation.SYNC: 1}
    assert [answer.sequence_number for answer in answers] == [
        req.sequence_number for req in requests
    ]
    assert len(read_all(partition)) == 151


def test_reads_in_between_see_what_came_before_and_cost_no_sync() -> None:
    disk, partition = partition_with(0)
    disk.counts.clear()
    answers = Drain(
        partition,
        [
            append(0, 3),
            MaxTransactionIdRequest(SESSION, 1, ZERO, offline=False),
            RecordRequest(SESSION, 2, ZERO, t(2)),
            append(3, 1),
            MaxTransactionIdRequest(SESSION, 3, ZERO, offline=False),
        ],
    ).run()
    assert answers[1] == MaxTransactionIdResponse(SESSION, 1, ZERO, t(2))
    assert answers[2] == RecordResponse(SESSION, 2, ZERO, batch(2, 1).record(0))
    assert answers[4] == MaxTransactionIdResponse(SESSION, 3, ZERO, t(3))
    assert disk.counts[DiskOperation.SYNC] == 1


def test_appends_over_a_roll_over_are_one_write_and_one_sync_per_segment() -> None:
    disk = fresh_disk()
    partition = open_partition(disk, threshold=1000)
    Drain(partition, [append(0, 1)]).run()
    done: list[tuple[DiskOperation, str]] = []
    disk.fault = lambda operation, path: done.append((operation, path))
    answers = Drain(partition, [append(number, 5, size=60) for number in range(1, 26, 5)]).run()
    assert outcome(answers) == [SuccessResponse] * 5
    assert len(partition.log.segments.firsts) == 3
    first, *others = [path for path in dict.fromkeys(path for _, path in done) if ".seg" in path]
    # Each new segment's header is written and synced, too.
    for path, extra in ((first, 0), *((path, 1) for path in others)):
        assert done.count((DiskOperation.WRITE, path)) == 1 + extra
        assert done.count((DiskOperation.WRITE, path[:-4] + ".idx")) == 1 + extra
        assert done.count((DiskOperation.SYNC, path)) == 1 + extra


def test_nothing_is_answered_before_the_sync() -> None:
    """SN-09."""
    disk, partition = partition_with(0)
    Drain(partition, [append(0, 100), append(100, 100)]).run()
    for seed in range(30):
        assert len(read_all(open_partition(disk.crash_clone(random(seed))))) == 200


@pytest.mark.parametrize("operation", [DiskOperation.WRITE, DiskOperation.SYNC])
def test_failed_drain_refuses_every_append_in_it_and_after(operation: DiskOperation) -> None:
    """What rests on unsynced bytes is refused too; what came before the appends is not."""
    disk, partition = partition_with(5)
    disk.fault = fail_nth(operation, 1)
    maximum = MaxTransactionIdRequest(SESSION, 1, ZERO, offline=False)
    answers = Drain(partition, [maximum, append(5, 3), append(8, 3), maximum, append(11, 1)]).run()
    expected = [MaxTransactionIdResponse] + [FailureResponse] * 4
    if operation is DiskOperation.WRITE:
        # The write fails before the second question, which is then answered from what is durable.
        expected[3] = MaxTransactionIdResponse
        assert answers[3] == MaxTransactionIdResponse(SESSION, 1, ZERO, t(4))
    assert outcome(answers) == expected
    assert outcome(Drain(partition, [append(5, 1), maximum]).run()) == [
        FailureResponse,
        MaxTransactionIdResponse,
    ]
    assert len(read_all(partition)) == 5
    assert partition.counters.drains_synced == 1


def test_failure_before_a_truncation_in_the_same_drain_refuses_it() -> None:
    disk, partition = partition_with(5)
    disk.fault = fail_nth(DiskOperation.SYNC, 1)
    answers = Drain(
        partition, [append(5, 3), TruncateRequest(SESSION, 1, ZERO, t(2), offline=False)]
    ).run()
    assert outcome(answers) == [FailureResponse, FailureResponse]
    assert len(read_all(partition)) == 5


def test_mixed_drain_in_order() -> None:
    _, partition = partition_with(0)
    answers = Drain(
        partition,
        [
            append(0, 5),
            TruncateRequest(SESSION, 1, ZERO, t(2), offline=False),
            append(3, 1),
            SetLowWaterMarkRequest(SESSION, 2, ZERO, t(3), offline=False),
            LastSessionInfoRequest(SESSION, 3, ZERO, offline=False),
            append(4, 1),
        ],
    ).run()
    assert answers == [
        SuccessResponse(SESSION, 0, ZERO),
        MaxTransactionIdResponse(SESSION, 1, ZERO, t(2)),
        SuccessResponse(SESSION, 3, ZERO),
        SuccessResponse(SESSION, 2, ZERO),
        LastSessionInfoResponse(SESSION, 3, ZERO, SessionInfo(SESSION, t(3), t(3))),
        SuccessResponse(SESSION, 4, ZERO),
    ]


@pytest.mark.parametrize("first", [-1, 0, 9, 11, 19, 2**30])
def test_append_out_of_order_is_refused_and_nothing_is_written(first: int) -> None:
    """SN-10: a gap, an overlap, and the same records again."""
    disk, partition = partition_with(10)
    disk.counts.clear()
    assert f"out of order: expected 10, found {first}" in refusal(partition, append(first, 3))
    assert disk.counts == {}
    assert last_id(partition) == 9


def test_gap_inside_a_drain_refuses_only_what_does_not_fit() -> None:
    _, partition = partition_with(0)
    answers = Drain(partition, [append(0, 3), append(4, 1), append(3, 1), append(3, 1)]).run()
    assert outcome(answers) == [SuccessResponse, FailureResponse, SuccessResponse, FailureResponse]
    assert len(read_all(partition)) == 4


def test_empty_append_succeeds() -> None:
    _, partition = partition_with(2)
    succeed(partition, AppendRecordsRequest(SESSION, 1, ZERO, empty_batch(t(0)), offline=False))


def test_records_and_headers_by_id() -> None:
    """SN-11."""
    _, partition = partition_with(10)
    for number in (0, 4, 9):
        record = batch(number, 1).record(0)
        assert ask(partition, RecordRequest(SESSION, 1, ZERO, t(number))) == RecordResponse(
            SESSION, 1, ZERO, record
        )
        header = RecordHeader(record.transaction_id, record.request_id, record.header)
        assert ask(
            partition, RecordHeaderRequest(SESSION, 1, ZERO, t(number))
        ) == RecordHeaderResponse(SESSION, 1, ZERO, header)
    for number in (-1, 10, 2**50):
        assert ask(partition, RecordRequest(SESSION, 1, ZERO, t(number))) == RecordResponse(
            SESSION, 1, ZERO, None
        )
        assert ask(
            partition, RecordHeaderRequest(SESSION, 1, ZERO, t(number))
        ) == RecordHeaderResponse(SESSION, 1, ZERO, None)


@pytest.mark.parametrize(
    ("first", "count_max", "expected"),
    [(0, 4, 4), (3, 20, 7), (10, 5, 0), (-1, 5, 0), (2, 0, 0), (2, -1, 0), (0, 2**31 - 1, 10)],
)
def test_lists(first: int, count_max: int, expected: int) -> None:
    """SN-12: 20 asked, 7 left, 7 answered."""
    _, partition = partition_with(10)
    records = batch(first, expected) if expected else empty_batch(t(0))
    assert ask(partition, RecordListRequest(SESSION, 1, ZERO, t(first), count_max)) == (
        RecordListResponse(SESSION, 1, ZERO, records)
    )
    assert ask(partition, RecordHeaderListRequest(SESSION, 1, ZERO, t(first), count_max)) == (
        RecordHeaderListResponse(SESSION, 1, ZERO, header_columns(records))
    )


def test_headers_are_read_a_part_at_a_time_up_to_what_is_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Large data are read to be checked, and not kept; what precedes damage is told."""
    monkeypatch.setattr("waltz.storage.drain.HEADER_READ_BYTES", 100)
    _, partition = partition_with(10)
    request = RecordHeaderListRequest(SESSION, 1, ZERO, t(2), 20)

    def found() -> object:
        answer = ask(partition, request)
        assert isinstance(answer, RecordHeaderListResponse)
        return answer.headers.slice(t(0), 20).transaction_headers.tolist()

    assert found() == batch(2, 8).headers().tolist()
    read, sizes = partition.log.records.read, []

    def failing(first: TransactionId, **bounds: int) -> RecordBatch:
        if first > 5:
            raise CorruptionError("damaged")
        records = read(first, **bounds)
        sizes.append(len(records.block))
        return records

    monkeypatch.setattr(partition.log.records, "read", failing)
    told = found()
    assert isinstance(told, list)
    assert told == batch(2, len(told)).headers().tolist()
    assert len(sizes) > 1
    assert max(sizes) <= 100
    request = RecordHeaderListRequest(SESSION, 1, ZERO, t(6), 20)
    assert isinstance(ask(partition, request), FailureResponse)


def test_lists_are_bounded_in_bytes_together_and_each() -> None:
    """Hazard S8."""
    _, partition = partition_with(0)
    size = 1_000_000
    for number in range(20):
        succeed(partition, append(number, 1, size=size))
    request = RecordListRequest(SESSION, 1, ZERO, t(0), RECORD_LIST_RECORDS_MAX)
    counts = [
        len(answer.records)
        for answer in Drain(partition, [request] * 5).run()
        if isinstance(answer, RecordListResponse)
    ]
    assert counts == [RECORD_LIST_BYTES_MAX // size, RECORD_LIST_BYTES_MAX // size, 1, 1, 1]


def test_damaged_record_is_never_served() -> None:
    disk, partition = partition_with(10)
    place = 128 + int(batch(0, 10).offsets[4]) + 37
    disk.damage(f"/storage/0/{0:019d}.seg", place, b"\xee")
    assert "record 4 of partition 0 is damaged" in refusal(
        partition, RecordRequest(SESSION, 1, ZERO, t(4))
    )
    assert "CorruptionError" in refusal(partition, RecordListRequest(SESSION, 1, ZERO, t(4), 10))
    for first, count in ((5, 5), (0, 4), (3, 1)):
        good = ask(partition, RecordListRequest(SESSION, 1, ZERO, t(first), 10))
        assert isinstance(good, RecordListResponse)
        assert good.records == batch(first, count)


def test_session_info_after_a_session_began() -> None:
    """SN-05, SN-08."""
    _, partition = partition_with(10)
    assert ask(partition, LastSessionInfoRequest(SESSION, 1, ZERO, offline=False)) == (
        LastSessionInfoResponse(SESSION, 1, ZERO, SessionInfo(SessionId(-1), t(-1), t(-1)))
    )
    start_session(partition, 7, 99)
    assert ask(partition, LastSessionInfoRequest(SessionId(7), 1, ZERO, offline=False)) == (
        LastSessionInfoResponse(SessionId(7), 1, ZERO, SessionInfo(SessionId(7), t(99), t(9)))
    )


@pytest.mark.parametrize("make", FLAGGED + READS)
def test_lower_session_is_refused_by_every_request(
    make: Callable[[SessionId, bool], StorageMessage],
) -> None:
    """SN-14: reads too; a higher one is adopted on receipt, whatever it asks."""
    _, partition = partition_with(5)
    partition.announce(SessionId(9))
    partition.announce(SessionId(4))
    for session in (SessionId(8), SessionId(0), SessionId(-1)):
        text = refusal(partition, make(session, False))
        assert "ConcurrentUpdate" in text
        assert f"has changed to 9, the request's is {session}" in text
    assert not isinstance(ask(partition, make(SessionId(9), False)), FailureResponse)
    assert not isinstance(ask(partition, make(SessionId(10), False)), FailureResponse)
    assert isinstance(ask(partition, make(SessionId(9), False)), FailureResponse)


def test_requests_that_waited_when_a_newer_session_spoke_are_refused() -> None:
    _, partition = partition_with(5)
    waiting: list[StorageMessage] = [append(5, 1), append(6, 1)]
    partition.announce(SessionId(1))
    assert outcome(Drain(partition, waiting).run()) == [FailureResponse, FailureResponse]
    assert len(read_all(partition)) == 5


def test_session_survives_a_restart_once_it_began() -> None:
    disk, partition = partition_with(5)
    start_session(partition, 3, 4)
    survivor = open_partition(disk.crash_clone(random(0)))
    assert "has changed to 3" in refusal(survivor, append(5, 1))


@pytest.mark.parametrize("make", FLAGGED + READS)
def test_unavailable_partition_refuses_servers(
    make: Callable[[SessionId, bool], StorageMessage],
) -> None:
    """SN-17."""
    _, partition = partition_with(5)
    partition.set_access(readable=False, writable=False)
    assert "read and write of partition 0 are disabled" in refusal(partition, make(SESSION, False))
    partition.set_access(readable=True, writable=True)
    assert not isinstance(ask(partition, make(SESSION, False)), FailureResponse)


@pytest.mark.parametrize("make", FLAGGED)
def test_offline_recovery_works_only_while_unavailable_and_in_the_stored_session(
    make: Callable[[SessionId, bool], StorageMessage],
) -> None:
    """SN-18."""
    _, partition = partition_with(5)
    start_session(partition, 3, 4)
    assert "offline recovery of partition 0 is disabled" in refusal(
        partition, make(SessionId(3), True)
    )
    partition.set_access(readable=False, writable=False)
    partition.announce(SessionId(8))
    assert "has changed to 3" in refusal(partition, make(SessionId(8), True))
    assert not isinstance(ask(partition, make(SessionId(3), True)), FailureResponse)


@pytest.mark.parametrize("make", FLAGGED + READS)
def test_unassigned_partition_refuses_everything(
    make: Callable[[SessionId, bool], StorageMessage],
) -> None:
    """SN-16."""
    _, partition = partition_with(5)
    partition.unassign(delete_files=False)
    assert "Partition:0 is not assigned." in refusal(partition, make(SESSION, False))


def test_what_is_no_request_to_a_partition_is_refused() -> None:
    _, partition = partition_with(0)
    assert "SuccessResponse is not a request to a partition" in refusal(
        partition, SuccessResponse(SESSION, 1, ZERO)
    )
    request = OpenRequest(SESSION, 1, ZERO, partition._home.cluster_key, 2)
    assert "OpenRequest is not a request to a partition" in refusal(partition, request)


def test_counters_tell_what_happened() -> None:
    _, partition = partition_with(0)
    Drain(partition, [append(0, 3), append(3, 2), append(9, 1)]).run()
    counters = partition.counters
    assert (counters.requests, counters.refusals, counters.records_appended) == (3, 1, 5)
    assert (counters.drains_synced, counters.bytes_appended) == (1, len(batch(0, 5).block))


step = st.one_of(
    st.tuples(st.just("append"), st.integers(-1, 1), st.integers(1, 5)),
    st.tuples(st.just("truncate"), st.integers(-1, 30), st.just(0)),
    st.tuples(st.just("max"), st.just(0), st.just(0)),
    st.tuples(st.just("read"), st.integers(-1, 30), st.just(0)),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(step, max_size=25), st.lists(st.integers(1, 6), min_size=1), st.booleans())
def test_drains_equal_one_request_at_a_time(
    steps: list[tuple[str, int, int]], sizes: list[int], small: bool
) -> None:
    """However requests are grouped, the answers and the log are those of a list of records."""
    disk = fresh_disk()
    partition = open_partition(disk, threshold=400 if small else 10**9)
    log = 0
    requests: list[StorageMessage] = []
    expected: list[StorageMessage | None] = []
    for kind, number, count in steps:
        if kind == "append":
            requests.append(append(log + number, count))
            expected.append(None if number else SuccessResponse(SESSION, log, ZERO))
            log += 0 if number else count
        elif kind == "truncate":
            requests.append(TruncateRequest(SESSION, 1, ZERO, t(number), offline=False))
            log = min(log, number + 1)
            expected.append(MaxTransactionIdResponse(SESSION, 1, ZERO, t(log - 1)))
        elif kind == "max":
            requests.append(MaxTransactionIdRequest(SESSION, 1, ZERO, offline=False))
            expected.append(MaxTransactionIdResponse(SESSION, 1, ZERO, t(log - 1)))
        else:
            requests.append(RecordRequest(SESSION, 1, ZERO, t(number)))
            record = batch(number, 1).record(0) if 0 <= number < log else None
            expected.append(RecordResponse(SESSION, 1, ZERO, record))
    answers: list[StorageMessage] = []
    while len(answers) < len(requests):
        size = sizes[len(answers) % len(sizes)]
        answers += Drain(partition, requests[len(answers) : len(answers) + size]).run()
    for answer, wanted in zip(answers, expected, strict=True):
        assert isinstance(answer, FailureResponse) if wanted is None else answer == wanted
    assert len(read_all(open_partition(disk.crash_clone(random(log))))) == log


def test_what_was_durable_before_a_later_failure_stays_answered() -> None:
    disk, partition = partition_with(5)
    disk.fault = fail_nth(DiskOperation.WRITE, 3)
    answers = Drain(
        partition,
        [append(5, 3), TruncateRequest(SESSION, 1, ZERO, t(6), offline=False), append(7, 1)],
    ).run()
    assert outcome(answers) == [SuccessResponse, MaxTransactionIdResponse, FailureResponse]
    assert len(read_all(open_partition(disk.crash_clone(random(0))))) == 7
