from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.client.fake_cluster import FakeCluster, run_with_cluster, until
from waltz.connections.connection_shell import ServerConnection
from waltz.errors import ConnectionFailedError, RemoteProtocolError, UnavailableError
from waltz.host import Connection
from waltz.limits import KEEP_ALIVE_SECONDS
from waltz.types import Address, ClientId, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.client_protocol import (
    CLIENT_CODEC,
    AppendRequest,
    HighWaterMarkRequest,
    HighWaterMarkResponse,
)
from waltz.wire.message import Codec

REQUEST_ID = RequestId(ClientId(1), Generation(1), PartitionId(0), 1)


def test_a_question_is_answered_after_the_handshake() -> None:
    async def work(cluster: FakeCluster) -> None:
        connection = await ServerConnection.open(cluster.host, cluster.server.address)
        assert connection.send([HighWaterMarkRequest(REQUEST_ID)]) == []
        assert await connection.receive() == [HighWaterMarkResponse(REQUEST_ID, TransactionId(-1))]
        connection.close()
        connection.close()
        assert await connection.receive() is None
        await until(lambda: not cluster.server.connections)

    run_with_cluster(work)


def test_nobody_there_is_a_failed_connection() -> None:
    async def work(cluster: FakeCluster) -> None:
        address = cluster.server.address
        await cluster.server.stop()
        with pytest.raises(ConnectionFailedError):
            await ServerConnection.open(cluster.host, address)

    run_with_cluster(work)


@pytest.mark.parametrize(
    ("said", "error"),
    [(b"", UnavailableError), (b"HTTP/1.1 400 Bad Request\r\n\r\n", RemoteProtocolError)],
)
def test_who_does_not_greet_as_a_server_is_refused(said: bytes, error: type[Exception]) -> None:
    async def work(cluster: FakeCluster) -> None:
        async def accept(connection: Connection) -> None:
            connection.write(said)

        listener = await cluster.host.network.listen(Address("127.0.0.1", 0), accept)
        with pytest.raises(error):
            await ServerConnection.open(cluster.host, listener.address)
        await listener.close()

    run_with_cluster(work)


def test_what_an_old_server_cannot_carry_is_returned_and_the_rest_is_sent() -> None:
    old = Codec(CLIENT_CODEC.magic, (0,), [k for k in CLIENT_CODEC.messages if not k.SINCE])

    async def work(cluster: FakeCluster) -> None:
        connection = await ServerConnection.open(cluster.host, cluster.server.address)
        append = AppendRequest(REQUEST_ID, TransactionId(-1), (), (1,), (), 0, b"", 0)
        question = HighWaterMarkRequest(REQUEST_ID)
        ((message, error),) = connection.send([question, append, question])
        assert message == append
        assert "upgrade servers" in str(error)
        await until(lambda: cluster.server.received == [question, question])
        connection.close()

    run_with_cluster(work, codec=old)


def test_an_idle_connection_is_kept_alive() -> None:
    """The original's empty frame, after 600 s without a write."""

    class Recording:
        peer = "recorded"
        certificate = None
        is_encrypted = False
        user = None
        token = ""
        unsent_bytes = 0
        trouble = ""

        def __init__(self, connection: Connection) -> None:
            self.inner = connection
            self.written: list[bytes] = []

        async def read(self, wanted: int = 1) -> bytes:
            return await self.inner.read()

        def hand_over(self, receive: Callable[[bytes], None]) -> None: ...
        def pause_reading(self) -> None: ...
        def resume_reading(self) -> None: ...

        def write(self, data: bytes) -> None:
            self.written.append(data)
            self.inner.write(data)

        def send(self, data: bytes) -> None:
            self.write(data)

        def note_held(self, byte_count: int) -> None: ...

        def note_dispensable(self, is_dispensable: bool) -> None: ...
        def flush(self) -> None: ...

        async def drain(self) -> None: ...

        def close(self) -> None:
            self.inner.close()

    async def work(cluster: FakeCluster) -> None:
        connection = await ServerConnection.open(cluster.host, cluster.server.address)
        assert connection._connection is not None
        recording = Recording(connection._connection)
        connection._connection = recording
        timer = connection._timer
        assert timer is not None
        assert timer.when() - asyncio.get_running_loop().time() <= KEEP_ALIVE_SECONDS
        connection.send([HighWaterMarkRequest(REQUEST_ID)])
        connection._watch_idleness()
        assert len(recording.written) == 1
        connection._watch_idleness()
        keep_alive = bytes.fromhex("4c000400000000")
        assert recording.written[1:] == [keep_alive]
        assert await connection.receive()
        connection._watch_idleness()
        assert recording.written[1:] == [keep_alive] * 2, "what is received is no write"
        timer.cancel()
        connection.close()

    run_with_cluster(work)
