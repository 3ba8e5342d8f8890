"""What a node does by itself, on a simulated disk whose room changes (SN-28, UA-76, UA-80)."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from tests.storage.independent_reader import read_independently
from tests.storage.simulated_node import P0, P1, PeerOfNode, World, append, run_node
from tests.storage.support import DIRECTORY, SESSION, record_data, t
from tests.storage.test_fairness import peer_of
from tests.storage.test_partition_queue_shell import Recorder
from waltz.limits import SPACE_RESERVE_BYTES
from waltz.sim.simulated_disk import DiskOperation, Fault, SimulatedDisk, fail_nth
from waltz.storage.directory.reserve import RESERVE_NAME
from waltz.storage.directory.space import SPACE_HOLD_SECONDS, FreeMinimum
from waltz.storage.log.checked_records import ScrubStep
from waltz.storage.storage_metrics import metrics_json
from waltz.storage.upkeep_shell import SPACE_READING_SECONDS
from waltz.types import SessionId, TransactionId
from waltz.wire.admin_protocol import PartitionAssignmentRequest, PartitionAvailableRequest
from waltz.wire.storage_protocol import (
    AppendRecordsRequest,
    FailureResponse,
    LastSessionInfoRequest,
    LastSessionInfoResponse,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    SetLowWaterMarkRequest,
    StorageMessage,
    SuccessResponse,
    TruncateRequest,
)

MIB = 1 << 20
ROOM = 256 * MIB
MINIMUM = FreeMinimum.parse("32MiB")
A_LOOK = 2 * SPACE_READING_SECONDS
SEG, IDX = (f"{DIRECTORY}/0/{0:019d}.{suffix}" for suffix in ("seg", "idx"))


def disk_of(capacity: int = ROOM) -> SimulatedDisk:
    return SimulatedDisk([DIRECTORY], capacity_bytes=capacity)


def leave_free(disk: SimulatedDisk, free_bytes: int) -> None:
    """Others fill the disk, or make room."""
    assert disk.capacity_bytes is not None
    disk.capacity_bytes += free_bytes - disk.space(DIRECTORY).free_bytes
    assert disk.space(DIRECTORY).free_bytes == free_bytes


def without_journals(fault: Fault) -> Fault:
    """The fault, for all files but journals: their failures have no effect."""

    def judged(operation: DiskOperation, path: str) -> None:
        if ".jnl" not in path:
            fault(operation, path)

    return judged


def test_appends_are_refused_while_space_is_short_and_go_on_by_themselves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """SN-28: clear text, reads and administration go on, nothing is written, no restart."""
    disk = disk_of()

    async def test(world: World) -> None:
        peer, admin = await world.data_peer(), await world.admin_peer()
        for partition in (P0, P1):
            await peer.succeed(append(0, 10, partition=partition))
        leave_free(disk, 31 * MIB)
        await asyncio.sleep(A_LOOK)
        disk.counts.clear()
        for partition in (P0, P1) * 5:
            text = await peer.refusal(append(10, 10, partition=partition))
            assert text.startswith("UnavailableError: no space for appends: the file system of")
            assert "31.0 MiB free of" in text
        assert disk.counts[DiskOperation.WRITE] == disk.counts[DiskOperation.SYNC] == 0
        assert await peer.read(0, 10) == [record_data(number) for number in range(10)]
        assert await peer.last_id() == 9
        await admin.succeed(PartitionAvailableRequest(1, (P0,), False))
        await admin.succeed(PartitionAvailableRequest(2, (P0,), True))
        leave_free(disk, 34 * MIB)
        await asyncio.sleep(A_LOOK)
        await peer.refusal(append(10, 10))
        leave_free(disk, 36 * MIB)
        await asyncio.sleep(A_LOOK)
        await peer.succeed(append(10, 10))

    run_node(test, disk, disk_free_minimum=MINIMUM)
    assert len(read_independently(disk.content(SEG), disk.content(IDX))) == 20
    assert [said.split()[0] for said in caplog.messages if "space" in said] == [
        "space_short",
        "space_low",
    ]


def test_what_is_not_an_append_works_on_a_disk_that_others_have_filled() -> None:
    """SN-28: the reserve is given back for it."""
    disk = disk_of()

    async def test(world: World) -> None:
        peer = await world.data_peer()
        await peer.succeed(append(0, 2000))
        leave_free(disk, 0)
        await asyncio.sleep(A_LOOK)
        assert 0 < disk.space(DIRECTORY).free_bytes <= SPACE_RESERVE_BYTES
        session = SessionId(1)
        for request in (
            LastSessionInfoRequest(session, 0, P0, offline=False),
            TruncateRequest(session, 1, P0, t(1499), offline=False),
        ):
            assert isinstance(
                await peer.ask(request), LastSessionInfoResponse | MaxTransactionIdResponse
            )
        await peer.succeed(SetLowWaterMarkRequest(session, 2, P0, t(1499), offline=False))
        assert "no space" in await peer.refusal(append(1500, 1, session=1))

    run_node(test, disk, disk_free_minimum=MINIMUM)
    assert len(read_independently(disk.content(SEG), disk.content(IDX))) == 1500


def test_the_reserve_is_taken_given_back_and_taken_again() -> None:
    disk = disk_of()

    async def test(world: World) -> None:
        with_reserve = disk.space(DIRECTORY).free_bytes
        for _ in range(2):
            leave_free(disk, SPACE_RESERVE_BYTES - 1)
            await asyncio.sleep(A_LOOK)
            assert disk.space(DIRECTORY).free_bytes == 2 * SPACE_RESERVE_BYTES - 1
            leave_free(disk, with_reserve + SPACE_RESERVE_BYTES)
            await asyncio.sleep(A_LOOK)
            assert disk.space(DIRECTORY).free_bytes == with_reserve

    run_node(test, disk, disk_free_minimum=MINIMUM)
    assert disk.exists(f"{DIRECTORY}/{RESERVE_NAME}")


def test_a_node_without_room_for_its_reserve_starts_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """UA-81: it starts, serves what needs no room, and gets well by itself."""
    disk = disk_of(SPACE_RESERVE_BYTES)

    async def test(world: World) -> None:
        peer = await world.data_peer()
        assert "once 48.0 MiB are free" in await peer.refusal(append(0, 1))
        assert await peer.last_id() == -1
        leave_free(disk, 52 * MIB)
        await asyncio.sleep(A_LOOK)
        await peer.succeed(append(0, 1))

    run_node(test, disk, disk_free_minimum=MINIMUM)
    assert "space_short" in caplog.text


@pytest.mark.parametrize("operation", [DiskOperation.WRITE, DiskOperation.SYNC])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_writer_that_found_no_space_is_opened_again_by_itself(
    operation: DiskOperation, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    """SN-28: reads never stop, what was answered is there, nothing is torn."""
    disk = disk_of()

    async def test(world: World) -> None:
        peer = await world.data_peer()
        await peer.succeed(append(0, 10))
        disk.fault = without_journals(fail_nth(operation, 1, number))
        await peer.refusal(append(10, 10))
        await asyncio.sleep(A_LOOK)
        assert "no space for appends" in await peer.refusal(append(10, 10))
        assert await peer.read(0, 20) == [record_data(number) for number in range(10)]
        session = SessionId(1)
        await peer.ask(LastSessionInfoRequest(session, 0, P0, offline=False))
        await peer.succeed(SetLowWaterMarkRequest(session, 1, P0, t(9), offline=False))
        await asyncio.sleep(SPACE_HOLD_SECONDS + A_LOOK)
        await peer.succeed(append(10, 10, session=1))

    run_node(test, disk, disk_free_minimum=MINIMUM)
    assert len(read_independently(disk.content(SEG), disk.content(IDX))) == 20
    assert caplog.text.count("writer_closed partition=0") == 1
    assert caplog.text.count("space_short") == 1


def test_opening_a_writer_again_is_tried_until_it_works(caplog: pytest.LogCaptureFixture) -> None:
    """What was not durable when the first attempt failed is not taken for durable by the next."""
    disk = disk_of()

    async def test(world: World) -> None:
        peer = await world.data_peer()
        await peer.succeed(append(0, 10))
        disk.fault = fail_nth(DiskOperation.SYNC, 1, errno.ENOSPC, forever=True)
        await peer.refusal(append(10, 10))
        await asyncio.sleep(10 * SPACE_READING_SECONDS)
        disk.fault = None
        await asyncio.sleep(SPACE_HOLD_SECONDS + A_LOOK)
        assert await peer.last_id() == 9
        await peer.succeed(append(10, 10))

    run_node(test, disk, disk_free_minimum=MINIMUM)
    assert len(read_independently(disk.content(SEG), disk.content(IDX))) == 20
    assert caplog.text.count("writer_not_reopened partition=0") == 1


def test_other_failures_wait_for_an_operator() -> None:
    """UA-74: a disk that fails is not one that is full."""
    disk = disk_of()

    async def test(world: World) -> None:
        peer, admin = await world.data_peer(), await world.admin_peer()
        await peer.succeed(append(0, 10))
        disk.fault = fail_nth(DiskOperation.SYNC, 1, errno.EIO)
        await peer.refusal(append(10, 10))
        await asyncio.sleep(100.0)
        assert "SegmentFailedError" in await peer.refusal(append(10, 10))
        await admin.succeed(PartitionAvailableRequest(1, (P0,), True))
        await peer.succeed(append(10, 10))

    run_node(test, disk, disk_free_minimum=MINIMUM)


def test_a_disk_that_does_not_tell_its_room_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = disk_of()

    async def test(world: World) -> None:
        peer = await world.data_peer()
        with monkeypatch.context() as patch:

            def fail(path: str) -> None:
                raise OSError(errno.EIO, "statvfs fails", path)

            patch.setattr(disk, "space", fail)
            await asyncio.sleep(5 * A_LOOK)
            await peer.succeed(append(0, 1))
            state = world.node.state()
            assert not state.is_healthy
            assert "free space of /storage cannot be read" in state.problems()[0]
            assert "statvfs fails" in state.problems()[0]
            node = metrics_json(state)["node"]
            assert node["disk_free_bytes"] is node["disk_bytes"] is None
        await asyncio.sleep(A_LOOK)
        state = world.node.state()
        assert state.is_healthy
        assert metrics_json(state)["node"]["disk_bytes"] == ROOM

    run_node(test, disk, disk_free_minimum=MINIMUM)
    assert caplog.text.count("space_unknown") == 1


def test_a_disk_that_hangs_is_told_though_nobody_asks_the_partitions_for_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(world.node._host.workers, "_hindrance_seconds", lambda: 60.0)
            await asyncio.sleep(30.0)
            state = world.node.state()
            assert not state.is_healthy
            assert "has not told its free space for" in state.problems()[0]
        await asyncio.sleep(60.0)
        assert world.node.state().is_healthy

    run_node(test, disk_of(), disk_free_minimum=MINIMUM)


def test_a_reserve_that_a_quota_refuses_is_told_once_and_named_to_those_who_append(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The file system shows room, so that no amount of free space would end the refusals."""
    disk = disk_of()

    def refuse(operation: DiskOperation, path: str) -> None:
        if operation is DiskOperation.PREALLOCATE and path.endswith(RESERVE_NAME):
            raise OSError(errno.EDQUOT, "quota exceeded", path)

    async def test(world: World) -> None:
        peer = await world.data_peer()
        leave_free(disk, 0)
        await asyncio.sleep(A_LOOK)
        disk.fault = refuse
        leave_free(disk, 200 * MIB)
        await asyncio.sleep(20 * A_LOOK)
        text = await peer.refusal(append(0, 1))
        assert "reserve of 16.0 MiB cannot be taken: [Errno 122] quota exceeded" in text
        assert "are free" not in text
        disk.fault = None
        await asyncio.sleep(A_LOOK)
        await peer.succeed(append(0, 1))
        leave_free(disk, 0)
        await asyncio.sleep(A_LOOK)
        assert "are free" in await peer.refusal(append(1, 1))

    run_node(test, disk, disk_free_minimum=MINIMUM)
    assert caplog.text.count("reserve_failed") == 1


