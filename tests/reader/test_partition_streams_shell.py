"""The connections over which a reader is fed, one after the other for several ranges."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.server.real_server import running_server
from waltz.client.applying.callbacks import NoCallbacks
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.connections.cluster_connection import Role
from waltz.connections.sources_shell import CoordinatorSource
from waltz.errors import CoordinatorLostError, UnavailableError
from waltz.reader.reader_shell import AsyncLogReader
from waltz.types import Address, ClientId


def test_ranges_of_one_server_follow_each_other_on_one_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Role] = []
    open_server = CoordinatorSource.open

    async def counted(
        source: CoordinatorSource, address: Address, role: Role, settings: Any
    ) -> Any:
        opened.append(role)
        return await open_server(source, address, role, settings)

    async def main() -> None:
        async with running_server(tmp_path, partition_count=4) as (host, _):
            async with AsyncWaltzClient(host, NoCallbacks(), ClientOptions()) as client:
                for number in range(8):
                    await client.append(number % 4, b"%d" % number)
            monkeypatch.setattr(CoordinatorSource, "open", counted)
            async with AsyncLogReader(host) as reader:
                for partition in range(4):
                    for first in range(2):
                        (columns,) = [
                            each async for each in reader.read(partition, first, first + 1)
                        ]
                        assert [*columns.data] == [b"%d" % (partition + 4 * first)]
                assert opened.count(Role.STREAM) == 1
                # What ended while it waited is not taken for the next range's fault.
                for idle in reader._streams._idle.values():
                    idle.connection.close()
                (columns,) = [each async for each in reader.read(0, 0, 2)]
                assert [*columns.data] == [b"0", b"4"]
                assert opened.count(Role.STREAM) == 2
            assert not reader._streams._idle

    asyncio.run(asyncio.wait_for(main(), 120.0))


def test_a_reader_that_follows_waits_for_a_coordinator_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the name of the reader comes from there; what it reads does not."""
    attempts: list[int] = []
    allocate = CoordinatorSource.allocate_client_id

    async def lost_at_first(source: CoordinatorSource) -> ClientId:
        attempts.append(len(attempts))
        if len(attempts) < 3:
            raise CoordinatorLostError("the coordinator is away")
        return await allocate(source)

    async def lost(_: CoordinatorSource) -> ClientId:
        raise CoordinatorLostError("the coordinator is away")

    async def main() -> None:
        async with running_server(tmp_path) as (host, _):
            async with AsyncWaltzClient(host, NoCallbacks(), ClientOptions()) as client:
                await client.append(0, b"x")
            monkeypatch.setattr(CoordinatorSource, "allocate_client_id", lost_at_first)
            async with AsyncLogReader(host) as reader:
                columns = await anext(reader.follow(0, 0))
                assert [*columns.data] == [b"x"]
            assert attempts == [0, 1, 2]
            monkeypatch.setattr(CoordinatorSource, "allocate_client_id", lost)
            async with AsyncLogReader(host, timeout_seconds=0.1) as reader:
                with pytest.raises(UnavailableError, match=r"in 0\.1 s: the coordinator is away"):
                    await anext(reader.follow(0, 0))

    asyncio.run(asyncio.wait_for(main(), 120.0))
