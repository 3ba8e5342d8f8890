"""Real sockets with and without TLS, on both event loops: bounds, ends and errors."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from tests.system.conftest import Run
from tests.system.test_workers import NO_STACK
from tests.test_peer_log import StillLoop
from waltz.errors import ConfigurationError, ConnectionFailedError
from waltz.host import Connection
from waltz.limits import READ_BYTES_MAX, WRITE_BUFFER_BYTES_HIGH, WRITE_BUFFER_BYTES_LOW
from waltz.system.peer_watch import PROBE_AFTER_SECONDS
from waltz.system.tcp_connection import TcpConnection
from waltz.system.tcp_network import Guests, RealNetwork, TcpListener, connections_max
from waltz.types import Address

LOOPBACK = Address("127.0.0.1", 0)


async def pair(network: RealNetwork) -> tuple[TcpListener, TcpConnection, TcpConnection]:
    """A listener and both ends of a connection that stays open until one of them is closed."""
    arrived: asyncio.Queue[Connection] = asyncio.Queue()
    listener = await network.listen(LOOPBACK, keeping(arrived))
    ours = await network.connect(listener.address)
    theirs = await arrived.get()
    assert isinstance(ours, TcpConnection)
    assert isinstance(theirs, TcpConnection)
    return listener, ours, theirs


def keeping(arrived: asyncio.Queue[Connection]) -> Callable[[Connection], Awaitable[None]]:
    async def accept(connection: Connection) -> None:
        arrived.put_nowait(connection)
        await asyncio.Event().wait()

    return accept


async def read_exactly(connection: Connection, count: int) -> bytes:
    found = b""
    while len(found) < count:
        data = await connection.read()
        assert 1 <= len(data) <= READ_BYTES_MAX
        found += data
    return found


def test_what_is_written_arrives_in_order_and_then_the_end(run: Run, network: RealNetwork) -> None:
    async def story() -> None:
        listener, ours, theirs = await pair(network)
        data = bytes(range(256)) * 16 * 1024
        for start in range(0, len(data), 100_000):
            ours.write(data[start : start + 100_000])
        ours.close()
        assert await read_exactly(theirs, len(data)) == data
        assert await theirs.read() == b""
        assert await theirs.read() == b""
        await listener.close()

    run(story())


def test_sockets_do_not_wait_for_more_and_notice_the_dead(run: Run, network: RealNetwork) -> None:
    async def story() -> None:
        listener, ours, theirs = await pair(network)
        for connection in (ours, theirs):
            assert connection._transport is not None
            found = cast(socket.socket, connection._transport.get_extra_info("socket"))
            assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
            assert idle == PROBE_AFTER_SECONDS, "H5: the system's own is two hours"
        assert ours.peer == str(listener.address)
        assert theirs.peer.startswith("127.0.0.1:")
        await listener.close()

    run(story())


def test_an_unread_connection_stops_its_sender_and_goes_on_when_read(
    run: Run, network: RealNetwork
) -> None:
    async def story() -> None:
        listener, ours, theirs = await pair(network)
        count = 0
        # Well above the mark: the system and the other side take some of it meanwhile.
        while ours.unsent_bytes <= 4 * WRITE_BUFFER_BYTES_HIGH:
            ours.write(bytes(1024 * 1024))
            count += 1024 * 1024
            await asyncio.sleep(0)
        draining = asyncio.ensure_future(ours.drain())
        await asyncio.sleep(0.05)
        assert not draining.done()
        assert theirs._received.byte_count <= 2 * READ_BYTES_MAX
        await read_exactly(theirs, count - WRITE_BUFFER_BYTES_LOW // 2)
        await draining
        assert ours.unsent_bytes <= WRITE_BUFFER_BYTES_LOW
        await listener.close()

    run(story())


def test_an_end_wakes_readers_and_senders_that_wait(run: Run, network: RealNetwork) -> None:
    async def story() -> None:
        listener, ours, theirs = await pair(network)
        while ours.unsent_bytes <= WRITE_BUFFER_BYTES_HIGH:
            ours.write(bytes(1024 * 1024))
            await asyncio.sleep(0)
        draining = asyncio.ensure_future(ours.drain())
        reading = asyncio.ensure_future(ours.read())
        await asyncio.sleep(0)
        assert theirs._transport is not None
        theirs._transport.abort()
        assert await reading == b""
        await draining
        ours.write(b"ignored")
        assert ours.unsent_bytes == 0
        await listener.close()

    run(story())


def test_closing_ends_ones_own_read(run: Run, network: RealNetwork) -> None:
    async def story() -> None:
        listener, ours, _ = await pair(network)
        reading = asyncio.ensure_future(ours.read())
        await asyncio.sleep(0)
        ours.close()
        ours.close()
        assert await reading == b""
        await listener.close()

    run(story())


def test_a_cancelled_read_loses_nothing(run: Run, network: RealNetwork) -> None:
    async def story() -> None:
        listener, ours, theirs = await pair(network)
        reading = asyncio.ensure_future(theirs.read())
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        ours.write(b"kept")
        assert await theirs.read() == b"kept"
        await listener.close()

    run(story())


def test_a_connection_is_closed_when_its_handler_returns_or_fails(
    run: Run, network: RealNetwork
) -> None:
    async def story() -> None:
        reports: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))

        async def accept(connection: Connection) -> None:
            if await connection.read() == b"fail":
                raise ValueError

        listener = await network.listen(LOOPBACK, accept)
        for word in (b"go", b"fail"):
            connection = await network.connect(listener.address)
            connection.write(word)
            assert await connection.read() == b""
        await listener.close()

    run(story())


def test_a_closed_listener_accepts_no_more_and_leaves_the_accepted_alone(
    run: Run, network: RealNetwork
) -> None:
    async def story() -> None:
        listener, ours, theirs = await pair(network)
        await listener.close()
        with pytest.raises(ConnectionFailedError, match=f"{listener.address}: Connect"):
            await network.connect(listener.address)
        ours.write(b"still here")
        assert await theirs.read() == b"still here"

    run(story())


def test_a_port_in_use_is_named(run: Run, network: RealNetwork) -> None:
    async def story() -> None:
        listener, _, _ = await pair(network)
        with pytest.raises(ConfigurationError, match=f"port {listener.address.port} on 127.0.0.1"):
            await network.listen(listener.address, keeping(asyncio.Queue()))
        await listener.close()
        again = await network.listen(listener.address, keeping(asyncio.Queue()))
        assert again.address == listener.address
        await again.close()

    run(story())


@pytest.mark.parametrize("host", ["no.such.host.invalid", "x" * 64 + ".invalid", "192.0.2.1"])
def test_a_host_that_is_not_ours_cannot_be_listened_on(
    run: Run, network: RealNetwork, host: str
) -> None:
    async def story() -> None:
        with pytest.raises(ConfigurationError, match="cannot listen on"):
            await network.listen(Address(host, 0), keeping(asyncio.Queue()))

    run(story())


def test_a_name_without_an_address_is_a_failed_connection(run: Run, network: RealNetwork) -> None:
    async def story() -> None:
        with pytest.raises(ConnectionFailedError, match=r"no connection to no\.such\."):
            await network.connect(Address("no.such.host.invalid", 1))

    run(story())


def test_a_name_of_several_addresses_listens_on_one_free_port(
    run: Run, network: RealNetwork
) -> None:
    async def story() -> None:
        listener = await network.listen(Address("localhost", 0), keeping(asyncio.Queue()))
        assert listener.address.host == "localhost"
        assert listener.address.port > 0
        connection = await network.connect(listener.address)
        connection.close()
        await listener.close()

    run(story())


def test_a_reader_that_wants_several_bytes_is_not_woken_for_one(run: Run) -> None:
    """UA-41: but it gets what there is when the other side ends."""

    async def story() -> None:
        reads: list[bytes] = []
        ended = asyncio.Event()

        async def accept(connection: Connection) -> None:
            while data := await connection.read(3):
                reads.append(data)
            ended.set()

        network = RealNetwork()
        listener = await network.listen(Address("127.0.0.1", 0), accept)
        _, writer = await asyncio.open_connection("127.0.0.1", listener.address.port)
        for number in range(7):
            writer.write(bytes([number]))
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.close()
        await ended.wait()
        assert b"".join(reads) == bytes(range(7))
        assert all(len(data) >= 3 for data in reads[:-1])
        await listener.close()

    run(story())


def test_guests_are_bounded_in_all_and_per_address(caplog: pytest.LogCaptureFixture) -> None:
    guests = Guests(connections_max=4, connections_per_peer_max=2, bytes_max=1, timers=StillLoop)
    assert [guests.enter("a") for _ in range(3)] == [True, True, False]
    assert [guests.enter("b") for _ in range(3)] == [True, True, False]
    assert not guests.enter("c")
    assert caplog.text.count("connections_refused") == 2
    guests.leave("a")
    assert guests.enter("c")
    assert not guests.enter("c")
    assert "bound=process connections_max=4" in caplog.text


def test_who_is_dispensable_gives_way_the_longest_first() -> None:
    guests = Guests(connections_max=5, connections_per_peer_max=3, bytes_max=1, timers=StillLoop)
    first, second, other = Holder(0), Holder(0), Holder(0)
    for host, guest in (("a", first), ("a", second), ("b", other)):
        assert guests.enter(host)
        guests.note_dispensable(host, guest, True)
    guests.note_dispensable("a", first, True)  # it has said something
    assert guests.enter("a")
    assert guests.enter("a"), "of its own address"
    assert (first.reason, other.reason) == ("", "")
    assert "silent longest" in second.reason
    guests.leave("a")
    assert guests.enter("b")
    assert guests.enter("c"), "of the address that has most"
    assert first.reason
    assert not other.reason
    guests.leave("a")
    guests.note_dispensable("b", other, False)
    assert not guests.enter("d")


def test_one_address_leaves_most_connections_to_the_others() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))

    async def story() -> None:
        guests = RealNetwork()._guests
        assert sum(guests.enter("a") for _ in range(1000)) == 153
        assert sum(guests.enter("b") for _ in range(1000)) == 153

    try:
        asyncio.run(story())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_connections_leave_descriptors_for_files() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, before[1]))
    try:
        assert connections_max() == 300
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


class Holder:
    """A guest that holds what it is said to, until it is given up."""

    def __init__(self, held_bytes: int) -> None:
        self.held_bytes = held_bytes
        self.reason = ""

    def give_up(self, reason: str) -> None:
        self.reason = reason


def test_those_that_hold_most_are_given_up_when_all_hold_too_much() -> None:
    guests = Guests(connections_max=9, connections_per_peer_max=9, bytes_max=1000, timers=StillLoop)
    holders = [Holder(100), Holder(500), Holder(300), Holder(50)]
    for holder in holders:
        guests.weigh(holder, holder.held_bytes)
    late = Holder(60)
    guests.weigh(late, 60)
    assert [bool(holder.reason) for holder in (*holders, late)] == [False, True] + [False] * 3
    assert holders[1].reason == (
        "all connections hold 1010 bytes, more than 1000, and this one held most: 500"
    )
    guests.weigh(holders[2], 0)
    guests.weigh(Holder(790), 790)
    assert not holders[0].reason, "100, 50, 60 and 790 are just allowed"


def test_what_was_sent_meanwhile_is_not_held_against_anybody() -> None:
    guests = Guests(connections_max=9, connections_per_peer_max=9, bytes_max=1000, timers=StillLoop)
    sent, late = Holder(900), Holder(200)
    guests.weigh(sent, 900)
    sent.held_bytes = 0
    guests.weigh(late, 200)
    assert not sent.reason
    assert not late.reason


def test_a_connection_that_holds_most_ends_and_the_others_go_on(
    run: Run, network: RealNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether what it sent is kept by whoever has read it, or it takes nothing."""
    bytes_max = 4 * 1024 * 1024

    async def story() -> None:
        async def accept(connection: Connection) -> None:
            while data := await connection.read():
                match data[:1]:
                    case b"k":  # keeps what it reads
                        connection.note_held(8 * 1024 * 1024)
                    case b"w":  # writes more than is taken
                        connection.write(bytes(64 * 1024 * 1024))
                    case b"e":
                        connection.write(b"e")

        listener = await network.listen(LOOPBACK, accept)
        sound = await network.connect(listener.address)
        for greed in b"k", b"w":
            greedy = await network.connect(listener.address)
            greedy.write(greed)
            if greed == b"w":
                # It takes nothing until it is cut off, then what was on the way.
                while caplog.text.count("connection_given_up") < 2:
                    await asyncio.sleep(0.01)
            while await greedy.read():
                pass
            sound.write(b"e")
            assert await sound.read() == b"e"
        sound.close()
        await listener.close()

    network._guests = Guests(100, 100, bytes_max)
    run(story())
    assert caplog.text.count("this one held most") == 2