def test_many_partitions_together_stop_at_the_minimum() -> None:
    """Between two readings what was let through is counted."""
    disk = disk_of(SPACE_RESERVE_BYTES + 64 * MIB)

    async def test(world: World) -> None:
        peers = {partition: await world.data_peer() for partition in (P0, P1)}
        written = dict.fromkeys(peers, 0)
        for number in range(80):
            partition = (P0, P1)[number % 2]
            request = append(written[partition], 1, size=MIB, partition=partition)
            written[partition] += isinstance(await peers[partition].ask(request), SuccessResponse)
        assert 0 < sum(written.values()) <= 32
        assert disk.space(DIRECTORY).free_bytes >= 0

    run_node(test, disk, disk_free_minimum=MINIMUM)


SCRUB: dict[str, Any] = {
    "scrub_bytes_per_second": MIB,
    "scrub_interval_seconds": 100.0,
    "scrub_start_seconds": 10.0,
}


def test_records_are_read_again_and_damage_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """UA-76: with its IDs, in every partition, pass after pass."""
    disk = disk_of()
    place = 128 + 5 * 1040 + 36  # the first byte of data of record 5

    async def test(world: World) -> None:
        peer = await world.data_peer()
        await peer.succeed(append(0, 1000, size=1000))
        await peer.succeed(append(0, 100, partition=P1))
        disk.damage(SEG, place, b"x")
        assert len(await peer.read(6, 5)) == 5
        await asyncio.sleep(15.0)
        assert "record 5" in await peer.refusal(LastSessionInfoRequest(SESSION, 0, P0, False))
        counters = world.node.state().scrub
        assert (counters.passes, counters.records, counters.ranges_damaged) == (1, 1099, 1)
        assert counters.bytes_read > 1000 * 1000
        assert counters.last_pass_seconds is not None
        assert 0.9 < counters.last_pass_seconds < 1.5
        await asyncio.sleep(320.0)
        assert counters.passes == 4
        # Put right by hand, it is good again, and what is damaged later is told again.
        disk.damage(SEG, place, record_data(5)[:1])
        await asyncio.sleep(120.0)
        assert await peer.last_id() == 999
        disk.damage(SEG, place, b"x")
        await asyncio.sleep(120.0)
        assert counters.ranges_damaged == 2

    run_node(test, disk, **SCRUB)
    assert caplog.text.count("records_damaged partition=0 first=5 last=5") == 2
    assert "records_damaged partition=1" not in caplog.text


