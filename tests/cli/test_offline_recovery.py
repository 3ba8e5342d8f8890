"""Offline recovery between real nodes (TL-24)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.storage_nodes import PARAMS, SECONDS_MAX, fill, run_nodes
from tests.clusters import run_tool
from tests.storage.support import KEY, batch, t
from tests.storage.talkers import LOOPBACK, admin_talker, config, data_talker
from tests.tls_files import TlsFiles
from waltz.cli.offline_recovery import Copied, CopyJob, Destination, Doors, copy_partition
from waltz.cli.storage_questions import talk_to_data_port
from waltz.cluster.cluster_shell import StorageEntry, create_cluster
from waltz.cluster.partition_metadata import PartitionMetadata, ReplicaState
from waltz.errors import ConfigurationError, RemoteStorageError
from waltz.host import Host
from waltz.operators.conversation_shell import talk_to_admin_port
from waltz.storage.storage_node_shell import StorageNode
from waltz.system.embedded_server import EmbeddedCoordinatorServer
from waltz.system.real_host import real_host
from waltz.types import (
    Generation,
    PartitionId,
    ReplicaId,
    SessionId,
    TransactionId,
    parse_coordinator,
)
from waltz.wire.admin_protocol import (
    AdminLastSessionInfoRequest,
    AdminLastSessionInfoResponse,
    AdminRecordListRequest,
    AdminRecordListResponse,
    AdminSuccessResponse,
    PartitionAvailableRequest,
    SessionInfo,
)
from waltz.wire.storage_protocol import (
    AppendRecordsRequest,
    SetLowWaterMarkRequest,
    SuccessResponse,
)

ZERO = PartitionId(0)


async def set_available(node: StorageNode, available: bool) -> None:
    talker = await admin_talker(node)
    request = PartitionAvailableRequest(0, (ZERO,), available)
    assert await talker.ask(request) == AdminSuccessResponse(0)
    talker.connection.close()


async def fill_offline(host: Host, node: StorageNode, count: int) -> None:
    """Let a node that servers may not use hold `count` records and their mark."""
    head = (SessionId(-1), 0, ZERO)
    async with talk_to_data_port(host, node.data_address, PARAMS) as talk:
        records = AppendRecordsRequest(*head, batch(0, count), offline=True)
        await talk.ask(records, SuccessResponse)
        promise = SetLowWaterMarkRequest(*head, t(count - 1), offline=True)
        await talk.ask(promise, SuccessResponse)


async def session_of(node: StorageNode) -> SessionInfo:
    talker = await admin_talker(node)
    answer = await talker.ask(AdminLastSessionInfoRequest(0, ZERO))
    assert isinstance(answer, AdminLastSessionInfoResponse)
    talker.connection.close()
    return answer.session_info


async def held(node: StorageNode) -> object:
    talker = await admin_talker(node)
    answer = await talker.ask(AdminRecordListRequest(0, ZERO, t(0), 10_000))
    assert isinstance(answer, AdminRecordListResponse)
    talker.connection.close()
    return answer.records


def watching(seen: list[int]) -> Callable[[int], Callable[[int], None]]:
    """Note how many there are, and how many of each batch."""

    def on_total(total: int) -> Callable[[int], None]:
        seen.append(total)
        return seen.append

    return on_total


def doors() -> Doors:
    host = real_host(None)
    return Doors(host, host)


async def copy(
    source: StorageNode,
    destination: StorageNode,
    *,
    seen: list[int] | None = None,
    metadata: PartitionMetadata | None = None,
    batch_records: int = 20,
) -> Copied:
    replica_id = ReplicaId(str(destination.data_address))
    job = CopyJob(
        ZERO,
        source.admin_address,
        Destination(replica_id, destination.data_address, destination.admin_address),
        batch_records,
    )
    found: list[int] = [] if seen is None else seen
    return await copy_partition(doors(), PARAMS, job, metadata, watching(found))


def test_a_blank_partition_is_filled_to_the_source_s_mark(tmp_path: Path) -> None:
    """TL-24: in batches, the mark moves with each; the second run is a no-op."""

    async def story(source: StorageNode, destination: StorageNode) -> None:
        await fill(source, 50)
        await set_available(destination, False)
        seen: list[int] = []
        assert await copy(source, destination, seen=seen) == Copied(t(-1), t(49), 0)
        assert seen == [50, 20, 20, 10]
        assert await session_of(destination) == SessionInfo(SessionId(-1), t(49), t(49))
        seen.clear()
        assert await copy(source, destination, seen=seen) == Copied(t(49), t(49), 0)
        assert seen == [0]
        await set_available(destination, True)
        assert await held(destination) == batch(0, 50)

    run_nodes(tmp_path, 2, story)


def test_what_came_after_the_source_s_session_began_is_left_to_servers(tmp_path: Path) -> None:
    async def story(source: StorageNode, destination: StorageNode) -> None:
        await fill(source, 10)
        talker = await data_talker(source)
        head = (SessionId(5), 0, ZERO)
        request = AppendRecordsRequest(*head, batch(10, 5), offline=False)
        assert await talker.ask(request) == SuccessResponse(*head)
        await set_available(destination, False)
        assert await copy(source, destination) == Copied(t(-1), t(9), 0)

    run_nodes(tmp_path, 2, story)


def test_the_destination_is_cut_to_its_mark_first(tmp_path: Path) -> None:
    """TL-24: what lies beyond may be on no other replica."""

    async def story(source: StorageNode, destination: StorageNode) -> None:
        await fill(source, 30)
        await fill(destination, 4, session=3)
        talker = await data_talker(destination)
        head = (SessionId(3), 0, ZERO)
        stray = AppendRecordsRequest(*head, batch(4, 3), offline=False)
        assert await talker.ask(stray) == SuccessResponse(*head)
        await set_available(destination, False)
        assert await copy(source, destination) == Copied(t(3), t(29), 3)
        assert await session_of(destination) == SessionInfo(SessionId(3), t(29), t(29))
        assert await held(destination) == batch(0, 30)

    run_nodes(tmp_path, 2, story)


def test_a_replica_that_lagged_is_filled_from_where_it_ends(tmp_path: Path) -> None:
    """TL-24: its mark is ahead of what it holds, and never goes back."""

    async def story(source: StorageNode, destination: StorageNode) -> None:
        await fill(source, 30)
        await fill(destination, 4, mark=20)
        assert await session_of(destination) == SessionInfo(SessionId(5), t(20), t(3))
        await set_available(destination, False)
        assert await copy(source, destination, batch_records=10) == Copied(t(3), t(29), 0)
        assert await session_of(destination) == SessionInfo(SessionId(5), t(29), t(29))
        assert await held(destination) == batch(0, 30)

    run_nodes(tmp_path, 2, story)


def test_a_replica_that_its_session_counts_on_is_not_cut(tmp_path: Path) -> None:
    """What would be cut may be the copy that makes a commit."""

    async def story(source: StorageNode, destination: StorageNode) -> None:
        await fill(source, 30)
        await fill(destination, 4)
        talker = await data_talker(destination)
        head = (SessionId(5), 0, ZERO)
        newest = AppendRecordsRequest(*head, batch(4, 3), offline=False)
        assert await talker.ask(newest) == SuccessResponse(*head)
        await set_available(destination, False)
        replica_id = ReplicaId(str(destination.data_address))

        def metadata(mark: TransactionId | None) -> PartitionMetadata:
            state = ReplicaState(SessionId(5), mark)
            return PartitionMetadata(Generation(1), SessionId(6), {replica_id: state})

        with pytest.raises(ConfigurationError, match="holds transactions 4 to 6 of partition 0"):
            await copy(source, destination, metadata=metadata(None))
        assert await held(destination) == batch(0, 7)
        copied = await copy(source, destination, metadata=metadata(t(6)))
        assert copied == Copied(t(3), t(29), 3)

    run_nodes(tmp_path, 2, story)


def test_a_destination_that_servers_use_is_left_alone(tmp_path: Path) -> None:
    async def story(source: StorageNode, destination: StorageNode) -> None:
        await fill(source, 3)
        with pytest.raises(ConfigurationError, match=r"is in use by servers; .* availability"):
            await copy(source, destination)
        await destination._ports._administer(PartitionAvailableRequest(0, (ZERO,), False))
        await destination._queues[ZERO].command(
            lambda: destination._queues[ZERO].partition.unassign(delete_files=True)
        )
        with pytest.raises(
            ConfigurationError, match=r"has not been added to that node; .* add-partition"
        ):
            await copy(source, destination)

    run_nodes(tmp_path, 2, story)


def test_a_copy_that_was_cut_short_goes_on_where_it_was(tmp_path: Path) -> None:
    async def story(source: StorageNode, destination: StorageNode) -> None:
        await fill(source, 50)
        await set_available(destination, False)
        replica_id = ReplicaId(str(destination.data_address))
        job = CopyJob(
            ZERO,
            source.admin_address,
            Destination(replica_id, destination.data_address, destination.admin_address),
            20,
        )

        def stop(_: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            await copy_partition(doors(), PARAMS, job, None, lambda _: stop)
        assert await copy(source, destination) == Copied(t(19), t(49), 0)
        assert await held(destination) == batch(0, 50)

    run_nodes(tmp_path, 2, story)


def test_a_source_that_lacks_what_it_promised_is_named(tmp_path: Path) -> None:
    async def story(source: StorageNode, destination: StorageNode) -> None:
        await fill(source, 50)
        await set_available(destination, False)
        damaged = source._queues[ZERO].partition
        await source._queues[ZERO].command(lambda: damaged.log.truncate(t(24)))
        with pytest.raises(RemoteStorageError, match="has no record 25 of partition 0"):
            await copy(source, destination)
        assert await session_of(destination) == SessionInfo(SessionId(-1), t(24), t(24))

    run_nodes(tmp_path, 2, story)


def test_each_of_the_two_may_be_secured_by_files_of_its_own(tmp_path: Path) -> None:
    """TL-24, TS-06: neither believes in the other's CA, and the command has a file for each."""
    authorities = [TlsFiles(tmp_path), TlsFiles(tmp_path)]
    paths = []
    for number, each in enumerate(authorities):
        paths.append(tmp_path / f"server-{number}.yml")
        paths[-1].write_text(
            "server:\n"
            "  port: 7000\n"
            "  ssl:\n"
            f"    keyStore.location: {each.issue('tool', '127.0.0.1')}\n"
            f"    trustStore.location: {each.authorities}\n"
        )

    async def story() -> None:
        coordinator = EmbeddedCoordinatorServer(str(tmp_path / "coordinator.json"))
        await coordinator.start(LOOPBACK)
        place = str(coordinator.address)
        host = real_host(parse_coordinator(place))
        storages: list[StorageEntry] = []
        await create_cluster(
            host.coordinator, name="two", partition_count=3, cluster_key=KEY, storages=storages
        )
        nodes = []
        for number, each in enumerate(authorities):
            (tmp_path / str(number)).mkdir()
            nodes.append(StorageNode(real_host(None, each.peer()), config(tmp_path / str(number))))
            await nodes[-1].start()
        source, destination = nodes
        for node, each in zip(nodes, authorities, strict=True):
            secured = real_host(None, each.peer())
            async with talk_to_admin_port(secured, node.admin_address, PARAMS) as talk:
                closing = PartitionAvailableRequest(0, (ZERO,), available=False)
                await talk.ask(closing, AdminSuccessResponse)
        await fill_offline(real_host(None, authorities[0].peer()), source, 30)
        recover = (
            *("admin", "storage", "recover-partition", "--cluster", place, "-p", "0"),
            *("-s", str(source.admin_address), "-d", str(destination.admin_address)),
            *("-dp", str(destination.data_address.port)),
        )
        one = await asyncio.to_thread(run_tool, *recover, "-sssl", paths[0], "-dssl", paths[0])
        assert one.code == 1
        assert "certificate" in one.err
        both = await asyncio.to_thread(run_tool, *recover, "-sssl", paths[0], "-dssl", paths[1])
        assert both.code == 0, both
        assert "copied 30 transactions, 0 to 29" in both.out
        for node in nodes:
            await node.stop()
        await host.coordinator.close()
        await coordinator.stop()

    asyncio.run(asyncio.wait_for(story(), SECONDS_MAX))
