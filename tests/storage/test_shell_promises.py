"""The node's identity, access and protocol versions, over real loopback and real files."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from uuid import UUID

import pytest

from tests.storage.support import KEY, SESSION, t
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
    next_of,
)
from tests.storage.test_storage_node_shell import run_node
from waltz.errors import CoordinatorLostError, ForeignDirectoryError, WaltzError
from waltz.host import Connection
from waltz.record import join_batches
from waltz.storage.storage_node_shell import StorageNode
from waltz.system.real_host import real_host
from waltz.types import NO_SESSION, Address, PartitionId
from waltz.wire.admin_protocol import (
    ADMIN_CODEC,
    AdminOpenRequest,
    AdminSuccessResponse,
    AssignedPartitionStatusRequest,
    AssignedPartitionStatusResponse,
    MetricsRequest,
    MetricsResponse,
    PartitionAccessRequest,
    PartitionAvailableRequest,
)
from waltz.wire.handshake import Link
from waltz.wire.message import Codec
from waltz.wire.storage_protocol import (
    STORAGE_CODEC,
    LastSessionInfoRequest,
    LastSessionInfoResponse,
    OpenRequest,
    RecordListRequest,
    RecordListResponse,
    ReplicaStateRequest,
    ReplicaStateResponse,
    SessionInfo,
    SuccessResponse,
)


def test_access_by_the_admin_port(tmp_path: Path) -> None:
    """SN-21, CX-07: reads and writes apart, for several partitions at once; the old message sets
    both."""

    async def test(node: StorageNode) -> None:
        talker, admin = await data_talker(node), await admin_talker(node)
        for partition in (P0, P1):
            assert isinstance(await talker.ask(append(0, 0, 3, partition)), SuccessResponse)
        only_reads = PartitionAccessRequest(1, (P0, P1), readable=True, writable=False)
        assert await admin.ask(only_reads) == AdminSuccessResponse(1)
        read = RecordListRequest(SESSION, 1, P1, t(0), 9)
        assert isinstance(await talker.ask(read), RecordListResponse)
        assert "write of partition 1 is disabled" in await talker.refusal(append(2, 3, 1, P1))
        status = await admin.ask(AssignedPartitionStatusRequest(2))
        assert status == AssignedPartitionStatusResponse(2, ((P0, False), (P1, False)))
        only_writes = PartitionAccessRequest(3, (P1,), readable=False, writable=True)
        assert await admin.ask(only_writes) == AdminSuccessResponse(3)
        assert "read of partition 1 is disabled" in await talker.refusal(read)
        assert isinstance(await talker.ask(append(4, 3, 1, P1)), SuccessResponse)
        both = PartitionAvailableRequest(5, (P0, P1), True)
        assert await admin.ask(both) == AdminSuccessResponse(5)
        assert isinstance(await talker.ask(read), RecordListResponse)
        assert isinstance(await talker.ask(append(6, 3, 1, P0)), SuccessResponse)
        for unknown, text in ((P2, "not assigned"), (PartitionId(9), "no partition 9")):
            request = PartitionAccessRequest(7, (unknown,), readable=True, writable=True)
            assert text in await admin.refusal(request)

    run_node(tmp_path, test)


def test_a_node_tells_what_its_replica_is_like(tmp_path: Path) -> None:
    async def test(node: StorageNode) -> None:
        talker = await data_talker(node)
        assert isinstance(await talker.ask(append(0, 0, 3)), SuccessResponse)
        found = SessionInfo(NO_SESSION, t(-1), t(-1))
        assert await talker.ask(ReplicaStateRequest(SESSION, 1, P0)) == ReplicaStateResponse(
            SESSION, 1, P0, found, t(2), node.directory_id, True, True, ()
        )
        admin = await admin_talker(node)
        metrics = await admin.ask(MetricsRequest(1))
        assert isinstance(metrics, MetricsResponse)
        assert json.loads(metrics.metrics_json)["directory_id"] == str(node.directory_id)

    run_node(tmp_path, test)


def test_peers_of_all_versions_append_to_and_read_one_log(tmp_path: Path) -> None:
    """LC-43, SN-09, SN-12: what came in one version is given in each."""

    async def test(node: StorageNode) -> None:
        talkers = [
            await data_talker(node, STORAGE_CODEC.up_to(version))
            for version in STORAGE_CODEC.versions
        ]
        assert [talker.link.version for talker in talkers] == [*STORAGE_CODEC.versions]
        appends = [append(version, 3 * version, 3) for version in STORAGE_CODEC.versions]
        for talker, request in zip(talkers, appends, strict=True):
            assert isinstance(await talker.ask(request), SuccessResponse)
        held = join_batches([request.records for request in appends])
        for talker in talkers:
            answer = await talker.ask(RecordListRequest(SESSION, 7, P0, t(0), 99))
            assert answer == RecordListResponse(SESSION, 7, P0, held)
        path = f"{config(tmp_path).directory}/{P0}/{0:019d}.seg"
        assert Path(path).read_bytes()[128:].startswith(held.block)

    run_node(tmp_path, test)


def test_a_node_that_is_held_to_an_older_version_speaks_that_one(tmp_path: Path) -> None:
    async def test(node: StorageNode) -> None:
        talker = await data_talker(node)
        assert talker.link.version == 1
        assert isinstance(await talker.ask(append(0, 0, 3)), SuccessResponse)

    run_node(tmp_path, test, protocol_version_max=1)


def test_a_block_with_a_wrong_checksum_ends_the_connection_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    """SD-11."""

    async def test(node: StorageNode) -> None:
        talker = await data_talker(node)
        request = append(0, 0, 3)
        frame = bytearray(talker.link.encode(request))
        frame[frame.index(request.records.block) + 40] ^= 1
        talker.connection.write(bytes(frame))
        assert await talker.connection.read() == b""
        assert await next_of(await data_talker(node), P0) == 0

    run_node(tmp_path, test)


def test_a_peer_of_version_0_is_served_as_before(tmp_path: Path) -> None:
    """Servers and tools of the original, which know no other."""

    async def greet(address: Address, codec: Codec) -> tuple[Connection, Link]:
        connection = await real_host(None).network.connect(address)
        link = Link(Codec(codec.magic, (0,), codec.messages), "an older peer")
        connection.write(link.hello())
        while link.version is None:
            link.receive(await connection.read())
        assert link.version == 0
        return connection, link

    async def test(node: StorageNode) -> None:
        talker = Talker(*await greet(node.data_address, STORAGE_CODEC))
        open_request = OpenRequest(NO_SESSION, -1, NOBODY, KEY, 3)
        assert isinstance(await talker.ask(open_request), SuccessResponse)
        assert isinstance(await talker.ask(append(0, 0, 3)), SuccessResponse)
        assert isinstance(
            await talker.ask(LastSessionInfoRequest(SESSION, 1, P0, offline=False)),
            LastSessionInfoResponse,
        )
        newer = Codec(STORAGE_CODEC.magic, (1,), STORAGE_CODEC.messages)
        state = newer.encode(ReplicaStateRequest(SESSION, 2, P0), 1)
        talker.connection.write(state[:1] + b"\0\0" + state[3:])
        assert await talker.connection.read() == b""
        admin = Talker(*await greet(node.admin_address, ADMIN_CODEC))
        assert isinstance(await admin.ask(AdminOpenRequest(-1, KEY, 3)), AdminSuccessResponse)
        request = PartitionAvailableRequest(1, (P0,), False)
        assert await admin.ask(request) == AdminSuccessResponse(1)

    run_node(tmp_path, test)


def test_a_directory_is_registered_before_anything_in_it_is_touched(tmp_path: Path) -> None:
    """CX-03: with the ID that it keeps."""
    told: list[tuple[UUID, bool]] = []

    async def register(directory_id: UUID) -> None:
        told.append((directory_id, (tmp_path / "0").exists()))

    async def test(node: StorageNode) -> None:
        assert node.directory_id == told[-1][0]
        assert isinstance(await (await data_talker(node)).ask(append(0, 0, 1)), SuccessResponse)

    run_node(tmp_path, test, register=register)
    (tmp_path / "other").mkdir()

    async def again(node: StorageNode) -> None:
        assert node.directory_id == told[0][0]

    run_node(tmp_path, again, register=register)
    run_node(tmp_path / "other", nothing, register=register)
    assert told[0] == (told[1][0], False)
    assert told[2][0] != told[0][0]


async def nothing(node: StorageNode) -> None:
    """Start and stop."""


@pytest.mark.parametrize("kind", [ForeignDirectoryError, CoordinatorLostError])
def test_a_directory_that_cannot_be_registered_is_left_alone(
    tmp_path: Path, kind: type[WaltzError]
) -> None:
    """CX-03: no port answers, and whoever may use it can take it. Without the coordinator nobody
    knows who may."""

    async def refuse(directory_id: UUID) -> None:
        raise kind("not here and now")

    async def main() -> None:
        node = StorageNode(real_host(None), config(tmp_path, register=refuse))
        with pytest.raises(kind, match="not here and now"):
            await node.start()
        await node.run()

    asyncio.run(main())
    assert not (tmp_path / "0").exists()
    run_node(tmp_path, nothing)


def test_what_was_restored_at_the_start_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_node(tmp_path, nothing)
    path = tmp_path / "waltz-storage.node"
    content = bytearray(path.read_bytes())
    content[130] ^= 1
    path.write_bytes(content)
    run_node(tmp_path, nothing)
    assert "storage_directory note=" in caplog.text
    assert "copy 1 of the slot of partition 0" in caplog.text
    caplog.clear()
    run_node(tmp_path, nothing)
    assert "storage_directory note=" not in caplog.text
