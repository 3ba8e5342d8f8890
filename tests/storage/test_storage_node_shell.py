"""The node on its two ports, over real loopback and real files (SN-01 to SN-30)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.storage.support import KEY, OTHER_KEY, SESSION, batch, t
from tests.storage.talkers import (
    NOBODY,
    P0,
    P1,
    P2,
    Talker,
    admin_talker,
    append,
    config,
    data_talker,
)
from waltz.errors import (
    ConfigurationError,
    DirectoryInUseError,
    ForeignDirectoryError,
    RemoteProtocolError,
    UnavailableError,
)
from waltz.limits import DRAIN_BYTES_MAX
from waltz.storage.storage_node_shell import StorageNode
from waltz.system.real_host import real_host
from waltz.types import NO_SESSION, PartitionId, SessionId
from waltz.wire.admin_protocol import (
    AdminLastSessionInfoRequest,
    AdminLastSessionInfoResponse,
    AdminMessage,
    AdminOpenRequest,
    AdminRecordListRequest,
    AdminRecordListResponse,
    AdminSuccessResponse,
    AssignedPartitionStatusRequest,
    AssignedPartitionStatusResponse,
    MetricsRequest,
    MetricsResponse,
    PartitionAssignmentRequest,
    PartitionAvailableRequest,
    SessionInfo,
)
from waltz.wire.storage_protocol import (
    AppendRecordsRequest,
    LastSessionInfoRequest,
    LastSessionInfoResponse,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    OpenRequest,
    RecordListRequest,
    RecordListResponse,
    SetLowWaterMarkRequest,
    SuccessResponse,
)

Test = Callable[[StorageNode], Awaitable[None]]


def run_node(directory: Path, test: Test, **changes: object) -> None:
    """Run `test` on a node of its own, and stop the node cleanly."""

    async def main() -> None:
        node = StorageNode(real_host(None), config(directory, **changes))
        await node.start()
        running = asyncio.create_task(node.run())
        try:
            await asyncio.wait_for(test(node), 60)
        finally:
            await node.stop()
            await node.stop()
        await running

    asyncio.run(main())


def test_appends_are_stored_and_survive_a_restart(tmp_path: Path) -> None:
    """SN-09, SN-30."""

    async def write(node: StorageNode) -> None:
        talker = await data_talker(node)
        talker.send(*(append(number, 10 * number, 10) for number in range(50)))
        answers = await talker.receive(50)
        assert answers == [SuccessResponse(SESSION, number, P0) for number in range(50)]
        mark = SetLowWaterMarkRequest(SessionId(4), 50, P0, t(499), offline=False)
        assert await talker.ask(mark) == SuccessResponse(SessionId(4), 50, P0)

    async def read(node: StorageNode) -> None:
        talker = await data_talker(node)
        request = LastSessionInfoRequest(SessionId(5), 0, P0, offline=False)
        assert await talker.ask(request) == LastSessionInfoResponse(
            SessionId(5), 0, P0, SessionInfo(SessionId(4), t(499), t(499))
        )
        listed = await talker.ask(RecordListRequest(SessionId(5), 1, P0, t(0), 1000))
        assert listed == RecordListResponse(SessionId(5), 1, P0, batch(0, 500))

    run_node(tmp_path, write)
    run_node(tmp_path, read, assigned_partitions=None)


def test_partitions_are_worked_off_side_by_side_each_in_order(tmp_path: Path) -> None:
    """SN-15."""

    async def test(node: StorageNode) -> None:
        talkers = [await data_talker(node) for _ in range(3)]
        for step in range(40):
            for partition, talker in ((P0, talkers[0]), (P1, talkers[1])):
                talker.send(append(step, 5 * step, 5, partition))
            request = MaxTransactionIdRequest(SESSION, step, P0, offline=False)
            talkers[2].send(request)
        for talker in talkers[:2]:
            assert all(isinstance(a, SuccessResponse) for a in await talker.receive(40))
        seen = [
            answer.transaction_id
            for answer in await talkers[2].receive(40)
            if isinstance(answer, MaxTransactionIdResponse)
        ]
        assert len(seen) == 40
        assert seen == sorted(seen)

    run_node(tmp_path, test)


def test_open_request_is_checked_and_must_come_first(tmp_path: Path) -> None:
    """SN-03: the failure is answered and the connection closed."""

    async def test(node: StorageNode) -> None:
        for key, count, text in ((OTHER_KEY, 3, "cluster keys differ"), (KEY, 4, "counts differ")):
            talker = await Talker.connect(node.data_address, admin=False)
            request = OpenRequest(NO_SESSION, -1, NOBODY, key, count)
            assert text in await talker.refusal(request)
            assert await talker.connection.read() == b""
            admin = await Talker.connect(node.admin_address, admin=True)
            assert text in await admin.refusal(AdminOpenRequest(-1, key, count))
            assert await admin.connection.read() == b""
        talker = await Talker.connect(node.data_address, admin=False)
        request_too_early = LastSessionInfoRequest(SessionId(99), 0, P0, offline=False)
        assert "open request must come first" in await talker.refusal(request_too_early)
        admin = await Talker.connect(node.admin_address, admin=True)
        assert "open request must come first" in await admin.refusal(MetricsRequest(1))
        # It did not fence anybody out either (hazard S1).
        assert isinstance(await (await data_talker(node)).ask(append(0, 0, 1)), SuccessResponse)

    run_node(tmp_path, test)


def test_protocols_are_not_mixed(tmp_path: Path) -> None:
    """SN-19: a data connection on the admin port and the reverse, and plain garbage."""

    async def test(node: StorageNode) -> None:
        for address, admin in ((node.data_address, True), (node.admin_address, False)):
            talker = await Talker.connect(address, admin)
            talker.send(
                AdminOpenRequest(-1, KEY, 3)
                if admin
                else OpenRequest(NO_SESSION, -1, NOBODY, KEY, 3)
            )
            assert await talker.connection.read() == b""
        garbage = await Talker.connect(node.data_address, admin=False)
        garbage.connection.write(b"garbage" * 10)
        assert await garbage.connection.read() == b""
        with pytest.raises(RemoteProtocolError):
            garbage.link.receive(b"garbage" * 10)
        assert isinstance(await (await data_talker(node)).ask(append(0, 0, 1)), SuccessResponse)

    run_node(tmp_path, test)


def test_newer_session_fences_out_older_ones_on_receipt(tmp_path: Path) -> None:
    """SN-14."""

    async def test(node: StorageNode) -> None:
        old, new = await data_talker(node), await data_talker(node)
        assert isinstance(await old.ask(append(0, 0, 5)), SuccessResponse)
        await new.ask(LastSessionInfoRequest(SessionId(1), 0, P0, offline=False))
        assert "ConcurrentUpdate" in await old.refusal(append(1, 5, 5))
        assert "ConcurrentUpdate" in await old.refusal(RecordListRequest(SESSION, 2, P0, t(0), 5))
        assert isinstance(await old.ask(append(3, 0, 5, P1)), SuccessResponse)

    run_node(tmp_path, test)


def test_requests_behind_one_that_has_to_be_asked_for_wait_and_stay_in_order(
    tmp_path: Path,
) -> None:
    """The first request of a session is held until the coordinator has said that it was given."""
    asked = asyncio.Event()

    async def latest_session(partition_id: PartitionId) -> SessionId:
        asked.set()
        await asyncio.sleep(0.01)
        return SessionId(1_000)

    async def test(node: StorageNode) -> None:
        talker = await data_talker(node)
        talker.send(
            append(0, 0, 2),
            replace(append(1, 2, 1), session_id=SessionId(900)),
            replace(append(2, 3, 1), session_id=SessionId(900)),
            append(3, 0, 1, P1),
        )
        await asked.wait()
        talker.send(replace(append(4, 4, 1), session_id=SessionId(900)))
        answers = await talker.receive(5)
        of_p0 = [each for each in answers if each.partition_id == P0]  # type: ignore[attr-defined]
        assert [type(each) for each in of_p0] == [SuccessResponse] * 4
        assert [each.sequence_number for each in of_p0] == [0, 1, 2, 4]  # type: ignore[attr-defined]

    run_node(tmp_path, test, latest_session=latest_session)


def test_assignment_by_the_admin_port(tmp_path: Path) -> None:
    """SN-16, SN-20, SN-25, SN-27: in a directory that starts with no partition."""

    async def test(node: StorageNode) -> None:
        talker, admin = await data_talker(node), await admin_talker(node)
        for partition in (P2, PartitionId(7), PartitionId(-5)):
            assert f"Partition:{partition} is not assigned." in await talker.refusal(
                append(0, 0, 1, partition)
            )
        assert await admin.ask(AssignedPartitionStatusRequest(1)) == (
            AssignedPartitionStatusResponse(1, ())
        )
        for _ in range(2):
            request = PartitionAssignmentRequest(2, (P0, P2), True, False)
            assert await admin.ask(request) == AdminSuccessResponse(2)
        names = {path.name for path in tmp_path.iterdir()}
        assert names >= {"0", "2", "waltz-storage.ctl", "waltz-storage.node"}
        assert "1" not in names
        assert isinstance(await talker.ask(append(0, 0, 5, P2)), SuccessResponse)
        assert await admin.ask(PartitionAvailableRequest(3, (P0,), False)) == AdminSuccessResponse(
            3
        )
        assert await admin.ask(AssignedPartitionStatusRequest(4)) == (
            AssignedPartitionStatusResponse(4, ((P0, False), (P2, True)))
        )
        assert "not assigned" in await admin.refusal(
            PartitionAssignmentRequest(5, (P2, P1), False, True)
        )
        assert "no partition 3; expected 0 to 2" in await admin.refusal(
            PartitionAssignmentRequest(6, (P1, PartitionId(3)), True, False)
        )
        assert "no partition 9" in await admin.refusal(
            AdminLastSessionInfoRequest(7, PartitionId(9))
        )
        gone = PartitionAssignmentRequest(8, (P2,), False, True)
        assert await admin.ask(gone) == AdminSuccessResponse(8)
        assert list((tmp_path / "2").iterdir()) == []
        assert "not assigned" in await talker.refusal(append(0, 5, 1, P2))
        assert await admin.ask(PartitionAssignmentRequest(9, (P2,), True, False)) == (
            AdminSuccessResponse(9)
        )
        assert isinstance(await talker.ask(append(0, 0, 5, P2)), SuccessResponse)

    run_node(tmp_path, test, assigned_partitions=None)


def test_unavailable_partition_serves_tools_only(tmp_path: Path) -> None:
    """SN-17, SN-18, SN-22, SN-23."""

    async def test(node: StorageNode) -> None:
        talker, admin = await data_talker(node), await admin_talker(node)
        await talker.ask(append(0, 0, 5))
        mark = SetLowWaterMarkRequest(SessionId(2), 1, P0, t(4), offline=False)
        assert isinstance(await talker.ask(mark), SuccessResponse)
        await admin.ask(PartitionAvailableRequest(1, (P0,), False))
        plain = MaxTransactionIdRequest(SessionId(2), 2, P0, offline=False)
        assert "are disabled" in await talker.refusal(plain)
        offline = AppendRecordsRequest(SessionId(2), 3, P0, batch(5, 2), offline=True)
        assert isinstance(await talker.ask(offline), SuccessResponse)
        assert await admin.ask(AdminLastSessionInfoRequest(2, P0)) == AdminLastSessionInfoResponse(
            2, P0, SessionInfo(SessionId(2), t(4), t(4))
        )
        assert await admin.ask(AdminRecordListRequest(3, P0, t(2), 20)) == AdminRecordListResponse(
            3, P0, batch(2, 5)
        )
        await admin.ask(PartitionAvailableRequest(4, (P0,), True))
        assert await talker.ask(plain) == MaxTransactionIdResponse(SessionId(2), 2, P0, t(6))

    run_node(tmp_path, test)


def test_giving_up_a_partition_in_the_middle_of_appends(tmp_path: Path) -> None:
    """SN-26: clean failures, nothing hangs."""

    async def test(node: StorageNode) -> None:
        talker, admin = await data_talker(node), await admin_talker(node)
        talker.send(*(append(number, number, 1) for number in range(300)))
        await admin.ask(PartitionAssignmentRequest(1, (P0,), False, True))
        talker.send(append(300, 300, 1))
        answers = await talker.receive(301)
        kinds = [isinstance(answer, SuccessResponse) for answer in answers]
        assert kinds == sorted(kinds, reverse=True)
        assert not kinds[-1]

    run_node(tmp_path, test)


def test_metrics_are_json(tmp_path: Path) -> None:
    """SN-24."""

    async def test(node: StorageNode) -> None:
        talker, admin = await data_talker(node), await admin_talker(node)
        await talker.ask(append(0, 0, 5))
        answer = await admin.ask(MetricsRequest(1))
        assert isinstance(answer, MetricsResponse)
        shown = json.loads(answer.metrics_json)["partitions"]
        assert list(shown) == ["0", "1"]
        assert shown["0"]["appended_records"] == 5

    run_node(tmp_path, test)


def test_what_is_no_request_is_refused(tmp_path: Path) -> None:
    async def test(node: StorageNode) -> None:
        admin = await admin_talker(node)
        message: AdminMessage = AdminSuccessResponse(4)
        assert "AdminSuccessResponse is not a request to a storage node" in await admin.refusal(
            message
        )
        talker = await data_talker(node)
        assert "not a request" in await talker.refusal(SuccessResponse(SESSION, 1, P0))

    run_node(tmp_path, test)


def test_one_damaged_partition_does_not_stop_the_node(tmp_path: Path) -> None:
    """Hazard D6, SD-05, SD-17."""

    async def write(node: StorageNode) -> None:
        talker = await data_talker(node)
        for partition in (P0, P1):
            await talker.ask(append(0, 0, 5, partition))
            mark = SetLowWaterMarkRequest(SESSION, 1, partition, t(4), offline=False)
            await talker.ask(mark)

    async def read(node: StorageNode) -> None:
        talker, admin = await data_talker(node), await admin_talker(node)
        assert "CorruptionError" in await talker.refusal(
            LastSessionInfoRequest(SessionId(1), 0, P0, offline=False)
        )
        healthy = LastSessionInfoRequest(SessionId(1), 0, P1, offline=False)
        assert isinstance(await talker.ask(healthy), LastSessionInfoResponse)
        assert await admin.ask(AssignedPartitionStatusRequest(1)) == (
            AssignedPartitionStatusResponse(1, ((P0, False), (P1, True)))
        )

    run_node(tmp_path, write)
    data = tmp_path / "0" / f"{0:019d}.seg"
    content = data.read_bytes()
    data.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    run_node(tmp_path, read)
    assert len(data.read_bytes()) == len(content)


def test_torn_tail_is_cut_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def write(node: StorageNode) -> None:
        await (await data_talker(node)).ask(append(0, 0, 5))

    async def read(node: StorageNode) -> None:
        request = MaxTransactionIdRequest(SESSION, 0, P0, offline=False)
        answer = await (await data_talker(node)).ask(request)
        assert answer == MaxTransactionIdResponse(SESSION, 0, P0, t(4))

    run_node(tmp_path, write)
    data = tmp_path / "0" / f"{0:019d}.seg"
    data.write_bytes(data.read_bytes() + batch(5, 1).block[:-1])
    run_node(tmp_path, read)
    assert f"torn_tail_cut partition=0 path={data} next_transaction_id=5" in caplog.text


def test_many_large_appends_wait_for_room(tmp_path: Path) -> None:
    """More bytes than one drain takes: the connection is not read meanwhile, nothing is lost."""

    async def test(node: StorageNode) -> None:
        talker = await data_talker(node)
        size = 1_000_000
        count = 2 * DRAIN_BYTES_MAX // size
        for number in range(count):
            records = batch(number, 1, size=size)
            talker.send(AppendRecordsRequest(SESSION, number, P0, records, offline=False))
        assert await talker.receive(count) == [
            SuccessResponse(SESSION, number, P0) for number in range(count)
        ]

    run_node(tmp_path, test)


def start_error(directory: Path, **changes: object) -> BaseException:
    async def main() -> None:
        node = StorageNode(real_host(None), config(directory, **changes))
        await node.start()
        await node.stop()

    with pytest.raises(ConfigurationError) as caught:
        asyncio.run(main())
    return caught.value


def test_start_is_refused_with_nothing_touched(tmp_path: Path) -> None:
    """SN-03, SD-09, SD-25: what is wrong is in the message."""
    assert "no storage directory" in str(start_error(tmp_path / "absent"))
    with_file = tmp_path / "file"
    with_file.write_bytes(b"")
    assert str(with_file) in str(start_error(with_file))

    async def nothing(_: StorageNode) -> None:
        """Start and stop."""

    directory = tmp_path / "storage"
    directory.mkdir()
    run_node(directory, nothing)
    before = (directory / "waltz-storage.ctl").read_bytes()
    for changes in ({"cluster_key": OTHER_KEY}, {"partition_count": 2}):
        assert isinstance(start_error(directory, **changes), ForeignDirectoryError)
    assert (directory / "waltz-storage.ctl").read_bytes() == before
    run_node(directory, nothing)


def test_second_node_in_one_directory_is_refused(tmp_path: Path) -> None:
    """SD-09."""

    async def test(node: StorageNode) -> None:
        other = StorageNode(real_host(None), config(tmp_path))
        with pytest.raises(DirectoryInUseError, match=str(tmp_path)):
            await other.start()
        assert isinstance(await (await data_talker(node)).ask(append(0, 0, 1)), SuccessResponse)

    run_node(tmp_path, test)


def test_port_in_use_is_refused_and_releases_the_directory(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()

    async def test(node: StorageNode) -> None:
        other = StorageNode(real_host(None), config(second, admin_address=node.data_address))
        with pytest.raises(ConfigurationError, match=str(node.data_address.port)):
            await other.start()
        third = StorageNode(real_host(None), config(second))
        await third.start()
        await third.stop()

    run_node(first, test)


def test_stop_ends_connections_and_requests(tmp_path: Path) -> None:
    """SN-30: under load, again and again; what was answered is there."""
    answered = 0
    for _ in range(10):

        async def load(node: StorageNode) -> None:
            nonlocal answered
            talker = await data_talker(node)
            stopping: asyncio.Task[None] | None = None
            request = MaxTransactionIdRequest(SESSION, 0, P0, offline=False)
            answer = await talker.ask(request)
            assert isinstance(answer, MaxTransactionIdResponse)
            first = answer.transaction_id + 1
            assert first >= answered
            talker.send(*(append(number, first + number, 1) for number in range(200)))
            while data := await talker.connection.read():
                for message in talker.link.receive(data):
                    assert isinstance(message, SuccessResponse)
                    answered = max(answered, first + message.sequence_number + 1)
                if stopping is None:
                    stopping = asyncio.create_task(node.stop())
            assert stopping is not None
            await stopping

        run_node(tmp_path, load)
    assert answered > 0


def broken() -> None:
    raise AssertionError("a bug")


def test_a_bug_in_a_partition_ends_that_one_and_is_seen(tmp_path: Path) -> None:
    """SN-15, SN-24: the others of the node go on, also on the connections that they share."""

    async def write(node: StorageNode) -> None:
        talker = await data_talker(node)
        assert await talker.ask(append(0, 0, 3)) == SuccessResponse(SESSION, 0, P0)
        with pytest.raises(UnavailableError, match="has failed on this node"):
            await node._queues[P0].command(broken)
        assert "has failed on this node" in await talker.refusal(append(1, 3, 3))
        other = append(2, 0, 3, partition=P1)
        assert await talker.ask(other) == SuccessResponse(SESSION, 2, P1)
        admin = await admin_talker(node)
        metrics = await admin.ask(MetricsRequest(0))
        assert isinstance(metrics, MetricsResponse)
        partitions = json.loads(metrics.metrics_json)["partitions"]
        assert [partitions[number]["failed"] for number in "01"] == [1, 0]
        assert "by a bug" in partitions["0"]["problems"][0]
        assert partitions["1"]["problems"] == []
        statuses = await admin.ask(AssignedPartitionStatusRequest(1))
        assert isinstance(statuses, AssignedPartitionStatusResponse)
        assert dict(statuses.statuses) == {P0: False, P1: True}
        assert "has failed on this node" in await admin.refusal(
            PartitionAvailableRequest(2, (P0,), available=False)
        )

    async def read(node: StorageNode) -> None:
        talker = await data_talker(node)
        listed = await talker.ask(RecordListRequest(SessionId(5), 1, P0, t(0), 1000))
        assert listed == RecordListResponse(SessionId(5), 1, P0, batch(0, 3))

    run_node(tmp_path, write)
    run_node(tmp_path, read, assigned_partitions=None)


def test_where_every_bug_is_to_be_seen_it_ends_the_node(tmp_path: Path) -> None:
    async def main() -> None:
        node = StorageNode(real_host(None), config(tmp_path, ends_with_partition=True))
        await node.start()
        with pytest.raises(UnavailableError, match="has failed on this node"):
            await node._queues[P0].command(broken)
        with pytest.raises(AssertionError, match="a bug"):
            await asyncio.wait_for(node.run(), 60)
        await node.stop()

    asyncio.run(main())
