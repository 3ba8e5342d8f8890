"""What the Java original gets wrong between servers and storage nodes, and what is right instead.

One test or more per hazard; S1 to S8 are their numbers in the study of its code.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable

import pytest

from tests.storage.simulated_node import DATA, World, run_node
from tests.storage.simulated_node import append as append_in
from tests.storage.support import (
    DIRECTORY,
    KEY,
    SESSION,
    ZERO,
    append,
    ask,
    batch,
    fresh_disk,
    make_partition,
    open_control,
    open_partition,
    random,
    read_all,
    record_data,
    refusal,
    start_session,
    succeed,
    t,
)
from waltz.cluster.store_params import StoreParams
from waltz.errors import (
    NotFoundError,
    OperationTimeoutError,
    RemoteProtocolError,
    UnavailableError,
    WaltzError,
)
from waltz.host import Connection
from waltz.limits import (
    DRAIN_BYTES_MAX,
    FRAME_BYTES_MAX,
    RECORD_LIST_BYTES_MAX,
    RECORD_LIST_RECORDS_MAX,
    STORAGE_REQUEST_SECONDS_MAX,
)
from waltz.record import NewRecord, pack_records
from waltz.sim.loop import Process
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk, fail_nth
from waltz.storage.drain import Drain
from waltz.storage.partition_replica import StoragePartition
from waltz.store.storage_connections_shell import StorageConnections
from waltz.types import NO_SESSION, Address, PartitionId, ReplicaId, SessionId
from waltz.wire.client_protocol import CLIENT_CODEC
from waltz.wire.handshake import Link
from waltz.wire.message import Message
from waltz.wire.storage_protocol import (
    STORAGE_CODEC,
    AppendRecordsRequest,
    FailureResponse,
    LastSessionInfoRequest,
    LastSessionInfoResponse,
    MaxTransactionIdRequest,
    OpenRequest,
    RecordListRequest,
    RecordListResponse,
    RecordRequest,
    ReplicaStateRequest,
    SetLowWaterMarkRequest,
    StorageMessage,
    SuccessResponse,
    TruncateRequest,
)

HUGE = SessionId(2**62)


def session_info(session: int) -> LastSessionInfoRequest:
    return LastSessionInfoRequest(SessionId(session), 1, ZERO, offline=False)


# S1: any peer fences out the real server with one message


def test_s1_a_stranger_does_not_fence_anybody_out() -> None:
    """A peer that has not shown that it belongs to the cluster is ignored, whatever its session."""

    async def test(world: World) -> None:
        stranger = await world._network.door(Process("stranger")).connect(DATA)
        link = Link(STORAGE_CODEC, "nobody")
        stranger.write(link.hello())
        while link.version is None:
            link.receive(await stranger.read())
        stranger.write(link.encode(session_info(HUGE)))
        answers: list[Message] = []
        while not answers:
            answers = link.receive(await stranger.read())
        (answer,) = answers
        assert isinstance(answer, FailureResponse)
        assert "an open request must come first" in answer.message
        await (await world.data_peer()).succeed(append_in(0, 3))

    run_node(test, fresh_disk())


# S2: two newer sessions at once can leave the smaller one


@pytest.mark.parametrize("sessions", [(4, 9), (9, 4)])
@pytest.mark.parametrize("seed", range(5))
def test_s2_of_two_sessions_the_higher_one_stays(sessions: tuple[int, int], seed: int) -> None:
    """Heard of on two connections at once."""

    async def test(world: World) -> None:
        peers = [await world.data_peer(), await world.data_peer()]
        for peer, session in zip(peers, sessions, strict=True):
            peer._connection.write(peer._link.encode(session_info(session)))
        for peer, session in zip(peers, sessions, strict=True):
            while not peer._answers:
                peer._answers += peer._link.receive(await peer._connection.read())
            answer = peer._answers.pop()
            assert session == 4 or isinstance(answer, LastSessionInfoResponse)
        for peer in peers:
            assert "has changed to 9" in await peer.refusal(session_info(4))
            assert isinstance(await peer.ask(session_info(9)), LastSessionInfoResponse)

    run_node(test, fresh_disk(), seed=seed)


@pytest.mark.parametrize(
    "action",
    [
        lambda partition: partition.open(),
        lambda partition: partition.set_access(readable=False, writable=False),
        lambda partition: partition.unassign(delete_files=False),
        lambda partition: start_session(partition, 3, 2),
        lambda partition: ask(partition, session_info(3)),
    ],
)
def test_s2_a_session_heard_of_meanwhile_is_not_forgotten(
    action: Callable[[StoragePartition], object],
) -> None:
    """The event loop announces it while a worker thread is in the middle of something."""
    count = 0
    while True:
        count += 1
        disk = fresh_disk()
        partition = open_partition(disk)
        succeed(partition, append(0, 3))
        seen = 0

        def announce(
            operation: DiskOperation,
            path: str,
            partition: StoragePartition = partition,
            at: int = count,
        ) -> None:
            nonlocal seen
            seen += 1
            if seen == at:
                partition.announce(SessionId(9))

        disk.fault = announce
        action(partition)
        disk.fault = None
        if seen < count:
            break
        partition.assign()
        partition.set_access(readable=True, writable=True)
        assert "has changed to 9" in refusal(partition, session_info(8))
    assert count > 3


# S3: the session is not durable before the low-water mark is set

ANSWERED: list[Callable[[SessionId], StorageMessage]] = [
    lambda session: LastSessionInfoRequest(session, 1, ZERO, offline=False),
    lambda session: MaxTransactionIdRequest(session, 1, ZERO, offline=False),
    lambda session: ReplicaStateRequest(session, 1, ZERO),
    lambda session: TruncateRequest(session, 1, ZERO, t(1), offline=False),
    lambda session: SetLowWaterMarkRequest(session, 1, ZERO, t(2), offline=False),
    lambda session: AppendRecordsRequest(session, 1, ZERO, batch(3, 2), offline=False),
    lambda session: RecordRequest(session, 1, ZERO, t(1)),
]


def restarted(disk: SimulatedDisk) -> StoragePartition:
    partition = make_partition(disk, open_control(disk))
    partition.open()
    return partition


@pytest.mark.parametrize("make", ANSWERED)
def test_s3_whoever_was_answered_in_a_session_refuses_older_ones_for_ever(
    make: Callable[[SessionId], StorageMessage],
) -> None:
    """I9: also after a power cut right after the answer, and after giving the partition up."""
    disk = fresh_disk()
    partition = open_partition(disk)
    succeed(partition, append(0, 3))
    assert not isinstance(ask(partition, make(SessionId(5))), FailureResponse)
    for seed in range(10):
        clone = disk.crash_clone(random(seed))
        again = restarted(clone)
        assert again.promises.fence == 5
        assert "has changed to 5" in refusal(again, make(SessionId(4)))
        assert "has changed to 5" in refusal(again, append(3, 1))
        again.unassign(delete_files=True)
        again.assign()
        assert "has changed to 5" in refusal(again, session_info(4))
        assert isinstance(ask(again, session_info(5)), LastSessionInfoResponse)


def test_s3_a_session_costs_one_update_however_many_requests_it_makes() -> None:
    disk = fresh_disk()
    partition = open_partition(disk)
    disk.counts.clear()
    ask(partition, session_info(5))
    first = disk.counts[DiskOperation.SYNC]
    for _ in range(10):
        ask(partition, session_info(5))
    assert disk.counts[DiskOperation.SYNC] == first == 2


@pytest.mark.parametrize("operation", [DiskOperation.WRITE, DiskOperation.SYNC])
@pytest.mark.parametrize("number", [1, 2])
def test_s3_what_cannot_be_promised_is_refused(operation: DiskOperation, number: int) -> None:
    """The writer is closed too: nobody knows what the disk holds."""
    disk = fresh_disk()
    partition = open_partition(disk)
    succeed(partition, append(0, 3))
    disk.fault = fail_nth(operation, number)
    assert "waltz-storage.node" in refusal(partition, session_info(5))
    assert not partition.writer.is_open
    assert "SegmentFailedError" in refusal(partition, session_info(5))
    assert "has changed to 5" in refusal(partition, append(3, 1))
    assert restarted(disk.crash_clone(random(number))).promises.fence in (0, 5)


def test_s3_a_full_disk_delays_a_session_and_loses_nothing() -> None:
    """SN-28."""
    disk = fresh_disk()
    partition = open_partition(disk)
    disk.fault = fail_nth(DiskOperation.WRITE, 1, errno.ENOSPC)
    assert "waltz-storage.node" in refusal(partition, session_info(5))
    assert partition.is_closed_for_space
    partition.reopen()
    assert isinstance(ask(partition, session_info(5)), LastSessionInfoResponse)
    assert partition.promises.fence == 5


def test_s3_a_session_that_got_no_answer_is_forgotten_by_a_restart() -> None:
    """As in the original: only what was answered is promised."""
    disk = fresh_disk()
    partition = open_partition(disk)
    partition.set_access(readable=False, writable=False)
    assert "disabled" in refusal(partition, session_info(5))
    partition.set_access(readable=True, writable=True)
    assert "has changed to 5" in refusal(partition, session_info(4))
    again = restarted(disk.crash_clone(random(1)))
    assert again.promises.fence == 0
    assert isinstance(ask(again, session_info(4)), LastSessionInfoResponse)


def test_s3_offline_recovery_goes_by_the_session_that_began() -> None:
    """SN-18: the fence does not keep the tool out, nor does the tool raise it."""
    disk = fresh_disk()
    partition = open_partition(disk)
    start_session(partition, 3, 2)
    ask(partition, session_info(5))
    partition.set_access(readable=False, writable=False)
    for session in (2, 4, 5):
        tool = LastSessionInfoRequest(SessionId(session), 1, ZERO, offline=True)
        assert "has changed to 3" in refusal(partition, tool)
    tool = LastSessionInfoRequest(SessionId(3), 1, ZERO, offline=True)
    assert isinstance(ask(partition, tool), LastSessionInfoResponse)
    assert partition.promises.fence == 5


# S4: an append that fails in the middle leaves a part of it


@pytest.mark.parametrize("first", [0, 2, 4, 9])
def test_s4_an_append_that_does_not_adjoin_changes_nothing(first: int) -> None:
    """SN-10: neither the data nor the index, however many segments there are."""
    disk = fresh_disk()
    partition = open_partition(disk, threshold=300)
    succeed(partition, append(0, 3))
    names = [f"{DIRECTORY}/0/{name}" for name in disk.list_directory(f"{DIRECTORY}/0")]
    before = {name: disk.content(name) for name in names}
    assert "transaction out of order: expected 3" in refusal(partition, append(first, 8))
    assert {name: disk.content(name) for name in before} == before
    assert len(disk.list_directory(f"{DIRECTORY}/0")) == len(names)
    succeed(partition, append(3, 8))
    assert read_all(partition) == [record_data(number) for number in range(11)]


def test_s4_an_append_that_fails_leaves_what_was_there_and_a_prefix_at_most() -> None:
    """SN-09, SD-16: what was acknowledged is all there, of the rest some whole records."""
    for number in range(1, 8):
        for operation in (DiskOperation.WRITE, DiskOperation.SYNC):
            disk = fresh_disk()
            partition = open_partition(disk, threshold=300)
            succeed(partition, append(0, 3))
            disk.fault = fail_nth(operation, number)
            if not isinstance(ask(partition, append(3, 30)), FailureResponse):
                continue
            for seed in range(3):
                found = read_all(restarted(disk.crash_clone(random(seed))))
                assert 3 <= len(found) <= 33
                assert found == [record_data(number) for number in range(len(found))]


# S5: unassigning what is not assigned destroys what was promised


def test_s5_giving_up_what_is_not_ours_touches_nothing() -> None:
    """SN-27."""
    disk = fresh_disk()
    control = open_control(disk, assigned=())
    partition = make_partition(disk, control)
    partition.open()
    partition.assign()
    start_session(partition, 4, 2)
    partition.unassign(delete_files=False)
    files = {
        name: disk.content(f"{DIRECTORY}/{name}")
        for name in disk.list_directory(DIRECTORY)
        if name.startswith("waltz")
    }
    assert len(files) >= 2
    for delete_files in (False, True):
        with pytest.raises(NotFoundError, match="not assigned"):
            partition.unassign(delete_files=delete_files)
    assert {name: disk.content(f"{DIRECTORY}/{name}") for name in files} == files


# S6: the data's checksum is not verified on write


def test_s6_damaged_data_are_refused_before_they_are_given_an_id() -> None:
    """CS-27: by every decoder of the client's request, and so by the server. A storage node keeps
    what it is given, for a log of the original may hold a wrong checksum and must be copied as it
    is; the last reader finds it, and on the way the record's own checksum covers both."""
    frame = bytes.fromhex(
        "00000007000000030000000200000005ffffffffffffffff0000000000000000000000001122334400000005"
    )
    good = b"\x02" + frame + b"hello" + struct.pack(">I", 0x3610A686)
    assert CLIENT_CODEC.decode(good, 4)
    for offset in range(len(good) - 9, len(good)):
        bad = bytearray(good)
        bad[offset] ^= 1
        with pytest.raises(RemoteProtocolError, match="CRC-32 of the 5 bytes of data"):
            CLIENT_CODEC.decode(bytes(bad), 4)
    partition = open_partition(fresh_disk())
    odd = pack_records(t(0), [NewRecord(bytes(16), 0, b"hello", 0x3610A687)])
    succeed(partition, AppendRecordsRequest(SESSION, 1, ZERO, odd, offline=False))
    assert partition.log.records.read(t(0), count_max=1, bytes_max=1) == odd


