"""A client that stops reading, at a server on real sockets: others go on, memory stays bounded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from zlib import crc32

import pytest

from tests.server.real_server import running_server
from tests.server.test_server_shell import Caller
from waltz.host import Host
from waltz.limits import (
    CONNECTION_UNSENT_BYTES_MAX,
    FRAME_BYTES_MAX,
    READ_BYTES_MAX,
    WRITE_BUFFER_BYTES_HIGH,
)
from waltz.server.feeding.backlog import (
    CONNECTION_BACKLOG_BYTES_MAX,
    CROWDED_BYTES_MIN,
    request_bytes,
)
from waltz.server.server_shell import Server
from waltz.store.requests import AppendToReplica, ReplicaLink, ReplicaRequest
from waltz.system import tcp_network as system_network
from waltz.types import NOTHING, TransactionId
from waltz.wire.before_batches import joined
from waltz.wire.client_protocol import (
    CLIENT_CODEC,
    AppendRequest,
    FeedData,
    FeedRequest,
    FeedSuspended,
    TransactionDataRequest,
    TransactionDataResponse,
)
from waltz.wire.frame import FRAME_HEADER

BODY = bytes(range(256)) * 256
COUNT = 400
"""Bodies of 64 KiB: more than the buffers of two sockets hold."""


async def connected(host: Host, server: Server, client: int) -> Caller:
    caller = Caller(await host.network.connect(server.address), client)
    caller.connection.write(caller.link.hello())
    while caller.link.version is None:
        caller.heard += caller.link.receive(await caller.connection.read())
    await caller.mount()
    return caller


async def hear_feed(caller: Caller, expected: int) -> None:
    """Hear of one transaction, asking for more of the feed where it was suspended."""
    while True:
        message = await caller.hear_any()
        if isinstance(message, FeedSuspended):
            caller.say(FeedRequest(message.request_id, TransactionId(expected - 1)))
        elif isinstance(message, FeedData):
            assert message.transaction_id == expected
            return


async def hear_body(caller: Caller, fed: int) -> None:
    while not isinstance(message := await caller.hear_any(), TransactionDataResponse):
        assert isinstance(message, FeedSuspended)
        caller.say(FeedRequest(message.request_id, TransactionId(fed)))
    assert message.data == BODY


def test_client_that_stops_reading_costs_bounded_memory_and_delays_nobody(tmp_path: Path) -> None:
    """SV-19, CS-29, UA-41: by what the server itself exposes."""

    async def main() -> None:
        async with running_server(tmp_path) as (host, server):
            writer, reader = await connected(host, server, 7), await connected(host, server, 8)
            sleeper = await connected(host, server, 9)
            for number in range(COUNT // 2):
                writer.append(BODY)
                await hear_feed(writer, number)
                await hear_feed(reader, number)
            for _ in range(4):
                sleeper.say(
                    *[
                        TransactionDataRequest(sleeper.id(), TransactionId(number))
                        for number in range(COUNT // 2)
                    ]
                )
            for number in range(COUNT // 2, COUNT):
                writer.append(BODY)
                await hear_feed(writer, number)
                await hear_feed(reader, number)
                reader.say(TransactionDataRequest(reader.id(), TransactionId(number)))
                await hear_body(reader, number)
            state = server.state()
            assert state.full_connections == 1
            assert state.unsent_bytes > WRITE_BUFFER_BYTES_HIGH // 4
            assert state.unsent_bytes_peak <= CONNECTION_UNSENT_BYTES_MAX
            assert state.backlog_bytes_peak <= CONNECTION_BACKLOG_BYTES_MAX + READ_BYTES_MAX
            assert state.partitions[0].pending_requests == 0, "nothing is held up by it"
            fed, bodies = 0, 0
            while fed < COUNT or bodies < 4 * (COUNT // 2):
                message = await sleeper.hear_any()
                if isinstance(message, FeedData):
                    assert message.transaction_id == fed
                    fed += 1
                elif isinstance(message, FeedSuspended):
                    sleeper.say(FeedRequest(message.request_id, TransactionId(fed - 1)))
                else:
                    assert isinstance(message, TransactionDataResponse)
                    assert message.data == BODY
                    bodies += 1
            assert server.state().unsent_bytes_peak <= CONNECTION_UNSENT_BYTES_MAX

    asyncio.run(asyncio.wait_for(main(), 240.0))


def test_writer_that_never_reads_is_read_no_further_than_its_bound(tmp_path: Path) -> None:
    """UA-40: what it sends is decided, what it is owed stays with the log."""

    async def main() -> None:
        async with running_server(tmp_path) as (host, server):
            flood, other = await connected(host, server, 7), await connected(host, server, 8)
            for _ in range(COUNT):
                flood.append(BODY)
            heard = 0
            while heard < COUNT:
                await hear_feed(other, heard)
                heard += 1
            state = server.state()
            assert state.backlog_bytes_peak <= CONNECTION_BACKLOG_BYTES_MAX + READ_BYTES_MAX
            assert state.unsent_bytes_peak <= CONNECTION_UNSENT_BYTES_MAX
            assert (state.backlog_bytes, state.partitions[0].pending_bytes) == (0, 0)

    asyncio.run(asyncio.wait_for(main(), 240.0))


def test_connections_that_hold_too_much_together_end_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """UA-41: one keeps back the rest of a frame, others do not take what they have asked for."""
    monkeypatch.setattr(system_network, "CONNECTIONS_BYTES_MAX", 3 * 1024 * 1024)

    async def until_it_ends(caller: Caller) -> None:
        while await caller.connection.read():
            pass

    async def main() -> None:
        async with running_server(tmp_path) as (host, server):
            writer = await connected(host, server, 7)
            for number in range(COUNT // 2):
                writer.append(BODY)
                await hear_feed(writer, number)
            keeper = await connected(host, server, 8)
            header = FRAME_HEADER.pack(CLIENT_CODEC.magic, keeper.link.version, FRAME_BYTES_MAX)
            keeper.connection.write(header + bytes(2 * 1024 * 1024))
            sleepers = [await connected(host, server, client) for client in (9, 10, 11)]
            asked = [TransactionId(number) for number in range(COUNT // 2)] * 4
            for sleeper in sleepers:
                sleeper.say(*[TransactionDataRequest(sleeper.id(), number) for number in asked])
            await until_it_ends(keeper)
            for number in range(COUNT // 2, COUNT):
                writer.append(BODY)
                await hear_feed(writer, number)
            assert server.state().connections < 5

    asyncio.run(asyncio.wait_for(main(), 240.0))
    assert "this one held most: 2" in caplog.text


def test_body_asked_for_by_a_call_does_not_wait_for_the_batches_of_others(tmp_path: Path) -> None:
    """A client of versions 0 to 4 fetches one body after the other, and starved when each of
    its calls took some turns of the loop in which all others had their batches done."""

    async def main() -> None:
        async with running_server(tmp_path) as (host, server):
            writer, reader = await connected(host, server, 7), await connected(host, server, 8)
            writer.append(BODY)
            await hear_feed(writer, 0)
            await hear_feed(reader, 0)
            clients = {int(client.sorter._client_id or 0): client for client in server._clients}
            (partition,) = server._partitions.running.values()
            behind = AppendRequest(writer.id(), TransactionId(0), (), (), (), 0, b"", 0)
            await server._hand_on(clients[7], [behind])
            # Nothing below lets the loop have a turn.
            question = TransactionDataRequest(reader.id(), TransactionId(0))
            await server._hand_on(clients[8], [question])
            assert clients[8].intake.byte_count == 0, "it has its answer"
            assert clients[8].connection is not None
            assert clients[8].connection.unsent_bytes == 0, "which has left"
            assert clients[7].intake.waits_for(partition.opening), "the append still waits"
            # One of the writer's own stays behind its append.
            await server._hand_on(clients[7], [question])
            assert clients[7].intake.byte_count > request_bytes(behind)

    asyncio.run(main())


def test_small_append_beside_much_of_others_leaves_for_the_replicas_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append of a client of versions 0 to 4 took five turns of the loop from its arrival to its
    sending, and three from the replicas' answers to the feed, in each of which all others had
    their batches done."""
    sent: list[AppendToReplica] = []

    async def main() -> None:
        async with running_server(tmp_path) as (host, server):
            writer, small = await connected(host, server, 7), await connected(host, server, 8)
            clients = {int(client.sorter._client_id or 0): client for client in server._clients}
            (partition,) = server._partitions.running.values()
            exchange = next(iter(partition._store._exchanges.values()))
            store = partition._store
            note_sent = store._send

            def noted(link: ReplicaLink, request: ReplicaRequest) -> None:
                note_sent(link, request)
                if isinstance(request, AppendToReplica):
                    sent.append(request)

            monkeypatch.setattr(store, "_send", noted)
            append = AppendRequest(small.id(), NOTHING, (), (), (), 0, b"small", crc32(b"small"))
            await server._hand_on(clients[8], joined([append]))
            assert not sent, "with little under way it waits for others, to be one batch with them"
            await hear_feed(small, 0)
            clients[7].intake.take(99, CROWDED_BYTES_MIN)  # of a partition that is at work
            sent.clear()
            append = AppendRequest(
                small.id(), TransactionId(0), (), (), (), 0, b"small", crc32(b"small")
            )
            # Nothing below lets the loop have a turn.
            await server._hand_on(clients[8], joined([append]))
            assert [request.batch.count for request in sent] == [1]
            assert exchange._connection.unsent_bytes == 0, "it has left"
            writer.connection.close()

    asyncio.run(main())