def test_a_name_is_resolved_to_all_its_addresses(run: Run, network: RealNetwork) -> None:
    """LC-22."""

    async def story() -> None:
        known = {str(entry[4][0]) for entry in socket.getaddrinfo("localhost", 6000)}
        found = await network.resolve(Address("localhost", 6000))
        assert {address.host for address in found} == known
        assert {address.port for address in found} == {6000}
        assert len(set(found)) == len(found)
        for host in ("127.0.0.1", "::1"):
            assert await network.resolve(Address(host, 1)) == [Address(host, 1)]

    run(story())


def test_names_are_resolved_while_all_threads_of_the_loop_wait(
    run: Run, network: RealNetwork
) -> None:
    """LC-73: an application may wait there for what only a new connection can bring."""

    async def story() -> None:
        may_end = threading.Event()
        loop = asyncio.get_running_loop()
        waiting = [loop.run_in_executor(None, may_end.wait) for _ in range(100)]
        try:
            assert await network.resolve(Address("127.0.0.1", 1))
        finally:
            may_end.set()
            await asyncio.gather(*waiting)

    run(story())


def test_a_name_that_cannot_be_resolved_is_named(run: Run, network: RealNetwork) -> None:
    """LC-22, UA-13."""

    async def story() -> None:
        for host in ("no-such-host.invalid", "a" * 70, "\udc80"):
            with pytest.raises(ConnectionFailedError) as raised:
                await network.resolve(Address(host, 6000))
            assert repr(host) in str(raised.value)

    run(story())


def test_a_name_that_no_thread_resolves_is_a_connection_that_failed(
    run: Run, network: RealNetwork
) -> None:
    """Any other error would end those who try again for ever."""

    async def story() -> None:
        listener, ours, _ = await pair(network)
        address = Address("localhost", listener.address.port)
        before = threading.stack_size(NO_STACK)
        try:
            with pytest.raises(ConnectionFailedError, match="new thread"):
                await network.resolve(address)
            with contextlib.suppress(ConnectionFailedError):  # uvloop has threads of its own
                (await network.connect(address)).close()
        finally:
            threading.stack_size(before)
        (await network.connect(address)).close()
        ours.close()
        await listener.close()

    run(story())


def test_a_resolved_address_is_connected_by_its_name(run: Run, network: RealNetwork) -> None:
    """LC-02: with TLS the certificate is for the name, not for the address that was found."""

    async def story() -> None:
        listener, ours, theirs = await pair(network)
        address = listener.address
        named = await network.connect(address, name="localhost")
        for connection in (ours, theirs, named):
            connection.close()
        await listener.close()

    run(story())
