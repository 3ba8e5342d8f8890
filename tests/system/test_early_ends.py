"""A peer that ends a connection while TLS is being agreed on keeps nobody waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from waltz.errors import ConnectionFailedError
from waltz.system.tcp_network import RealNetwork
from waltz.system.tls import Tls
from waltz.types import Address, Plain, TlsSettings

TLS = TlsSettings(plain=Plain.NEVER)
LONG_SECONDS = 60.0
"""Longer than a verdict takes on any machine, shorter than a test."""

End = Callable[[asyncio.StreamWriter], None]


def close(writer: asyncio.StreamWriter) -> None:
    writer.close()


def reset(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def ending_peer(end: End, *, says: bytes, ends_tls: bool) -> asyncio.Server:
    """It says its part of the handshake, with which the connecting side is done, and perhaps
    something in TLS, and ends the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = Tls(TLS).accepted()
        session.receive(await reader.read(65536))
        writer.write(session.outgoing())
        if says or ends_tls:
            while not session.is_established:
                session.receive(await reader.read(65536))
            if says:
                session.send(says)
            if ends_tls:
                session.finish()
            writer.write(session.outgoing())
        await writer.drain()
        end(writer)

    return await asyncio.start_server(serve, "127.0.0.1", 0)


@pytest.mark.parametrize("end", [close, reset])
def test_one_that_ends_it_right_after_the_handshake(end: End) -> None:
    """F-24: in TLS 1.3 the connecting side is done first, and waits for what the other makes of
    it. That it ends is an answer."""

    async def main() -> None:
        server = await ending_peer(end, says=b"", ends_tls=False)
        async with server:
            address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
            with pytest.raises(ConnectionFailedError, match="ended the connection during the TLS"):
                await asyncio.wait_for(RealNetwork(TLS).connect(address), LONG_SECONDS)

    asyncio.run(main())


@pytest.mark.parametrize("says", [b"", b"a word"])
def test_one_that_ends_tls_properly_is_heard_to_its_end(says: bytes) -> None:
    async def main() -> None:
        server = await ending_peer(close, says=says, ends_tls=True)
        async with server:
            address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
            connected = await asyncio.wait_for(RealNetwork(TLS).connect(address), LONG_SECONDS)
            heard = b""
            while data := await asyncio.wait_for(connected.read(), LONG_SECONDS):
                heard += data
            assert heard == says

    asyncio.run(main())
