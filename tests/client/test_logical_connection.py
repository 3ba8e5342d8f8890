"""Clients whose TCP connections are cut, held and lied to, at a server on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.client.applications import Recorder
from tests.client.fake_cluster import until
from tests.server.logical_caller import QUESTION
from tests.server.real_server import LOOPBACK, Proxy, running_server
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.connections.connection_shell import RESTORED, ServerConnection
from waltz.connections.logical_handshake import ConnectionSettings
from waltz.errors import (
    ConnectionUnknownError,
    HandshakeRefusedError,
    LocalProtocolError,
    RemoteProtocolError,
    UnavailableError,
)
from waltz.host import Connection, Host
from waltz.server.server_shell import Server
from waltz.types import ServerId
from waltz.wire.client_protocol import CLIENT_CODEC, HighWaterMarkResponse
from waltz.wire.handshake import Hello
from waltz.wire.lifecycle_protocol import Feature, HandshakeResponse, ProtocolVersion
from waltz.wire.message import Message


@contextlib.asynccontextmanager
async def proxied_server(
    directory: Path, **settings: Any
) -> AsyncIterator[tuple[Host, Server, Proxy]]:
    """A server that is reached through a proxy."""
    proxy = Proxy()
    await proxy.start()
    try:
        async with (
            asyncio.timeout(60),
            running_server(directory, advertised=proxy.address, **settings) as (host, server),
        ):
            proxy.target = server.address
            await until(lambda: any(p.is_open for p in server.state().partitions))
            yield host, server, proxy
    finally:
        await proxy.stop()


async def answers_on(connection: ServerConnection, count: int) -> list[Message]:
    heard: list[Message] = []
    while len(heard) < count:
        messages = await connection.receive()
        assert messages is not None, "it has ended"
        heard += messages
    return heard


def test_appends_are_written_once_and_end_once_while_connections_are_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """LC-04, LC-48, LC-54, LC-71: nothing is mounted anew, and nobody hears of it."""
    count = 600

    async def main() -> None:
        async with proxied_server(tmp_path) as (host, _, proxy):
            recorder = Recorder()
            async with AsyncWaltzClient(
                host, recorder, ClientOptions(max_concurrent_transactions=20)
            ) as client:

                def has_applied(done: int) -> bool:
                    return len(recorder.data) >= done

                async def cut_again_and_again() -> None:
                    for done in range(10, count, 10):
                        await until(partial(has_applied, done))
                        proxy.cut()

                cutting = asyncio.create_task(cut_again_and_again())
                data = [b"%d" % number for number in range(count)]
                ids = await asyncio.gather(*[client.append(0, each) for each in data])
                cutting.cancel()
                await until(lambda: len(recorder.data) == count)
                assert sorted(ids) == list(range(count))
                assert [recorder.data[each] for each in ids] == data
                assert recorder.applied_in(0) == list(range(count))
                assert await client.get_high_water_mark(0) == count - 1
                connections = client.engine._connections
                assert connections._machine._next_sequence == 2, "one for each role"
                assert caplog.text.count("client_restored") > 4
                assert "client_unknown" not in caplog.text
                assert "client_released" not in caplog.text
            assert proxy.count > 6

    caplog.set_level("INFO")
    asyncio.run(main())


def test_a_client_that_closes_leaves_nothing_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """LC-70: it says so, and the server does not wait for it."""

    async def main() -> None:
        async with proxied_server(tmp_path, restore_seconds=3600.0) as (host, server, _):
            async with AsyncWaltzClient(host, Recorder()) as client:
                await client.append(0, b"first")
                # A client opens both at once, and an append needs only one of them.
                await until(lambda: server.state().connections == 2)
            await until(lambda: server.state().connections == 0)

    caplog.set_level("INFO")
    asyncio.run(main())
    assert "client_broken" not in caplog.text


def test_a_connection_that_cannot_be_restored_in_time_is_replaced(tmp_path: Path) -> None:
    """LC-49, LC-72, PM-40: appends under way end one way or the other."""

    async def main() -> None:
        async with proxied_server(tmp_path, restore_seconds=0.2) as (host, server, proxy):
            recorder = Recorder()
            async with AsyncWaltzClient(host, recorder) as client:
                await client.append(0, b"first")
                target, proxy.target = proxy.target, LOOPBACK
                proxy.cut()
                appending = asyncio.create_task(client.append(0, b"second"))
                await until(lambda: server.state().connections == 0)
                proxy.target = target
                assert await appending == 1
                assert recorder.data == [b"first", b"second"]
                connections = client.engine._connections
                assert connections._machine._next_sequence > 2

    asyncio.run(main())


def test_an_answer_that_was_under_way_comes_after_a_restore(tmp_path: Path) -> None:
    """LC-46: the server is the same whatever address it is reached by."""

    async def main() -> None:
        async with proxied_server(tmp_path) as (host, server, proxy):
            connection = await ServerConnection.open(host, proxy.address, RESTORED)
            assert connection.agreement is not None
            assert connection.agreement.node_name == server.state().advertised
            proxy.may_flow.clear()
            connection.send([QUESTION])
            proxy.cut()
            assert await connection.receive() is None
            connection.break_off()
            connection.send([QUESTION])
            proxy.may_flow.set()
            await connection.restore(server.address)
            answers = await answers_on(connection, 2)
            assert {type(answer) for answer in answers} == {HighWaterMarkResponse}
            assert server.state().connections == 1
            connection.close()
            await until(lambda: server.state().connections == 0)
            with pytest.raises(LocalProtocolError, match="RESTORE was not agreed on"):
                await (await ServerConnection.open(host, server.address)).restore(server.address)

    asyncio.run(main())


def test_a_server_that_answers_nothing_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """LC-83: nothing says that the connection has ended."""
    patient = ConnectionSettings(heartbeat_interval_seconds=0.2, heartbeat_timeout_seconds=60.0)
    settings = replace(patient, heartbeat_timeout_seconds=0.3)

    async def main() -> None:
        async with proxied_server(tmp_path) as (host, _, proxy):
            connection = await ServerConnection.open(host, proxy.address, patient)
            for _ in range(5):
                assert await connection.receive() == [], "an answer to a heartbeat"
            connection.close()
            connection = await ServerConnection.open(host, proxy.address, settings)
            assert "server_silent" not in caplog.text
            proxy.may_flow.clear()
            while await connection.receive() is not None:
                pass
            assert "server_silent" in caplog.text
            assert connection.is_restorable
            connection.break_off()
            proxy.may_flow.set()

    asyncio.run(main())


def test_a_server_process_that_was_replaced_knows_nothing(tmp_path: Path) -> None:
    """LC-50."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()

    async def main() -> None:
        async with (
            running_server(tmp_path / "one") as (host, server),
            running_server(tmp_path / "two") as (_, other),
        ):
            connection = await ServerConnection.open(host, server.address, RESTORED)
            connection.break_off()
            with pytest.raises(ConnectionUnknownError, match="connection unknown"):
                await connection.restore(other.address)

    asyncio.run(main())