# S7: a storage node that stops answering hangs everybody


@pytest.mark.parametrize("seed", range(5))
def test_s7_a_node_that_does_not_answer_is_given_up(seed: int) -> None:
    """Every request ends, with an answer, with the connection, or after a time."""

    async def fall_silent(connection: Connection) -> None:
        link = Link(STORAGE_CODEC, "silent")
        connection.write(link.hello())
        while data := await connection.read():
            for message in link.receive(data):
                if isinstance(message, OpenRequest):
                    connection.write(link.encode(SuccessResponse(NO_SESSION, -1, PartitionId(-1))))

    async def test(world: World) -> None:
        silent = Address("silent", 9)
        await world._network.door(Process("silent")).listen(silent, fall_silent)
        host = world._host(Process("server"))
        connections = StorageConnections(host, StoreParams(KEY, 2))
        exchange = await connections.to(ReplicaId(str(silent))).connected()
        outcomes: list[StorageMessage | WaltzError] = []
        began = host.clock.now()
        for _ in range(3):
            exchange.request(lambda link, _: link.encode(session_info(4)), outcomes.append)
        await exchange.over()
        assert host.clock.now() - began <= 2 * STORAGE_REQUEST_SECONDS_MAX
        assert len(outcomes) == 3
        assert isinstance(outcomes[0], OperationTimeoutError)
        assert all(isinstance(outcome, UnavailableError) for outcome in outcomes)
        await connections.close()

    run_node(test, fresh_disk(), seed=seed)


# S8: lists have no limit in bytes


def test_s8_lists_are_bounded_by_bytes_one_by_one_and_together() -> None:
    """SN-12: every answer has a record and fits a frame; those of one turn are bounded."""
    partition = open_partition(fresh_disk())
    for number in range(20):
        succeed(partition, append(number, 1, size=1_000_000))
    request = RecordListRequest(SESSION, 1, ZERO, t(0), RECORD_LIST_RECORDS_MAX)
    sizes = []
    for answer in Drain(partition, [request] * 6).run():
        assert isinstance(answer, RecordListResponse)
        assert len(answer.records) >= 1
        assert len(answer.records.block) <= RECORD_LIST_BYTES_MAX
        assert len(STORAGE_CODEC.encode(answer, 1)) < FRAME_BYTES_MAX
        sizes.append(len(answer.records.block))
    assert sum(sizes) <= DRAIN_BYTES_MAX + 6 * 1_001_000
