"""Connections to storage nodes of this release and of older ones, on virtual time."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.storage.simulated_node import DATA, World, run_node
from tests.storage.support import DIRECTORY_ID, KEY, ZERO, fresh_disk, t
from waltz.cluster.store_params import StoreParams
from waltz.errors import LocalProtocolError, RemoteStorageError, WaltzError
from waltz.host import Connection, Host
from waltz.limits import OBSTACLE_SECONDS
from waltz.sim.loop import Process
from waltz.store.storage_connections_shell import (
    STORAGE_RECONNECT_SECONDS_MAX,
    MakeFrame,
    StorageConnections,
    StorageExchange,
)
from waltz.types import NO_SESSION, NOTHING, Address, PartitionId, ReplicaId, SessionId
from waltz.wire.handshake import Link
from waltz.wire.message import Codec
from waltz.wire.storage_protocol import (
    STORAGE_CODEC,
    LastSessionInfoRequest,
    LastSessionInfoResponse,
    OpenRequest,
    ReplicaStateRequest,
    ReplicaStateResponse,
    SessionInfo,
    StorageMessage,
    SuccessResponse,
)

SESSION = SessionId(4)
OLD = Address("old", 9)
FRESH = SessionInfo(NO_SESSION, NOTHING, NOTHING)


def state_request(link: Link, number: int) -> bytes:
    return link.encode(ReplicaStateRequest(SESSION, number, ZERO))


def session_request(link: Link, number: int) -> bytes:
    return link.encode(LastSessionInfoRequest(SESSION, number, ZERO, offline=False))


def unknown_request(link: Link, number: int) -> bytes:
    return link.encode(ReplicaStateRequest(SESSION, number, PartitionId(7)))


async def ask(exchange: StorageExchange, frame: MakeFrame) -> StorageMessage:
    outcome: asyncio.Future[StorageMessage] = asyncio.get_running_loop().create_future()

    def done(answer: StorageMessage | WaltzError) -> None:
        if isinstance(answer, WaltzError):
            outcome.set_exception(answer)
        else:
            outcome.set_result(answer)

    exchange.request(frame, done)
    return await outcome


def connections(host: Host) -> StorageConnections:
    return StorageConnections(host, StoreParams(KEY, 2))


async def serve_as_the_original(connection: Connection) -> None:
    """Greet with version 0 alone, and answer what it knows."""
    link = Link(Codec(STORAGE_CODEC.magic, (0,), STORAGE_CODEC.messages), "an older node")
    connection.write(link.hello())
    while data := await connection.read():
        for message in link.receive(data):
            match message:
                case OpenRequest():
                    answer: StorageMessage = SuccessResponse(NO_SESSION, -1, PartitionId(-1))
                case LastSessionInfoRequest(session_id, number, partition_id):
                    answer = LastSessionInfoResponse(session_id, number, partition_id, FRESH)
                case _:
                    raise AssertionError(f"the original does not know {message}")
            connection.write(link.encode(answer))


@pytest.mark.parametrize("seed", range(3))
def test_a_node_of_this_release_is_asked_what_it_alone_knows(seed: int) -> None:
    """Version 1."""

    async def test(world: World) -> None:
        nodes = connections(world._host(Process("server")))
        exchange = await nodes.to(ReplicaId(str(DATA))).connected()
        assert exchange.is_repairable
        state = await ask(exchange, state_request)
        assert isinstance(state, ReplicaStateResponse)
        assert (state.session_info, state.transaction_id) == (FRESH, t(-1))
        assert state.directory_id == world.node.directory_id != DIRECTORY_ID
        assert (state.readable, state.writable, state.damaged) == (True, True, ())
        with pytest.raises(RemoteStorageError, match="not assigned"):
            await ask(exchange, unknown_request)
        await nodes.close()

    run_node(test, fresh_disk(), seed=seed)


@pytest.mark.parametrize("seed", range(3))
def test_a_node_of_the_original_is_asked_what_it_knows_and_nothing_else(seed: int) -> None:
    """Version 0: what it would not understand is never sent, and the connection goes on."""

    async def test(world: World) -> None:
        await world._network.door(Process("old")).listen(OLD, serve_as_the_original)
        nodes = connections(world._host(Process("server")))
        exchange = await nodes.to(ReplicaId(str(OLD))).connected()
        assert not exchange.is_repairable
        for _ in range(2):
            with pytest.raises(LocalProtocolError, match="ReplicaStateRequest is not supported"):
                await ask(exchange, state_request)
            answer = await ask(exchange, session_request)
            assert isinstance(answer, LastSessionInfoResponse)
            assert answer.session_info == FRESH
        assert exchange.ended is None
        await nodes.close()

    run_node(test, fresh_disk(), seed=seed)


def test_a_node_that_nobody_waits_for_is_not_dialled() -> None:
    """ST-43: it may have been taken out of the cluster for good."""
    attempts = 0

    async def refuse(connection: Connection) -> None:
        nonlocal attempts
        attempts += 1
        connection.close()

    async def test(world: World) -> None:
        nonlocal attempts
        old = world._host(Process(OLD.host))
        listener = await old.network.listen(OLD, refuse)
        nodes = connections(world._host(Process("server")))
        node = nodes.to(ReplicaId(str(OLD)))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100.0):
                await node.connected()
        assert attempts > 5
        await asyncio.sleep(2 * STORAGE_RECONNECT_SECONDS_MAX)
        attempts = 0
        await asyncio.sleep(1_000.0)
        assert attempts == 0
        await listener.close()
        await old.network.listen(OLD, serve_as_the_original)
        assert not (await node.connected()).is_repairable
        await nodes.close()

    run_node(test, fresh_disk())


def test_a_node_that_was_away_for_long_is_found_soon_after_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """ST-43: until then its partitions lack a replica, and the next one lost is one too many. That
    it is away is said again now and then, not at every attempt."""
    caplog.set_level(logging.INFO)

    async def test(world: World) -> None:
        clock = world._host(Process("server")).clock
        nodes = connections(world._host(Process("server")))
        waiting = asyncio.create_task(nodes.to(ReplicaId(str(OLD))).connected())
        away_seconds = 600.0
        await asyncio.sleep(away_seconds)
        told = [each for each in caplog.messages if each.startswith("storage_disconnected")]
        assert 2 < len(told) <= away_seconds / OBSTACLE_SECONDS + 2
        listener = await world._host(Process(OLD.host)).network.listen(OLD, serve_as_the_original)
        since = clock.now()
        await waiting
        assert clock.now() - since < STORAGE_RECONNECT_SECONDS_MAX + 0.1, "virtual time"
        await listener.close()
        await nodes.close()

    run_node(test, fresh_disk())
