"""The embedded coordinator as other processes see it, on real sockets.

What all coordinators promise is in `test_coordinators.py`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from waltz.cluster.cluster_shell import (
    StorageEntry,
    allocate_client_id,
    create_cluster,
)
from waltz.errors import (
    CoordinatorLostError,
)
from waltz.host import Connection
from waltz.system.embedded import EmbeddedCoordinator
from waltz.system.embedded_lines import line
from waltz.system.embedded_server import EmbeddedCoordinatorServer
from waltz.system.tcp_connection import TcpConnection
from waltz.system.tcp_network import RealNetwork
from waltz.types import Address

LOOPBACK = Address("127.0.0.1", 0)

PATIENCE = (0.2, 2.0, 60.0)
"""A client that gives up tells what it has met, if the machine has let it meet anything by then."""


class Scene:
    """A server and its clients; all of them are closed at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.server = self._new_server()
        self._clients: list[EmbeddedCoordinator] = []

    def _new_server(self) -> EmbeddedCoordinatorServer:
        return EmbeddedCoordinatorServer(str(self.path), session_seconds=10.0, grace_seconds=1.0)

    def client(self) -> EmbeddedCoordinator:
        client = EmbeddedCoordinator(self.server.address)
        self._clients.append(client)
        return client

    async def restart(self) -> None:
        address = self.server.address
        await self.server.stop()
        self.server = self._new_server()
        await self.server.start(address)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        await self.server.stop()


