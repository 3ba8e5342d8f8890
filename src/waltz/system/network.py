"""TCP on asyncio.

Owns sockets: their options, the bounds of what is buffered either way, and turning the operating
system's errors into ours. Knows nothing of what the bytes mean.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from typing import cast

from waltz.errors import ConfigurationError, ConnectionFailedError
from waltz.host import Connection
from waltz.limits import (
    CLOSE_SECONDS_MAX,
    CONNECT_SECONDS_MAX,
    PROBE_AFTER_SECONDS,
    PROBE_INTERVAL_SECONDS,
    PROBES_MAX,
    READ_BYTES_MAX,
    WRITE_BUFFER_BYTES_HIGH,
    WRITE_BUFFER_BYTES_LOW,
)
from waltz.types import Address


class TcpConnection(asyncio.Protocol):
    """Implements `host.Connection`; one task reads at a time.

    The socket is not read while more than `READ_BYTES_MAX` wait for `read`. `drain` waits from the
    moment the high mark is crossed until the low one is reached, and not at all in between.
    """

    def __init__(self, accepted: Callable[[TcpConnection], None] | None = None) -> None:
        self._accepted = accepted
        self._transport: asyncio.Transport | None = None
        self._peer = "unconnected"
        self._received = bytearray()
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._reading_paused = False
        self._writing_paused = False
        self._ended = False
        self._reader: asyncio.Future[None] | None = None
        self._drainers: list[asyncio.Future[None]] = []
        self._abort_timer: asyncio.TimerHandle | None = None

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES_HIGH, WRITE_BUFFER_BYTES_LOW)
        name = transport.get_extra_info("peername")
        self._peer = str(Address(name[0], name[1])) if name else "unknown"
        connected_socket = transport.get_extra_info("socket")
        connected_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _probe_when_silent(connected_socket)
        if self._accepted is not None:
            self._accepted(self)

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        self._received += data
        if len(self._received) > READ_BYTES_MAX and self._transport and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()
        self._wake_reader()

    def eof_received(self) -> bool:
        self._end()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._end()

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._wake_drainers()

    # What `host.Connection` promises

    @property
    def peer(self) -> str:
        return self._peer

    async def read(self) -> bytes:
        while not self._received and not self._ended:
            assert self._reader is None, "two tasks read one connection"
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        data = bytes(memoryview(self._received)[:READ_BYTES_MAX])
        del self._received[: len(data)]
        if self._reading_paused and self._transport and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()
        return data

    def write(self, data: bytes) -> None:
        # What the partitions of a process say to one peer in one turn of the loop goes out in one
        # call to the operating system, which costs more than making most of the messages.
        if self._ended:
            return
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(data)
        self._outgoing_bytes += len(data)

    def _flush(self) -> None:
        outgoing, self._outgoing, self._outgoing_bytes = self._outgoing, [], 0
        if outgoing and not self._ended and self._transport and not self._transport.is_closing():
            self._transport.write(outgoing[0] if len(outgoing) == 1 else b"".join(outgoing))

    @property
    def unsent_bytes(self) -> int:
        if self._ended or self._transport is None:
            return 0
        return self._transport.get_write_buffer_size() + self._outgoing_bytes

    async def drain(self) -> None:
        self._flush()
        while self._writing_paused and not self._ended:
            drainer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._drainers.append(drainer)
            await drainer

    def close(self) -> None:
        self._flush()
        if self._transport is None or self._transport.is_closing():
            self._end()
            return
        self._received.clear()
        self._end()
        self._transport.close()
        # A peer that takes nothing would keep what is queued, and the socket, for ever.
        self._abort_timer = asyncio.get_running_loop().call_later(
            CLOSE_SECONDS_MAX, self._transport.abort
        )

    def _end(self) -> None:
        self._ended = True
        self._wake_reader()
        self._wake_drainers()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _wake_drainers(self) -> None:
        drainers, self._drainers = self._drainers, []
        for drainer in drainers:
            if not drainer.done():
                drainer.set_result(None)


class TcpListener:
    """Implements `host.Listener`."""

    def __init__(self, server: asyncio.Server, address: Address) -> None:
        self._server = server
        self._address = address

    @property
    def address(self) -> Address:
        return self._address

    async def close(self) -> None:
        self._server.close()
        await asyncio.sleep(0)  # the loop releases the port in its next turn


class RealNetwork:
    """Implements `host.Network`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(self, address: Address) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                _, connection = await loop.create_connection(
                    TcpConnection, address.host, address.port
                )
        except TimeoutError as error:
            raise ConnectionFailedError(
                f"no connection to {address}: no answer in {CONNECT_SECONDS_MAX:g} s"
            ) from error
        except (OSError, UnicodeError, OverflowError) as error:
            raise ConnectionFailedError(f"no connection to {address}: {_reason(error)}") from error
        return connection

    async def listen(
        self, address: Address, accept: Callable[[Connection], Awaitable[None]]
    ) -> TcpListener:
        loop = asyncio.get_running_loop()

        def start(connection: TcpConnection) -> None:
            task = loop.create_task(_serve(connection, accept))
            self._tasks.add(task)  # the loop itself keeps weak references only
            task.add_done_callback(self._tasks.discard)

        try:
            # Port 0 on a name with several addresses would take another port on each of them.
            hosts: list[str] | str = address.host
            if address.port == 0:
                found = await loop.getaddrinfo(address.host, 0, type=socket.SOCK_STREAM)
                hosts = [str(found[0][4][0])]
            server = await loop.create_server(lambda: TcpConnection(start), hosts, address.port)
        except (OSError, UnicodeError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                raise ConfigurationError(
                    f"port {address.port} on {address.host} is in use;"
                    " stop the process that holds it or choose another port"
                ) from error
            raise ConfigurationError(f"cannot listen on {address}: {_reason(error)}") from error
        return TcpListener(server, Address(address.host, server.sockets[0].getsockname()[1]))


async def _serve(
    connection: TcpConnection, accept: Callable[[Connection], Awaitable[None]]
) -> None:
    try:
        await accept(connection)
    finally:
        connection.close()


def _probe_when_silent(connected_socket: socket.socket) -> None:
    """Have the system notice a machine that is gone, which takes hours by its own defaults."""
    connected_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", PROBE_AFTER_SECONDS),
        ("TCP_KEEPINTVL", PROBE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", PROBES_MAX),
    ):
        if hasattr(socket, name):  # not every system lets one choose
            connected_socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
