"""Peers that greet and answer what is said to them, over TLS and plain."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from waltz.host import Connection
from waltz.system.tcp_network import RealNetwork
from waltz.types import Address, Plain, TlsSettings

LOOPBACK = Address("127.0.0.1", 0)
SELF_SIGNED = TlsSettings(plain=Plain.NEVER)
PLAIN = TlsSettings()


async def greet(connection: Connection) -> None:
    """What our processes do: speak at once, and answer what comes."""
    connection.write(b"hello ")
    while data := await connection.read():
        connection.write(data)


@asynccontextmanager
async def greeter(settings: TlsSettings) -> AsyncIterator[Address]:
    listener = await RealNetwork(settings).listen(LOOPBACK, greet)
    yield listener.address
    await listener.close()


async def conversation(connection: Connection) -> bytes:
    """Return what a greeter says to `you`; less, if it ends the connection before."""
    connection.write(b"you")
    heard = b""
    while len(heard) < 9 and (data := await connection.read()):
        heard += data
    connection.close()
    return heard


async def talk(settings: TlsSettings, address: Address) -> bytes:
    return await conversation(await RealNetwork(settings).connect(address))


async def raw_talk(address: Address, first: bytes) -> bytes:
    """What a plain peer hears until the end after it has said `first`."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(first)
    heard = await reader.read()
    writer.close()
    return heard


def java_context(side: int) -> ssl.SSLContext:
    """The original's side: TLS 1.2 and nothing newer, everybody believed."""
    context = ssl.SSLContext(side)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    if side == ssl.PROTOCOL_TLS_CLIENT:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
