"""Logical connections at a server on real sockets."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.client.fake_cluster import until
from tests.server.logical_caller import QUESTION, LogicalCaller
from tests.server.real_server import LOOPBACK, running_server
from tests.tls_files import TlsFiles
from waltz.connections.logical_handshake import Handshake
from waltz.host import Host
from waltz.server.clients.clients_shell import Clients
from waltz.server.clients.contexts import REPEATED, UNKNOWN
from waltz.server.clients.identification import Identification
from waltz.server.clients.reception import Terms
from waltz.server.server_shell import Server
from waltz.system.real_host import real_host
from waltz.types import (
    NOTHING,
    ClientId,
    Generation,
    NameSource,
    PartitionId,
    RequestId,
    ServerId,
    TlsSettings,
)
from waltz.wire.batch_protocol import FeedBatch
from waltz.wire.client_protocol import (
    CLIENT_CODEC,
    AppendRequest,
    FeedRequest,
    FlushRequest,
    HighWaterMarkResponse,
    MountRequest,
    MountResponse,
    MountState,
)
from waltz.wire.fed import Fed, fed_together
from waltz.wire.lifecycle_protocol import (
    Acknowledgement,
    ConnectionEnd,
    Feature,
    HandshakeCode,
    Heartbeat,
    ProtocolVersion,
)
from waltz.wire.logical_link import Shared
from waltz.wire.retained import RETAINED_BYTES_MAX

Scene = Callable[[Host, Server], Awaitable[None]]


def play(directory: Path, scene: Scene, **settings: Any) -> None:
    async def main() -> None:
        async with running_server(directory, **settings) as (host, server):
            await until(lambda: any(p.is_open for p in server.state().partitions))
            await scene(host, server)

    asyncio.run(asyncio.wait_for(main(), 240.0))


def request_id(number: int, client: int = 7) -> RequestId:
    return RequestId(ClientId(client), Generation(1), PartitionId(0), number)


async def mount(caller: LogicalCaller, sequence: int = 0) -> None:
    for number in range(1, 1000):
        caller.say(MountRequest(request_id(number), NOTHING, sequence))
        if (await caller.hear(MountResponse)).state is MountState.READY:
            return
        await asyncio.sleep(0.05)


def append(number: int) -> AppendRequest:
    return AppendRequest(request_id(number), NOTHING, (), (), (), 0, b"", 0)


def test_what_was_under_way_when_it_broke_comes_after_the_restore(tmp_path: Path) -> None:
    """LC-47, LC-48, LC-54: the mount holds, the append is executed once, its feed is kept."""

    async def scene(host: Host, server: Server) -> None:
        caller = await LogicalCaller.connect(host, server.address)
        await mount(caller)
        caller.say(FeedRequest(request_id(2000), NOTHING), append(2001))
        await until(lambda: server.state().partitions[0].high_water_mark == 0)
        caller.break_off()
        await until(lambda: server.state().broken_connections == 1)
        caller.say(append(2002))
        assert server.state().partitions[0].mounts == 1
        answer = await caller.restore()
        assert answer.restored
        fed: list[Fed] = []
        while len(fed) < 2:
            fed += fed_together(await caller.hear(FeedBatch))
        assert [each.request_id for each in fed] == [request_id(2001), request_id(2002)]
        caller.say(append(2003))
        (last,) = fed_together(await caller.hear(FeedBatch))
        assert (last.transaction_id, last.request_id) == (2, request_id(2003))
        assert server.state().broken_connections == 0

    play(tmp_path, scene)


def test_after_the_timeout_nothing_is_left(tmp_path: Path) -> None:
    """LC-04, LC-49, LC-70, CF-103."""

    async def scene(host: Host, server: Server) -> None:
        callers = [await LogicalCaller.connect(host, server.address) for _ in range(30)]
        await mount(callers[0])
        assert callers[0].agreed.restore_milliseconds == 300
        for caller in callers:
            caller.break_off()
        await until(lambda: server.state().connections == 0)
        assert server.state().retained_bytes == server.state().full_connections == 0
        await until(lambda: server.state().partitions[0].mounts == 0)
        answer = await callers[0].restore()
        assert (answer.restored, answer.text) == (False, UNKNOWN)
        another = await LogicalCaller.connect(host, server.address)
        assert another.agreed.connection_id not in {
            caller.agreed.connection_id for caller in callers
        }
        assert another.agreed.node_id == callers[0].agreed.node_id

    play(tmp_path, scene, restore_seconds=0.3)


def test_an_id_of_nobody_is_unknown_and_a_handshake_follows(tmp_path: Path) -> None:
    """LC-50, LC-53."""

    async def scene(host: Host, server: Server) -> None:
        caller = await LogicalCaller.connect(host, server.address)
        for changes in ({"connection_id": uuid4()}, {"received": 1 << 40}):
            answer = await caller.restore(**changes)
            assert not answer.restored
        again = await LogicalCaller.connect(host, server.address)
        again.say(QUESTION)
        await again.hear(HighWaterMarkResponse)

    play(tmp_path, scene)


def test_who_restores_what_is_not_broken_takes_it_over(tmp_path: Path) -> None:
    """LC-51: never are both live."""

    async def scene(host: Host, server: Server) -> None:
        caller = await LogicalCaller.connect(host, server.address)
        await mount(caller)
        first = caller.connection
        assert (await caller.restore()).restored
        assert await first.read() == b""
        caller.say(QUESTION)
        await caller.hear(HighWaterMarkResponse)
        assert server.state().connections == 1

    play(tmp_path, scene)


def test_who_says_goodbye_is_forgotten_at_once(tmp_path: Path) -> None:
    async def scene(host: Host, server: Server) -> None:
        caller = await LogicalCaller.connect(host, server.address)
        caller.say(ConnectionEnd("bye"))
        await until(lambda: server.state().connections == 0)
        assert not (await caller.restore()).restored

    play(tmp_path, scene)


def test_who_does_not_ask_for_it_is_forgotten_at_once(tmp_path: Path) -> None:
    """LC-32."""

    async def scene(host: Host, server: Server) -> None:
        handshake = Handshake([Feature.HEARTBEAT])
        caller = await LogicalCaller.connect(host, server.address, handshake.request)
        assert caller.agreed.restore_milliseconds == 0
        caller.break_off()
        await until(lambda: server.state().connections == 0)
        assert not (await caller.restore()).restored

    play(tmp_path, scene)


def padding(byte_count: int) -> Shared:
    """Return a message of which a connection is sent so many bytes."""
    shared = Shared(QUESTION)
    shared.frames[5] = bytes(byte_count)
    return shared


def test_who_is_kept_too_much_for_is_given_up(tmp_path: Path) -> None:
    """LC-52: not before more is held for a broken connection than may be."""

    async def scene(host: Host, server: Server) -> None:
        caller = await LogicalCaller.connect(host, server.address)
        await mount(caller)
        caller.break_off()
        await until(lambda: server.state().broken_connections == 1)
        half = padding(RETAINED_BYTES_MAX // 2)
        server._clients.send(1, [half])
        assert RETAINED_BYTES_MAX // 2 <= server.state().retained_bytes <= RETAINED_BYTES_MAX
        server._clients.send(1, [half])
        assert server.state().connections == server.state().retained_bytes == 0
        await until(lambda: server.state().partitions[0].mounts == 0)
        assert not (await caller.restore()).restored

    play(tmp_path, scene)


def test_who_is_given_up_when_its_time_is_up_is_released_once(tmp_path: Path) -> None:
    """LC-49, LC-52: a busy server comes to both in one turn."""

    async def scene(host: Host, server: Server) -> None:
        caller = await LogicalCaller.connect(host, server.address)
        await mount(caller)
        caller.break_off()
        await until(lambda: server.state().broken_connections == 1)
        time.sleep(0.3)  # the timer is overdue
        server._clients.send(1, [padding(RETAINED_BYTES_MAX + 1)])
        assert server.state().connections == server.state().broken_connections == 0
        await until(lambda: server.state().partitions[0].mounts == 0)

    play(tmp_path, scene, restore_seconds=0.2)


def test_a_restore_that_is_repeated_does_not_disturb(tmp_path: Path) -> None:
    """LC-51, LC-54: somebody who has seen the request, and one that was overtaken by the next."""

    async def scene(host: Host, server: Server) -> None:
        caller = await LogicalCaller.connect(host, server.address)
        await mount(caller)
        assert (await caller.restore()).restored
        caller.say(FeedRequest(request_id(2000), NOTHING), append(2001))
        other = LogicalCaller(host, server.address)
        other.agreed, other.link = caller.agreed, caller.link
        answer = await other.restore()
        assert (answer.restored, answer.text) == (False, REPEATED)
        (fed,) = fed_together(await caller.hear(FeedBatch))
        assert fed.request_id == request_id(2001)
        assert (await caller.restore()).restored

    play(tmp_path, scene)


def test_silence_ends_a_tcp_connection_with_a_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """LC-84."""

    async def scene(host: Host, server: Server) -> None:
        caller = await LogicalCaller.connect(host, server.address)
        assert caller.agreed.idle_milliseconds == 300
        with pytest.raises(EOFError):
            await caller.hear(Heartbeat)
        assert "client_idle" in caplog.text
        assert (await caller.restore()).restored

    play(tmp_path, scene, idle_seconds=0.3)


def test_heartbeats_keep_it_alive_and_are_answered(tmp_path: Path) -> None:
    """LC-82: much longer than the idle time-out."""

    async def scene(host: Host, server: Server) -> None:
        caller = await LogicalCaller.connect(host, server.address)
        first = caller.connection
        for _ in range(30):
            await asyncio.sleep(0.1)
            first.write(caller.link.heartbeat(wants_answer=True))
            caller.link.receive(await first.read())
        caller.say(QUESTION)
        await caller.hear(HighWaterMarkResponse)

    play(tmp_path, scene, idle_seconds=2.0)


def test_versions_that_the_server_does_not_speak_are_told_its_own(tmp_path: Path) -> None:
    """LC-35, LC-39, LC-40: on the same connection the client asks again; three times at most."""

    async def scene(host: Host, server: Server) -> None:
        request = replace(Handshake().request, extensions=(("unheard of", b"!"),))
        other = replace(request, version=ProtocolVersion(5, 9, 0))
        caller = await LogicalCaller.connect(host, server.address, other)
        assert caller.agreed.error_code == HandshakeCode.VERSION
        assert caller.agreed.version == (5, 0, 0)
        answer = await caller.ask_first(request)
        assert answer == replace(
            caller.agreed,
            error_code=0,
            text="",
            connection_id=answer.connection_id,  # type: ignore[attr-defined]
            features=frozenset({*Feature}),
            restore_milliseconds=10_000,
        )
        stubborn = await LogicalCaller.connect(host, server.address, other)
        await stubborn.ask_first(other)
        await stubborn.ask_first(other)
        with pytest.raises(EOFError):
            await stubborn.ask_first(other)

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (QUESTION, "HighWaterMarkRequest as first message"),
        (Acknowledgement(0), "Acknowledgement as first message"),
    ],
)
def test_anything_else_first_is_a_fault(
    message: Any, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """LC-03."""

    async def scene(host: Host, server: Server) -> None:
        with pytest.raises(EOFError):
            await LogicalCaller(host, server.address).introduce(message)
        assert reason in caplog.text
        assert server.state().connections == 0

    play(tmp_path, scene)


def test_http_is_closed_at_once_and_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """LC-30: as text and hex."""

    async def scene(host: Host, server: Server) -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        while await reader.read(1000):
            pass
        assert "GET / HTTP/1.1" in caplog.text
        assert "47 45 54 20" in caplog.text

    play(tmp_path, scene)


def test_a_fault_ends_the_logical_connection(tmp_path: Path) -> None:
    async def scene(host: Host, server: Server) -> None:
        caller = await LogicalCaller.connect(host, server.address)
        caller.say(Acknowledgement(1 << 40))
        reason = await caller.ends()
        assert reason is not None
        assert "bytes acknowledged" in reason
        await until(lambda: server.state().connections == 0)

    play(tmp_path, scene)


def test_a_server_that_stops_says_so(tmp_path: Path) -> None:
    async def scene(host: Host, server: Server) -> None:
        caller = await LogicalCaller.connect(host, server.address)
        stopping = asyncio.create_task(server.stop())
        assert await caller.ends() == "the server stops"
        await stopping

    play(tmp_path, scene)


def test_keep_alives_of_the_original_are_taken_in_silence(tmp_path: Path) -> None:
    """LC-85: they are part of the stream."""

    async def scene(host: Host, server: Server) -> None:
        caller = await LogicalCaller.connect(host, server.address)
        caller.connection.write(caller.link.retain(caller.link.link.keep_alive()))
        caller.break_off()
        assert (await caller.restore()).restored
        caller.say(FlushRequest(request_id(1)), QUESTION)
        await caller.hear(HighWaterMarkResponse)

    play(tmp_path, scene)


def test_a_new_connection_outranks_one_that_is_kept(tmp_path: Path, caplog: Any) -> None:
    """LC-54, CS-24: what the older one still has to say counts for nothing."""

    async def scene(host: Host, server: Server) -> None:
        older = await LogicalCaller.connect(host, server.address)
        await mount(older, sequence=0)
        older.break_off()
        older.say(append(2001))
        newer = await LogicalCaller.connect(host, server.address)
        await mount(newer, sequence=1)
        newer.say(FeedRequest(request_id(3000), NOTHING))
        assert not (await older.restore()).restored
        newer.say(append(3001))
        (only,) = fed_together(await newer.hear(FeedBatch))
        assert only.request_id == request_id(3001)
        assert server.state().partitions[0].high_water_mark == 0

    caplog.set_level(logging.DEBUG)
    play(tmp_path, scene)


def test_only_whom_the_same_certificate_names_may_go_on(tmp_path: Path) -> None:
    """LC-51: an ID that somebody else has got hold of is worth nothing."""
    files = TlsFiles(tmp_path)
    hosts = ("127.0.0.1", "localhost")

    def someone(name: str) -> Host:
        return real_host(
            None, TlsSettings(files.issue(name, *hosts), authorities=files.authorities)
        )

    async def nothing(*_: object) -> None: ...

    async def main() -> None:
        host = someone("server")
        clients = Clients(
            host,
            CLIENT_CODEC,
            idle_seconds=30.0,
            restore_seconds=10.0,
            handshake_seconds=10.0,
            identification=Identification((NameSource.COMMON_NAME,)),
            hand_on=nothing,
            tell_all=lambda _: None,
        )
        clients.begin(Terms(uuid4(), ServerId(1), "here"))
        listener = await host.network.listen(LOOPBACK, clients.accept)
        alice = await LogicalCaller.connect(someone("alice"), listener.address)
        alice.break_off()
        await until(lambda: clients.broken_count == 1)
        assert [each.principal for each in clients] == ["CN=alice"]
        owner, alice.host = alice.host, someone("mallory")
        answer = await alice.restore()
        assert (answer.restored, answer.text) == (False, UNKNOWN)
        assert clients.broken_count == 1
        alice.host = owner
        assert (await alice.restore()).restored
        clients.stop()
        await listener.close()

    asyncio.run(asyncio.wait_for(main(), 240.0))