def test_damage_that_a_server_came_across_is_followed_up_between_passes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = disk_of()

    async def test(world: World) -> None:
        peer = await world.data_peer()
        await peer.succeed(append(0, 100))
        await asyncio.sleep(15.0)
        records = world.node.state().scrub.records
        assert records == 100
        places = [128 + sum(40 + len(record_data(n)) for n in range(m)) + 36 for m in (20, 70)]
        for place in places:
            disk.damage(SEG, place, b"x")
        with pytest.raises(AssertionError, match="record 20"):
            await peer.read(20, 1)
        await asyncio.sleep(10.0)
        assert world.node.state().scrub.records == 100 + 98
        assert world.node.state().scrub.passes == 1

    run_node(test, disk, **SCRUB)
    assert "first=20 last=20" in caplog.text
    assert "first=70 last=70" in caplog.text


def test_a_partition_may_be_given_up_while_it_is_read() -> None:
    disk = disk_of()

    async def test(world: World) -> None:
        peer, admin = await world.data_peer(), await world.admin_peer()
        await peer.succeed(append(0, 3000, size=1000))
        await asyncio.sleep(11.0)
        assert 0 < world.node.state().scrub.records < 3000
        await admin.succeed(PartitionAssignmentRequest(1, (P0,), False, True))
        await asyncio.sleep(30.0)
        assert world.node.state().scrub.passes == 1

    run_node(test, disk, **SCRUB)


