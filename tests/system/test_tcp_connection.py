"""How two sides come to an understanding: TLS or plain on one port, refusals, bounds."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.system.conftest import Run
from tests.system.greeters import (
    LOOPBACK,
    PLAIN,
    SELF_SIGNED,
    conversation,
    greet,
    greeter,
    java_context,
    raw_talk,
    talk,
)
from tests.tls_files import TlsFiles
from waltz.errors import ConnectionFailedError
from waltz.host import Connection
from waltz.limits import READ_BYTES_MAX, WRITE_BUFFER_BYTES_HIGH
from waltz.system import tcp_connection as connection_module
from waltz.system import tcp_network as network_module
from waltz.system.tcp_connection import WHOLE_WRITE_BYTES_MIN
from waltz.system.tcp_network import RealNetwork
from waltz.types import Address, TlsSettings


async def handed_over(connection: Connection) -> list[bytes]:
    """Return what a greeter says to `you` and then `bye`, piece by piece, with the end."""
    heard: list[bytes] = []
    connection.write(b"you")
    first = await connection.read(9)
    over = asyncio.Event()

    def receive(data: bytes) -> None:
        heard.append(data)
        if not data:
            over.set()
        elif b"".join(heard) == b"bye":
            connection.close()

    connection.hand_over(receive)
    connection.write(b"bye")
    await over.wait()
    return [first, *heard]


def test_one_port_serves_tls_and_plain(run: Run) -> None:
    """TS-01: the first byte says which; the port is the same."""

    async def story() -> None:
        async with greeter(PLAIN) as address:
            assert await talk(PLAIN, address) == b"hello you"
            assert await talk(SELF_SIGNED, address) == b"hello you"

    run(story())


@pytest.mark.parametrize("settings", [PLAIN, SELF_SIGNED])
def test_what_arrives_is_handed_over_and_the_end_once(run: Run, settings: TlsSettings) -> None:
    async def scenario() -> None:
        async with greeter(settings) as address:
            heard = await handed_over(await RealNetwork(settings).connect(address))
            assert b"".join(heard) == b"hello youbye"
            assert heard[-1] == b""
            assert heard.count(b"") == 1

    run(scenario())


def test_what_has_come_before_is_handed_over_too_and_an_end_that_was(run: Run) -> None:
    async def farewell(connection: Connection) -> None:
        await connection.read()
        connection.write(b"hello")

    async def scenario() -> None:
        listener = await RealNetwork(PLAIN).listen(LOOPBACK, farewell)
        connection = await RealNetwork(PLAIN).connect(listener.address)
        connection.write(b"you")
        await asyncio.sleep(0.05)
        heard: list[bytes] = []
        connection.hand_over(heard.append)
        while b"" not in heard:
            await asyncio.sleep(0)
        assert heard == [b"hello", b""]
        await listener.close()

    run(scenario())


def test_a_java_client_is_served_without_any_configuration(run: Run) -> None:
    """TS-03: it always speaks TLS, and believes anyone."""

    async def story() -> None:
        async with greeter(PLAIN) as address:
            reader, writer = await asyncio.open_connection(
                address.host, address.port, ssl=java_context(ssl.PROTOCOL_TLS_CLIENT)
            )
            assert writer.get_extra_info("ssl_object").version() == "TLSv1.2"
            writer.write(b"java")
            assert await reader.readexactly(10) == b"hello java"
            writer.close()

    run(story())


def test_a_java_server_is_reached_without_any_certificate(run: Run, tls_files: TlsFiles) -> None:
    async def story() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"java " + await reader.readexactly(3))

        context = java_context(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls_files.issue("java", "example.com"))
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        connection = await RealNetwork(SELF_SIGNED).connect(Address("127.0.0.1", port))
        connection.write(b"you")
        assert await connection.read() == b"java you"
        connection.close()
        server.close()

    run(story())


def test_who_does_not_speak_tls_is_told_so(run: Run) -> None:
    async def story() -> None:
        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        with pytest.raises(ConnectionFailedError, match=f"{address}: it does not speak TLS"):
            await RealNetwork(SELF_SIGNED).connect(address)
        server.close()

    run(story())


def test_who_ends_the_connection_instead_of_shaking_hands_is_named(run: Run) -> None:
    async def story() -> None:
        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        with pytest.raises(ConnectionFailedError, match="ended the connection during the TLS"):
            await RealNetwork(SELF_SIGNED).connect(address)
        server.close()

    run(story())


@pytest.mark.parametrize("first", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"])
def test_a_peer_that_does_not_finish_its_handshake_is_cut(
    run: Run, first: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection_module, "HANDSHAKE_SECONDS_MAX", 0.1)

    async def story() -> None:
        async with greeter(PLAIN) as address:
            assert await raw_talk(address, first) == b""

    run(story())
    assert re.search(r"it did not finish the handshake in 0\.(1|0[89]\d?) s", caplog.text)


def test_a_server_that_hangs_in_the_handshake_is_given_up(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "HANDSHAKE_SECONDS_MAX", 0.1)

    async def story() -> None:
        async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            while await reader.read(1000):
                pass

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        with pytest.raises(ConnectionFailedError, match=r"did not finish the handshake in 0\.1 s"):
            await RealNetwork(SELF_SIGNED).connect(address)
        server.close()

    run(story())


@contextmanager
def java_listener(pair: str) -> Iterator[Address]:
    """A greeter as the original's: TLS 1.2, and whatever else comes is closed without a word."""
    context = java_context(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            with accepted:
                if accepted.recv(1, socket.MSG_PEEK) == b"\x16":
                    with suppress(OSError), context.wrap_socket(accepted, server_side=True) as tls:
                        tls.sendall(b"hello ")
                        tls.sendall(tls.recv(100))
                        tls.recv(1)
                else:
                    accepted.recv(100)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield Address("127.0.0.1", listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(60)


def test_a_peer_that_closes_on_plain_is_tried_with_tls_once(run: Run, tls_files: TlsFiles) -> None:
    """The original takes TLS only, on its own machine too."""

    async def story() -> None:
        with java_listener(tls_files.issue("java", "127.0.0.1")) as address:
            network = RealNetwork(PLAIN)
            for _ in range(2):
                refused = await network.connect(address)
                assert await conversation(refused) == b""
                assert "takes TLS only" in refused.trouble
                assert "set ssl.plain to never" in refused.trouble
                assert await conversation(await network.connect(address)) == b"hello you"

    run(story())


def test_a_plain_peer_that_went_without_a_word_is_spoken_to_in_plain_again(run: Run) -> None:
    """One that was killed in that moment, or a coordinator that knows no TLS at all."""

    async def story() -> None:
        first_bytes: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            first_bytes.append((await reader.read(100))[:1])
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        network = RealNetwork(PLAIN)
        assert await conversation(await network.connect(address)) == b""
        with pytest.raises(ConnectionFailedError, match="it does not speak TLS"):
            await network.connect(address)
        assert await conversation(await network.connect(address)) == b""
        assert first_bytes == [b"y", b"\x16", b"y"]
        server.close()

    run(story())


def test_one_who_must_not_be_plain_is_never_spoken_to_in_plain(run: Run) -> None:
    async def story() -> None:
        first_bytes: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            first_bytes.append((await reader.read(1000))[:1])
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        network = RealNetwork(SELF_SIGNED)
        for _ in range(3):
            with pytest.raises(ConnectionFailedError, match="it does not speak TLS"):
                await network.connect(address)
        assert first_bytes == [b"\x16"] * 3
        server.close()

    run(story())


def test_how_long_a_peer_may_take_is_a_setting(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        listener = await RealNetwork(PLAIN, handshake_seconds=0.1).listen(LOOPBACK, greet)
        assert await raw_talk(listener.address, b"") == b""
        await listener.close()

    run(story())
    assert re.search(r"it did not finish the handshake in 0\.(1|0[89]\d?) s", caplog.text)


def test_what_was_said_before_the_first_byte_came_is_sent_even_if_closed_since(run: Run) -> None:
    async def story() -> None:
        async def say_and_go(connection: Connection) -> None:
            connection.write(b"go away")

        for settings in (PLAIN, SELF_SIGNED):
            listener = await RealNetwork(settings).listen(LOOPBACK, say_and_go)
            connection = await RealNetwork(settings).connect(listener.address)
            connection.write(b"x")
            assert await connection.read() == b"go away"
            assert await connection.read() == b""
            connection.close()
            await listener.close()

    run(story())


def test_one_address_has_only_so_many_connections(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(network_module, "CONNECTIONS_PER_PEER_MAX", 2)

    async def story() -> None:
        async with greeter(PLAIN) as address:
            client = RealNetwork(PLAIN)
            first, second = [await client.connect(address) for _ in range(2)]
            for connection in (first, second):
                connection.write(b"you")
                assert await connection.read()
            for _ in range(3):
                assert await talk(PLAIN, address) == b""
            first.close()
            while await talk(PLAIN, address) == b"":
                pass  # until the other side has seen the end, too
            second.close()

    run(story())
    assert caplog.text.count("connections_per_peer_max=2") == 1


@pytest.mark.parametrize("settings", [PLAIN, SELF_SIGNED])
def test_who_is_paused_hears_nothing_until_resumed_and_then_all(
    run: Run, settings: TlsSettings
) -> None:
    async def scenario() -> None:
        async with greeter(settings) as address:
            connection = await RealNetwork(settings).connect(address)
            heard: list[bytes] = []

            def receive(data: bytes) -> None:
                heard.append(data)
                connection.pause_reading()

            connection.hand_over(receive)
            connection.send(b"you")
            while not heard:
                await asyncio.sleep(0)
            data = os.urandom(4 * READ_BYTES_MAX)
            connection.send(data)
            await asyncio.sleep(0.05)
            assert len(heard) == 1
            while len(b"".join(heard)) < len(b"hello you") + len(data):
                before = len(heard)
                connection.resume_reading()
                while len(heard) == before:
                    await asyncio.sleep(0)
            assert b"".join(heard) == b"hello you" + data
            connection.resume_reading()
            connection.close()

    run(scenario())


def test_a_peer_that_takes_no_answers_is_not_read(run: Run) -> None:
    """What an accepted connection is handed over stops while its unsent bytes are many."""
    answer = bytes(8 * WRITE_BUFFER_BYTES_HIGH)

    async def scenario() -> None:
        heard: list[bytes] = []
        ended = asyncio.Event()

        async def accept(connection: Connection) -> None:
            def receive(data: bytes) -> None:
                heard.append(data)
                if not data:
                    ended.set()
                elif len(heard) == 1:
                    connection.send(answer)

            connection.hand_over(receive)
            await ended.wait()

        listener = await RealNetwork(PLAIN).listen(LOOPBACK, accept)
        peer = await RealNetwork(PLAIN).connect(listener.address)
        taken: list[int] = []
        peer.hand_over(lambda data: taken.append(len(data)))
        peer.pause_reading()
        peer.send(b"first")
        while not heard:
            await asyncio.sleep(0.001)
        peer.send(b"second")
        await asyncio.sleep(0.05)
        assert heard == [b"first"]
        peer.resume_reading()
        while sum(taken) < len(answer) or len(heard) < 2:
            await asyncio.sleep(0.001)
        assert heard == [b"first", b"second"]
        peer.close()
        await ended.wait()
        await listener.close()

    run(scenario())


def test_a_lot_of_data_arrives_whole_both_ways(run: Run, tls_files: TlsFiles) -> None:
    async def story() -> None:
        async with greeter(tls_files.peer()) as address:
            connection = await RealNetwork(tls_files.peer()).connect(address)
            data = os.urandom(1 << 20)
            connection.write(data)
            heard = b""
            while len(heard) < len(data) + 6:
                heard += await connection.read()
            assert heard == b"hello " + data
            connection.close()

    run(story())


def test_a_torn_tls_connection_is_an_end_like_any_other(run: Run, tls_files: TlsFiles) -> None:
    async def story() -> None:
        ended = asyncio.Event()

        async def read_on(connection: Connection) -> None:
            while await connection.read():
                pass
            ended.set()

        listener = await RealNetwork(tls_files.peer()).listen(LOOPBACK, read_on)
        context = java_context(ssl.PROTOCOL_TLS_CLIENT)
        context.load_cert_chain(tls_files.issue("torn"))
        _, writer = await asyncio.open_connection(
            listener.address.host, listener.address.port, ssl=context
        )
        writer.transport.abort()
        await ended.wait()
        await listener.close()

    run(story())


def own_address() -> str:
    """An address of this machine that is not loopback; empty where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return ""
        return str(probe.getsockname()[0])


@pytest.mark.skipif(not own_address(), reason="this machine has only its loopback address")
def test_off_loopback_tls_is_spoken_unasked_and_plain_is_refused(run: Run) -> None:
    """TS-01: without any configuration."""

    async def story() -> None:
        listener = await RealNetwork().listen(Address(own_address(), 0), greet)
        assert await talk(PLAIN, listener.address) == b"hello you"
        assert (await raw_talk(listener.address, b"you"))[:1] == b"\x15"
        await listener.close()

    run(story())


@pytest.mark.parametrize("settings", [PLAIN, SELF_SIGNED])
def test_what_is_written_comes_in_order_whatever_its_size(run: Run, settings: TlsSettings) -> None:
    """Small writes of one turn go out as one, large ones as they are; no read returns more than it
    may."""
    large = WHOLE_WRITE_BYTES_MIN
    sizes = [1, 5, large, 7, large + 1, large, 3, 5 * READ_BYTES_MAX + 11, 1]
    writes = [bytes([number]) * size for number, size in enumerate(sizes)]

    async def story() -> None:
        async def say(connection: Connection) -> None:
            assert await connection.read() == b"speak"
            for data in writes:
                connection.write(data)
            await connection.drain()
            await connection.read()

        listener = await RealNetwork(settings).listen(LOOPBACK, say)
        connection = await RealNetwork(settings).connect(listener.address)
        connection.write(b"speak")
        heard: list[bytes] = []
        while sum(map(len, heard)) < sum(sizes):
            await asyncio.sleep(0.001)  # so that several pieces wait
            heard.append(await connection.read())
            assert 0 < len(heard[-1]) <= READ_BYTES_MAX
        assert b"".join(heard) == b"".join(writes)
        connection.close()
        await listener.close()

    run(story())
