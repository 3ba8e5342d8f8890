"""What a tool asks a storage node, against real nodes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from uuid import UUID

import pytest

from tests.cli.storage_nodes import PARAMS, fill, run_nodes
from waltz.cli.storage_questions import (
    StorageReport,
    admin_address_of,
    ask_session,
    ask_storage,
    problems_in,
    talk_to_data_port,
)
from waltz.cluster.store_params import StoreParams
from waltz.errors import ConfigurationError, RemoteStorageError
from waltz.host import Host
from waltz.operators.conversation_shell import talk_to_admin_port
from waltz.storage.storage_node_shell import StorageNode
from waltz.system.real_host import real_host
from waltz.types import PartitionId, ReplicaId, SessionId, TransactionId
from waltz.wire.admin_protocol import (
    AdminSuccessResponse,
    PartitionAvailableRequest,
    SessionInfo,
)

ZERO, ONE, TWO = map(PartitionId, range(3))


async def report(host: Host, node: StorageNode) -> StorageReport:
    replica_id = ReplicaId(str(node.data_address))
    return await ask_storage(host, replica_id, {replica_id: node.admin_address.port}, PARAMS)


def test_a_node_that_is_well_says_what_it_has_taken(tmp_path: Path) -> None:
    """TL-55"""

    async def story(node: StorageNode) -> None:
        found = await report(real_host(None), node)
        assert found == StorageReport(None, None, {ZERO: True, ONE: True})
        assert found.told() == ()

    run_nodes(tmp_path, 1, story)


def test_what_it_knows_of_trouble_is_told(tmp_path: Path) -> None:
    """MT-50, TL-20: an obstacle to servers, and damage."""

    async def story(node: StorageNode) -> None:
        host = real_host(None)
        async with talk_to_admin_port(host, node.admin_address, PARAMS) as talk:
            request = PartitionAvailableRequest(0, (ONE,), False)
            await talk.ask(request, AdminSuccessResponse)
        node._queues[ZERO].partition.damage = RemoteStorageError("its directory is gone")
        found = await report(host, node)
        assert found.usable == {ZERO: False, ONE: False}
        assert found.told() == (
            "partition 0: refuses all service: its directory is gone",
            "partition 1: an administrator has closed it to reads and writes of servers",
        )

    run_nodes(tmp_path, 1, story)


def test_sessions_and_marks_are_told_per_partition(tmp_path: Path) -> None:
    """TL-20"""

    async def story(node: StorageNode) -> None:
        await fill(node, 7)
        async with talk_to_admin_port(real_host(None), node.admin_address, PARAMS) as talk:
            mark = TransactionId(6)
            assert await ask_session(talk, ZERO) == SessionInfo(SessionId(5), mark, mark)
            with pytest.raises(RemoteStorageError, match="Partition:2 is not assigned"):
                await ask_session(talk, TWO)

    run_nodes(tmp_path, 1, story)


def test_a_node_of_another_cluster_says_which_keys_differ(tmp_path: Path) -> None:
    """SN-03, CM-06, UA-102"""

    async def story(node: StorageNode) -> None:
        host, other = real_host(None), StoreParams(UUID(int=1), 3)
        for door, address in (
            (talk_to_data_port, node.data_address),
            (talk_to_admin_port, node.admin_address),
        ):
            with pytest.raises(RemoteStorageError, match="cluster keys differ"):
                async with door(host, address, other):
                    raise AssertionError
        replica_id = ReplicaId(str(node.data_address))
        found = await ask_storage(host, replica_id, {}, other)
        assert found.trouble is not None
        assert "cluster keys differ" in found.trouble
        told = found.unreachable()
        assert told is not None
        assert "no admin port of storage node" in told
        found = await ask_storage(host, replica_id, {replica_id: node.admin_address.port}, other)
        told = found.unreachable()
        assert told is not None
        assert told.startswith("cannot be used by servers and tools: "), "it answers: it refuses"

    run_nodes(tmp_path, 1, story)


def test_whichever_port_does_not_answer_is_named(tmp_path: Path) -> None:
    """TL-26, TL-54"""

    async def story(node: StorageNode) -> None:
        host, replica_id = real_host(None), ReplicaId(str(node.data_address))
        (told,) = (await ask_storage(host, replica_id, {replica_id: 1}, PARAMS)).told()
        assert told.startswith("cannot be reached by tools: no connection to 127.0.0.1:1: ")
        nowhere = ReplicaId("127.0.0.1:1")
        ports = {nowhere: node.admin_address.port}
        found = await ask_storage(host, nowhere, ports, PARAMS)
        assert found.usable
        (told,) = found.told()
        assert told.startswith("cannot be used by servers: no connection to 127.0.0.1:1: ")

    run_nodes(tmp_path, 1, story)
    nowhere = ReplicaId("127.0.0.1:1")
    found = asyncio.run(ask_storage(real_host(None), nowhere, {nowhere: 2}, PARAMS))
    told = found.unreachable()
    assert told is not None
    assert told.startswith("does not answer: no connection to 127.0.0.1:1")
    assert "127.0.0.1:2" in told


def test_an_admin_port_is_on_the_node_s_own_host() -> None:
    """CM-18"""
    node = ReplicaId("host:6000")
    assert str(admin_address_of(node, {node: 6001})) == "host:6001"
    with pytest.raises(ConfigurationError, match="no admin port of storage node host:6000"):
        admin_address_of(node, {})


@pytest.mark.parametrize(
    "metrics", ["", "{", "[]", "7", '{"partitions": []}', '{"problems": 1, "partitions": {"x": 0}}']
)
def test_metrics_of_another_form_have_no_problems(metrics: str) -> None:
    """A node of the Java original answers with Dropwizard's."""
    assert problems_in(metrics) == ((), {})


def test_problems_are_taken_from_the_metrics() -> None:
    metrics = {"problems": ["full"], "partitions": {"3": {"problems": ["a"]}, "4": {}}}
    assert problems_in(json.dumps(metrics)) == (("full",), {PartitionId(3): ("a",)})