def test_a_turn_ends_after_the_slice_during_which_something_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Alone in the queue it has several slices."""
    disk = disk_of()

    async def test(world: World) -> None:
        peer = await world.data_peer()
        await peer.succeed(append(0, 3000, size=1000))
        queue = world.node._queues[P0]
        scrub, slices = queue.partition.scrub, 0

        def watched(first: TransactionId, bytes_max: int) -> ScrubStep:
            nonlocal slices
            slices += 1
            if slices == 2:
                request = LastSessionInfoRequest(SESSION, 0, P0, offline=False)
                queue.put(peer_of(Recorder()), [request])
            return scrub(first, bytes_max)

        monkeypatch.setattr(queue.partition, "scrub", watched)
        await asyncio.sleep(SCRUB["scrub_start_seconds"])
        while world.node.state().scrub.bytes_read == 0:
            await asyncio.sleep(0.01)
        assert slices == 2
        await asyncio.sleep(0.6)
        assert slices == 6

    run_node(test, disk, **SCRUB)


def test_scrubbing_can_be_switched_off() -> None:
    disk = disk_of()

    async def test(world: World) -> None:
        peer = await world.data_peer()
        await peer.succeed(append(0, 1000, size=1000))
        await asyncio.sleep(1.0)  # meanwhile the journal is written
        disk.counts.clear()
        await asyncio.sleep(1000.0)
        assert disk.counts[DiskOperation.READ] == 0

    run_node(test, disk, **(SCRUB | {"scrub_bytes_per_second": 0}))


def test_a_bug_found_by_the_upkeep_ends_the_node_with_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        def broken(first: TransactionId, bytes_max: int) -> None:
            raise AssertionError("a bug")

        queue = world.node._queues[P0]
        monkeypatch.setattr(queue.partition, "scrub", broken)
        with pytest.raises(AssertionError, match="a bug"):
            await world.node.run()

    run_node(test, disk_of(), **SCRUB)


async def persist(peer: PeerOfNode, message: StorageMessage) -> None:
    """Ask until it is granted. How much of a refused append is written is unknown, so that is asked
    and the rest sent."""
    while isinstance(await peer.ask(message), FailureResponse):
        await asyncio.sleep(1.0)
        if isinstance(message, AppendRecordsRequest):
            request = MaxTransactionIdRequest(message.session_id, 9, P0, offline=False)
            known = await peer.ask(request)
            if isinstance(known, MaxTransactionIdResponse):
                first, end = known.transaction_id + 1, message.records.next_transaction_id
                assert message.records.first_transaction_id <= first <= end
                if first == end:
                    return
                message = append(first, end - first, size=100, session=message.session_id)


async def work_through(peer: PeerOfNode) -> int:
    """Start sessions, append and truncate, over several segments, and whatever is refused again;
    return the number of records that must be there."""
    count = 0
    for number in range(3):
        session = SessionId(number)
        await persist(peer, LastSessionInfoRequest(session, 0, P0, offline=False))
        mark = t(count - 1)
        await persist(peer, SetLowWaterMarkRequest(session, 1, P0, mark, offline=False))
        for _ in range(4):
            await persist(peer, append(count, 30, size=100, session=number))
            count += 30
        count -= 45
        await persist(peer, TruncateRequest(session, 2, P0, t(count - 1), offline=False))
    await persist(peer, append(count, 1, session=2))
    return count + 1


@pytest.mark.parametrize(
    "operation",
    [DiskOperation.WRITE, DiskOperation.SYNC, DiskOperation.PREALLOCATE, DiskOperation.OPEN],
)
def test_no_space_at_any_step_is_got_over_without_a_restart(operation: DiskOperation) -> None:
    """UA-83: one operation after another finds the disk full, once."""
    number, fired = 0, True
    while fired:
        number += 1
        fired = False
        disk = disk_of()
        fail = fail_nth(operation, number, errno.ENOSPC)

        def fault(found: DiskOperation, path: str) -> None:
            nonlocal fired
            if "reserve" in path or (found is DiskOperation.SYNC and "/0/" not in path):
                # The control and node files are overwritten in place, which takes no space; should
                # their sync fail all the same, that is for an operator.
                return
            try:
                fail(found, path)  # noqa: B023
            except OSError:
                fired = True
                raise

        async def test(world: World) -> None:
            disk.fault = fault  # noqa: B023
            async with asyncio.timeout(100.0):
                count = await work_through(await world.data_peer())
            request = MaxTransactionIdRequest(SessionId(2), 0, P0, offline=False)
            answer = await (await world.data_peer()).ask(request)
            assert isinstance(answer, MaxTransactionIdResponse)
            assert answer.transaction_id == count - 1

        run_node(test, disk, disk_free_minimum=MINIMUM, segment_bytes_threshold=5000)
        names = [name for name in disk.list_directory(f"{DIRECTORY}/0") if name.endswith(".seg")]
        assert len(names) > 1
        for name in names:
            path = f"{DIRECTORY}/0/{name}"
            read_independently(disk.content(path), disk.content(path.replace(".seg", ".idx")))
    assert number > 5