async def lying_server(host: Host, *answers: bytes) -> Any:
    """Listen, and answer whatever comes with one of `answers` each time."""

    async def accept(connection: Connection) -> None:
        for answer in answers:
            connection.write(answer)
            await connection.read()
        while await connection.read():
            pass

    return await host.network.listen(LOOPBACK, accept)


REFUSED = HandshakeResponse(
    ProtocolVersion(5, 0, 0), 7, "auth", UUID(int=0), UUID(int=0), ServerId(0), "n", 0, 0,
    frozenset(), (),
)  # fmt: skip


@pytest.mark.parametrize(
    ("answers", "error", "text"),
    [
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], RemoteProtocolError, "an HTTP port answers there"),
        ([Hello((5,), "s").encode(), CLIENT_CODEC.encode(REFUSED, 5)],
         HandshakeRefusedError, "code 7: 'auth'"),
        ([Hello((5,), "s").encode(), CLIENT_CODEC.encode(QUESTION, 5)],
         RemoteProtocolError, "HighWaterMarkRequest as answer"),
        ([Hello((9,), "s").encode()], RemoteProtocolError, r"no common version .*\[9\]"),
    ],
)  # fmt: skip
def test_what_is_no_server_of_ours_is_refused(
    answers: list[bytes], error: type[Exception], text: str, tmp_path: Path
) -> None:
    """LC-30, LC-38, LC-40."""

    async def main() -> None:
        async with running_server(tmp_path) as (host, _):
            listener = await lying_server(host, *answers)
            with pytest.raises(error, match=text):
                await ServerConnection.open(host, listener.address)
            await listener.close()

    asyncio.run(main())


def test_a_server_that_says_nothing_is_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LC-03, LC-37."""
    monkeypatch.setattr("waltz.connections.connection_shell.HANDSHAKE_SECONDS_MAX", 0.2)

    async def main() -> None:
        async with running_server(tmp_path) as (host, _):
            for answers in ([], [Hello((5,), "s").encode()]):
                listener = await lying_server(host, *answers)
                with pytest.raises(UnavailableError, match=r"sent no Hello in 0\.2 s"):
                    await ServerConnection.open(host, listener.address)
                await listener.close()

    asyncio.run(main())


def test_features_are_in_the_agreement(tmp_path: Path) -> None:
    """LC-33, LC-41."""

    async def main() -> None:
        async with running_server(tmp_path) as (host, server):
            connection = await ServerConnection.open(host, server.address)
            assert connection.agreement is not None
            agreed = {Feature.HEARTBEAT, Feature.HEADERS, Feature.HISTORY, Feature.DENIALS}
            assert connection.agreement.features == agreed
            assert connection.agreement.version == (5, 0, 0)
            assert connection.agreement.node_id == server.state().server_id
            connection.close()

    asyncio.run(main())
