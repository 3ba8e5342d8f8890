"""Somebody mounts under another client's ID, at a server on real sockets (see hostile-peers.md)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.client.applications import Recorder
from tests.server.real_server import running_server
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.connections.logical_handshake import Handshake
from waltz.server.server_shell import Server
from waltz.types import NOTHING, Address, ClientId, Generation, PartitionId, RequestId
from waltz.wire.client_protocol import (
    CLIENT_CODEC,
    CLIENT_GREETING,
    MountRequest,
    MountResponse,
    MountState,
)
from waltz.wire.handshake import Link
from waltz.wire.logical_link import LogicalLink
from waltz.wire.message import Message

HIGHEST = 2**31 - 1
ELSEWHERE = "127.0.0.2"


class Forger:
    """Says what it likes, from a host of its choice."""

    def __init__(self, address: Address, version: int, host: str, token: bytes) -> None:
        self._address = address
        self._host = host
        self._token = token
        self._link = Link(CLIENT_CODEC.up_to(version), CLIENT_GREETING, opens=True)
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def mount(self, client_id: ClientId) -> MountState:
        """Mount under `client_id` with a sequence number that none outranks; return the answer."""
        self._reader, self._writer = await asyncio.open_connection(
            *self._address, local_addr=(self._host, 0)
        )
        self._writer.write(self._link.hello())
        while (rest := self._link.greet(await self._read())) is None:
            pass
        logical = LogicalLink(self._link, ())
        if self._link.version == 5:
            self._writer.write(self._link.encode(Handshake((), token=self._token).request))
            while (first := self._link.receive_first(rest)) is None:
                rest = await self._read()
            rest = first[1]
        self._link.opened()
        request_id = RequestId(client_id, Generation(1), PartitionId(0), HIGHEST)
        mount = MountRequest(request_id, NOTHING, HIGHEST)
        self._writer.write(logical.retain(self._link.encode(mount)))
        heard: list[Message] = [*logical.receive(rest)]
        while True:
            for message in heard:
                if isinstance(message, MountResponse):
                    return message.state
            heard = [*logical.receive(await self._read())]

    async def _read(self) -> bytes:
        if not (data := await self._reader.read(4096)):
            raise EOFError
        return data

    async def leave(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


async def until_open(server: Server) -> None:
    """Return once the partition takes mounts."""
    while not (partitions := server.state().partitions) or partitions[0].reason is not None:
        await asyncio.sleep(0.01)


async def until_connected(server: Server, count: int) -> None:
    while server.state().connections < count:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("victim_version", "forger_version", "host"),
    [(5, 5, "127.0.0.1"), (5, 4, "127.0.0.1"), (4, 4, ELSEWHERE), (4, 5, "127.0.0.1")],
)
def test_a_living_client_keeps_its_id_from_who_cannot_prove_to_be_it(
    tmp_path: Path, victim_version: int, forger_version: int, host: str
) -> None:
    async def play() -> None:
        async with running_server(tmp_path) as (machine, server):
            options = ClientOptions(protocol_version_max=victim_version)
            victim = AsyncWaltzClient(machine, Recorder(), options)
            async with victim:
                await victim.append(0, b"before")
                forger = Forger(server.address, forger_version, host, b"not the victim's")
                assert await forger.mount(victim.client_id) is MountState.NOT_READY
                assert await victim.append(0, b"beside", timeout_seconds=20) == 1
                await forger.leave()
                assert await victim.append(0, b"after", timeout_seconds=20) == 2

    asyncio.run(play())


@pytest.mark.parametrize("version", [4, 5])
def test_who_came_first_under_an_id_holds_it_until_it_leaves(tmp_path: Path, version: int) -> None:
    """The client whose ID it is waits as long as the forger stays, and not a moment longer."""

    async def play() -> None:
        async with running_server(tmp_path) as (machine, server):
            await until_open(server)
            forger = Forger(server.address, version, "127.0.0.1", b"not the victim's")
            assert await forger.mount(ClientId(1)) is MountState.READY
            options = ClientOptions(protocol_version_max=5)
            async with AsyncWaltzClient(machine, Recorder(), options) as victim:
                assert victim.client_id == 1
                appending = asyncio.create_task(victim.append(0, b"in the end"))
                await until_connected(server, 3)
                assert not appending.done()
                await forger.leave()
                assert await asyncio.wait_for(appending, 60) == 0

    asyncio.run(play())


def test_a_client_without_proof_comes_back_once_the_forger_at_its_host_has_left(
    tmp_path: Path,
) -> None:
    """Versions 0 to 4 from one host cannot be told apart: the newer connection counts while it
    lives, and the other one is cut off, or it would never mount again."""

    async def play() -> None:
        async with running_server(tmp_path) as (machine, server):
            options = ClientOptions(protocol_version_max=4)
            async with AsyncWaltzClient(machine, Recorder(), options) as victim:
                await victim.append(0, b"before")
                forger = Forger(server.address, 4, "127.0.0.1", b"")
                assert await forger.mount(victim.client_id) is MountState.READY
                await forger.leave()
                assert await victim.append(0, b"after", timeout_seconds=30) == 1

    asyncio.run(play())


def test_a_token_has_one_length(tmp_path: Path) -> None:
    async def play() -> None:
        async with running_server(tmp_path) as (_, server):
            forger = Forger(server.address, 5, "127.0.0.1", b"short")
            with pytest.raises(EOFError):
                await forger.mount(ClientId(1))

    asyncio.run(play())