def play(tmp_path: Path, story: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        scene = Scene(tmp_path / "coordinator.json")
        await scene.server.start(LOOPBACK)
        try:
            await story(scene)
        finally:
            await scene.close()

    asyncio.run(main())


def cut(client: EmbeddedCoordinator) -> None:
    """End the connection as a broken network does."""
    assert isinstance(client._connection, TcpConnection)
    assert client._connection._transport is not None
    client._connection._transport.abort()


async def eventually(condition: Callable[[], bool]) -> None:
    """Return once `condition` holds; the test's own time limit is the bound."""
    while not condition():
        await asyncio.sleep(0.005)


async def create(coordinator: EmbeddedCoordinator) -> None:
    await create_cluster(
        coordinator,
        name="test",
        partition_count=4,
        cluster_key=UUID(int=1),
        storages=[StorageEntry(Address("h", 1), Address("h", 2))],
    )


def test_fifty_clients_started_together_have_fifty_ids(tmp_path: Path) -> None:
    """CS-07"""

    async def story(scene: Scene) -> None:
        await create(scene.client())
        clients = [scene.client() for _ in range(50)]
        found = await asyncio.gather(*map(allocate_client_id, clients))
        assert sorted(found) == list(range(1, 51))

    play(tmp_path, story)


def test_a_cancelled_wait_is_forgotten_by_the_server(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        client = scene.client()
        waiting = asyncio.ensure_future(client.changed("/a", None))
        sessions = scene.server._sessions
        await eventually(lambda: any(session.waits for session in sessions.values()))
        waiting.cancel()
        await eventually(lambda: not any(session.waits for session in sessions.values()))
        assert await client.children("/") == []

    play(tmp_path, story)


def test_a_closed_client_loses_its_ephemeral_nodes_at_once(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        client, other = scene.client(), scene.client()
        await client.create("/e", b"", ephemeral=True)
        waiting = asyncio.ensure_future(client.changed("/x", None))
        assert await other.children("/") == ["e"]
        await client.close()
        assert await other.children("/") == []
        with pytest.raises(CoordinatorLostError, match="closed"):
            await waiting
        with pytest.raises(CoordinatorLostError, match="closed"):
            await client.children("/")
        await client.close()

    play(tmp_path, story)


def test_a_client_that_comes_back_in_time_keeps_its_session(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        client, other = scene.client(), scene.client()
        await client.create("/e", b"", ephemeral=True)
        waiting = asyncio.ensure_future(client.changed("/late", None))
        await asyncio.sleep(0)
        cut(client)
        assert await client.children("/") == ["e"]
        await asyncio.sleep(1.5)  # longer than the grace
        assert await other.children("/") == ["e"]
        await other.create("/late", b"")
        await waiting

    play(tmp_path, story)


def test_a_client_that_stays_away_loses_its_session(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        client, other = scene.client(), scene.client()
        await client.create("/e", b"", ephemeral=True)
        seen = await other.read("/e")
        assert client._task is not None
        client._task.cancel()  # as the end of the process would
        await other.changed("/e", seen)
        assert await other.children("/") == []

    play(tmp_path, story)


def test_a_rebuilt_coordinator_is_a_change_though_all_versions_are_the_same(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        client = scene.client()
        await client.create("/a", b"before")
        seen = await client.read("/a")
        waiting = asyncio.ensure_future(client.changed("/a", seen))
        address = scene.server.address
        await scene.server.stop()

        scene.path = tmp_path / "rebuilt.json"
        scene.server = scene._new_server()
        await scene.server.start(LOOPBACK)
        await scene.client().create("/a", b"after")
        await scene.server.stop()
        scene.server = scene._new_server()
        await scene.server.start(address)

        await waiting
        found = await client.read("/a")
        assert (found.data, found.version) == (b"after", seen.version)
        await client.changed("/a", seen)  # a wait that begins only now, too

    play(tmp_path, story)


def test_what_a_lost_write_did_is_unknown_and_a_lost_read_is_asked_again(tmp_path: Path) -> None:
    async def story() -> None:
        greetings = 0

        async def cut_off_the_first(connection: Connection) -> None:
            nonlocal greetings
            await connection.read()
            greetings += 1
            connection.write(line(session="s", session_seconds=10.0))
            asked = await connection.read()
            if greetings == 2:
                assert b'"call":"children"' in asked
                connection.write(line(id=3, result=["found"]))
                await connection.read()

        listener = await RealNetwork().listen(LOOPBACK, cut_off_the_first)
        client = EmbeddedCoordinator(listener.address)
        calls = [client.create("/a", b""), client.children("/")]
        created, found = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(created, CoordinatorLostError)
        assert created.may_be_written
        assert found == ["found"]
        await client.close()
        await listener.close()

    asyncio.run(story())


def test_a_coordinator_that_is_not_there_is_told_in_bounded_time() -> None:
    async def story() -> None:
        listener = await RealNetwork().listen(LOOPBACK, lambda _: asyncio.sleep(0))
        await listener.close()
        client = EmbeddedCoordinator(listener.address, call_seconds_max=0.2)
        with pytest.raises(CoordinatorLostError, match=f"no coordinator at {listener.address}"):
            await client.changed("/", None)
        with pytest.raises(CoordinatorLostError):
            await client.create("/a", b"")
        await client.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", line(session=1), line(session="s")]
)
def test_somebody_else_at_that_address_is_not_believed(answer: bytes) -> None:
    async def story() -> None:
        async def greet(connection: Connection) -> None:
            await connection.read()
            connection.write(answer)
            await connection.read()

        listener = await RealNetwork().listen(LOOPBACK, greet)
        for seconds in PATIENCE:
            client = EmbeddedCoordinator(listener.address, call_seconds_max=seconds)
            with pytest.raises(CoordinatorLostError, match="no coordinator at ") as raised:
                await client.read("/")
            await client.close()
            if re.search(r": (not|an HTTP port answers)", str(raised.value)):
                break
        else:
            raise AssertionError("nobody has answered") from raised.value
        await listener.close()

    asyncio.run(story())


def test_a_silent_coordinator_is_left_and_tried_again() -> None:
    async def story() -> None:
        greetings = asyncio.Queue[None]()

        async def fall_silent(connection: Connection) -> None:
            await connection.read()
            greetings.put_nowait(None)
            connection.write(line(session="s", session_seconds=0.06))
            while await connection.read():
                pass

        listener = await RealNetwork().listen(LOOPBACK, fall_silent)
        client = EmbeddedCoordinator(listener.address)
        waiting = asyncio.ensure_future(client.changed("/", None))
        for _ in range(3):
            await greetings.get()
        assert not waiting.done()
        await client.close()
        await asyncio.wait([waiting])
        assert isinstance(waiting.exception(), CoordinatorLostError)
        await listener.close()

    asyncio.run(story())
