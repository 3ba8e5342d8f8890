"""A live server over TLS that follows the coordinator's policy, while a granted client appends."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.client.applications import Recorder
from tests.client.fake_cluster import until
from tests.server.real_server import running_server
from tests.tls_files import TlsFiles
from waltz.access.policy_watch_shell import AccessConfig
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.cluster.paths import DEFAULT_ROOT
from waltz.cluster.policy_node_shell import read_policy_node, write_policy_node
from waltz.errors import PermissionDeniedError
from waltz.system.real_host import real_host
from waltz.types import PartitionId, TlsSettings

POLICY = """
version: {version}
mode: {mode}
default: deny
roles: {{orders: {{verbs: [append, read], partitions: all}}}}
grants: {{"spiffe://tests/orders": [orders]}}
"""

PARTITIONS = 2
CLIENTS = 2
APPENDS_BETWEEN = 200
"""Appends of all clients between two changes of the policy."""


def test_from_no_policy_over_observing_to_denying_no_append_of_a_granted_client_fails(
    tmp_path: Path,
) -> None:
    files = TlsFiles(tmp_path)

    async def main() -> None:
        async with running_server(
            tmp_path,
            tls=files.peer(),
            access=AccessConfig(follows_coordinator=True),
            partition_count=PARTITIONS,
        ) as (host, server):
            await until(lambda: sum(each.is_open for each in server.state().partitions) == 2)

            def someone(name: str) -> AsyncWaltzClient:
                settings = TlsSettings(files.issue(name), authorities=files.authorities)
                own = replace(real_host(None, settings), coordinator=host.coordinator)
                return AsyncWaltzClient(own, Recorder(), ClientOptions(partitions=[0, 1]))

            appended = [0] * CLIENTS
            is_over = asyncio.Event()

            async def append_for_ever(number: int) -> None:
                async with someone("orders") as client:
                    while not is_over.is_set():
                        await client.append(PartitionId(appended[number] % PARTITIONS), b"x")
                        appended[number] += 1

            async def more() -> None:
                enough = sum(appended) + APPENDS_BETWEEN
                await until(lambda: sum(appended) >= enough)

            async def store(version: int, mode: str) -> None:
                text = POLICY.format(version=version, mode=mode).encode()
                over = await read_policy_node(host.coordinator, DEFAULT_ROOT)
                assert await write_policy_node(host.coordinator, DEFAULT_ROOT, text, over=over)

                def is_so() -> bool:
                    standing = server.state().policy
                    return standing is not None and standing.version == version

                await until(is_so)

            async with asyncio.TaskGroup() as group:
                for number in range(CLIENTS):
                    group.create_task(append_for_ever(number))
                await more()
                async with someone("nobody") as nobody:
                    await nobody.append(PartitionId(0), b"x")
                    assert server.state().policy is None
                    await store(1, "observe")
                    await more()
                    await nobody.append(PartitionId(0), b"x")
                    await store(2, "deny")
                    with pytest.raises(PermissionDeniedError):
                        await nobody.append(PartitionId(0), b"x")
                await more()
                is_over.set()
            marks = [each.high_water_mark for each in server.state().partitions]
            assert sum(mark + 1 for mark in marks if mark is not None) == sum(appended) + 2

    asyncio.run(asyncio.wait_for(main(), 240.0))
