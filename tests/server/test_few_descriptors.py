"""A server process that may have 1,024 descriptors, and one address that wants all of them."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.applications import Recorder
from tests.server.real_server import running_server
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.types import Address
from waltz.wire.client_protocol import CLIENT_CODEC, CLIENT_GREETING
from waltz.wire.handshake import Link

CONNECTIONS_PER_PEER = 153
"""A quarter of 60 % of 1,024."""


@pytest.fixture(autouse=True)
def _few_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def greeted(address: Address, host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A peer of version 4 that has greeted and says nothing more."""
    reader, writer = await asyncio.open_connection(*address, local_addr=(host, 0))
    link = Link(CLIENT_CODEC.up_to(4), CLIENT_GREETING, opens=True)
    writer.write(link.hello())
    while data := await reader.read(4096):
        if link.greet(data) is not None:
            break
    return reader, writer


@pytest.mark.parametrize("version", [4, 5])
def test_silent_peers_of_old_versions_keep_nobody_out(tmp_path: Path, version: int) -> None:
    """Neither from their own address nor from others; and a client that is idle stays."""

    async def play() -> None:
        async with running_server(tmp_path) as (machine, server):
            options = ClientOptions(protocol_version_max=version)
            async with AsyncWaltzClient(machine, Recorder(), options) as early:
                await early.append(0, b"before")
                silent = []
                for number in range(200):
                    silent.append(await greeted(server.address, "127.0.0.1"))
                    assert server.state().connections <= CONNECTIONS_PER_PEER + 1, number
                async with AsyncWaltzClient(machine, Recorder(), options) as late:
                    assert await late.append(0, b"late", timeout_seconds=20) == 1
                assert await early.append(0, b"early", timeout_seconds=20) == 2
                for _, writer in silent:
                    writer.close()

    asyncio.run(play())


def test_connections_of_one_address_leave_room_for_another(tmp_path: Path) -> None:
    async def play() -> None:
        async with running_server(tmp_path) as (_, server):
            silent = [await greeted(server.address, "127.0.0.2") for _ in range(200)]
            _, writer = await greeted(server.address, "127.0.0.3")
            assert not writer.is_closing()
            assert server.state().connections <= CONNECTIONS_PER_PEER + 2
            for _, each in (*silent, (None, writer)):
                each.close()

    asyncio.run(play())
