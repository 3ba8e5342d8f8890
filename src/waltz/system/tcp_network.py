"""TCP on asyncio, with TLS, and sockets of this machine next to ports.

Owns which connections are accepted, and the translation of the operating system's errors into ours.
Knows nothing of the meaning of the bytes.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from waltz.errors import ConfigurationError, ConnectionFailedError
from waltz.host import Connection
from waltz.limits import CONNECT_SECONDS_MAX, CONNECTIONS_BYTES_MAX
from waltz.peer_log import PeerLog, Timers
from waltz.system.tcp_connection import TcpConnection
from waltz.system.tls import Tls
from waltz.system.workers import RealWorkers
from waltz.types import Address, TlsSettings

if TYPE_CHECKING:
    # Imported where sockets of this machine are used: most processes use none.
    from waltz.system.local_socket import LocalSocket
    from waltz.system.local_users import LocalUsers

TLS_TRIED_MAX: Final = 1_000
"""Addresses that a process remembers to try TLS with, for they closed the connection on a plain
Hello."""

CONNECTIONS_MAX: Final = 20_000
CONNECTIONS_DESCRIPTORS_SHARE: Final = 0.6
"""The share of a process's descriptors that accepted connections may use: files need the rest."""

CONNECTIONS_WAITING_MAX: Final = 1_024
"""Connections that the system has made and the process has not accepted yet. With more, some would
look open to their peers only."""

CONNECTIONS_PER_PEER_MAX: Final = 1_000
CONNECTIONS_PER_PEER_SHARE: Final = 0.25
"""The share of the accepted connections that may come from one address."""

CONNECTIONS_BYTES_LEFT: Final = 0.9
"""The share of CONNECTIONS_BYTES_MAX that the remaining connections may hold after the largest ones
were closed."""

RESOLVE_SECONDS_MAX: Final = 5.0
"""Time limit for resolving a name; the operating system's own limit is longer."""

RESOLVER_THREADS_MAX: Final = 4
"""Names that a process resolves at a time; further ones wait, which counts towards their time."""


log = logging.getLogger(__name__)

NOT_CONFIGURED = TlsSettings()

FAILURES: Final = (OSError, UnicodeError, OverflowError)
"""Errors of the system's calls about addresses."""


class TcpListener:
    """Implements `host.Listener`."""

    def __init__(
        self,
        server: asyncio.Server,
        address: Address,
        local: tuple[asyncio.Server, LocalSocket] | None = None,
    ) -> None:
        self._server = server
        self._address = address
        self._local = local

    @property
    def address(self) -> Address:
        return self._address

    async def close(self) -> None:
        self._server.close()
        if self._local is not None:
            server, listening = self._local
            listening.remove()
            server.close()
        await asyncio.sleep(0)  # the loop releases the port in its next turn


class Guest(Protocol):
    """An accepted connection, seen as bytes held."""

    @property
    def held_bytes(self) -> int: ...

    def give_up(self, reason: str) -> None: ...


class Guests:
    """The accepted connections of a process: their number, addresses and bytes held."""

    def __init__(
        self,
        connections_max: int,
        connections_per_peer_max: int,
        bytes_max: int,
        timers: Callable[[], Timers] = asyncio.get_running_loop,
    ) -> None:
        self._connections_max = connections_max
        self._connections_per_peer_max = connections_per_peer_max
        self._bytes_max = bytes_max
        self._held: dict[Guest, int] = {}
        """The bytes of the connections that hold enough to be counted."""
        self._held_bytes = 0
        self._counts: Counter[str] = Counter()
        self._dispensable: dict[str, dict[Guest, None]] = {}
        """By address, in the order in which they became dispensable."""
        self._is_refusing = False
        self.log = PeerLog(log, timers)

    def enter(self, host: str) -> bool:
        """Return whether one more connection from the IP address `host` is accepted; a dispensable
        one may be closed to make room for it."""
        bound = ""
        if self._counts[host] >= self._connections_per_peer_max:
            if not self._give_up_from(host):
                bound = f"peer connections_per_peer_max={self._connections_per_peer_max}"
        elif self._counts.total() >= self._connections_max:
            # Of the addresses with dispensable connections, the one with the most loses one.
            most = max(self._dispensable, key=self._counts.__getitem__, default="")
            if not self._give_up_from(most):
                bound = f"process connections_max={self._connections_max}"
        if not bound:
            self._counts[host] += 1
            self._is_refusing = False
            return True
        if not self._is_refusing:  # further refusals would tell nothing new
            self.log.warning("connections_refused peer=%s bound=%s", host, bound)
        self._is_refusing = True
        return False

    def _give_up_from(self, host: str) -> bool:
        """Close the connection from `host` that has been dispensable longest, if there is one."""
        guest = next(iter(self._dispensable.get(host, ())), None)
        if guest is None:
            return False
        self.note_dispensable(host, guest, False)
        guest.give_up("another connection takes its place: it has no mount and was silent longest")
        return True

    def note_dispensable(self, host: str, guest: Guest, is_dispensable: bool) -> None:
        """Note whether `guest` may be closed to make room for another connection."""
        from_there = self._dispensable.setdefault(host, {})
        from_there.pop(guest, None)
        if is_dispensable:
            from_there[guest] = None
        if not from_there:
            del self._dispensable[host]

    def leave(self, host: str) -> None:
        self._counts[host] -= 1
        if not self._counts[host]:
            del self._counts[host]

    def weigh(self, guest: Guest, byte_count: int) -> None:
        """Note that `guest` holds `byte_count` bytes; 0: it has gone. Close those that hold most if
        all together exceed their bound."""
        self._held_bytes += byte_count - self._held.pop(guest, 0)
        if byte_count:
            self._held[guest] = byte_count
        if self._held_bytes > self._bytes_max:
            self._make_room()

    def _make_room(self) -> None:
        # Bytes that were sent since the last look are not held any more.
        self._held = {guest: guest.held_bytes for guest in self._held}
        self._held_bytes = sum(self._held.values())
        if self._held_bytes <= self._bytes_max:
            return
        most_first = sorted(self._held, key=self._held.__getitem__, reverse=True)
        for guest in most_first:
            if self._held_bytes <= self._bytes_max * CONNECTIONS_BYTES_LEFT:
                break
            held_bytes, all_bytes = self._held.pop(guest), self._held_bytes
            self._held_bytes -= held_bytes
            guest.give_up(
                f"all connections hold {all_bytes} bytes, more than {self._bytes_max}, and"
                f" this one held most: {held_bytes}"
            )


class ListeningDoor:
    """Implements `tcp_connection.Door`: runs `accept` in a task for each accepted connection."""

    def __init__(
        self,
        guests: Guests,
        accept: Callable[[Connection], Awaitable[None]],
        users: LocalUsers | None = None,
    ) -> None:
        """`users` are those of this machine; None: all connections come by TCP."""
        self._guests = guests
        self._accept = accept
        self._users = users
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def log(self) -> PeerLog:
        return self._guests.log

    def enter(self, connection: TcpConnection) -> bool:
        if not self._guests.enter(connection.peer_host):
            return False
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._tasks.add(task)  # the loop itself keeps weak references only
        task.add_done_callback(self._tasks.discard)
        return True

    async def _serve(self, connection: TcpConnection) -> None:
        try:
            if await self._is_known(connection):
                await self._accept(connection)
        finally:
            connection.close()

    async def _is_known(self, connection: TcpConnection) -> bool:
        """Name the user of a connection of this machine; return False if nobody can."""
        if connection.local_peer is None:
            return True
        from waltz.system.local_users import UserUnknownError

        assert self._users is not None, "given with a socket of this machine"
        try:
            connection.user = await self._users.user(connection.local_peer.uid)
        except UserUnknownError as error:
            self.log.warning("connection_refused peer=%s reason=%s", connection.peer, error)
            return False
        return True

    def leave(self, connection: TcpConnection) -> None:
        self._guests.weigh(connection, 0)
        self._guests.note_dispensable(connection.peer_host, connection, False)
        self._guests.leave(connection.peer_host)

    def weigh(self, connection: TcpConnection, byte_count: int) -> None:
        self._guests.weigh(connection, byte_count)

    def note_dispensable(self, connection: TcpConnection, is_dispensable: bool) -> None:
        self._guests.note_dispensable(connection.peer_host, connection, is_dispensable)


class RealNetwork:
    """Implements `host.Network`."""

    def __init__(
        self,
        listening: TlsSettings = NOT_CONFIGURED,
        connecting: TlsSettings | None = None,
        *,
        handshake_seconds: float | None = None,
        local_paths: Mapping[Address, str] | None = None,
    ) -> None:
        """`connecting` None: the same as `listening`. `handshake_seconds` is how long an accepted
        connection may take to open; None: `limits.HANDSHAKE_SECONDS_MAX`. `local_paths` has the
        socket of this machine at which users are accepted, too, for each address that has one.

        Raises ConfigurationError: a file of certificates or keys cannot be used, or there are
        sockets and the system does not prove who is behind them.
        """
        self._listening = Tls(listening)
        self._connecting = self._listening if connecting is None else Tls(connecting)
        self._handshake_seconds = handshake_seconds
        self._local_paths = dict(local_paths or {})
        self._local_sockets = self._connecting.settings.local_sockets
        if self._local_paths or self._local_sockets is not None:
            from waltz.system.local_socket import check_system

            check_system()
        self._refused_plain: dict[Address, None] = {}
        """Addresses that ended a connection on which this side spoke plain, oldest first. The next
        attempt uses TLS; plain is never tried after TLS."""
        in_all = connections_max()
        per_peer = min(CONNECTIONS_PER_PEER_MAX, int(in_all * CONNECTIONS_PER_PEER_SHARE))
        self._guests = Guests(in_all, per_peer, CONNECTIONS_BYTES_MAX)
        self._resolving = asyncio.Semaphore(RESOLVER_THREADS_MAX)

    async def resolve(self, address: Address) -> Sequence[Address]:
        look_up = partial(socket.getaddrinfo, address.host, address.port, type=socket.SOCK_STREAM)
        # Not the loop's own threads: an application may block all of them until data comes over the
        # very connection whose name is resolved here. Nor a thread that outlives the call.
        thread = RealWorkers(1, daemon=True, name="waltz-resolver")
        try:
            async with asyncio.timeout(RESOLVE_SECONDS_MAX), self._resolving:
                found = await thread.run_blocking(look_up)
        except TimeoutError as error:
            raise ConnectionFailedError(
                f"{address.host!r} was not resolved in {RESOLVE_SECONDS_MAX:g} s"
            ) from error
        except (*FAILURES, RuntimeError) as error:  # no thread can be started
            raise ConnectionFailedError(
                f"{address.host!r} cannot be resolved: {_reason(error)}"
            ) from error
        finally:
            thread.close()
        return list(dict.fromkeys(Address(_numeric(entry[4]), address.port) for entry in found))

    async def connect(self, address: Address, *, name: str | None = None) -> Connection:
        loop = asyncio.get_running_loop()
        if self._local_sockets is not None:
            from waltz.system.local_socket import connected_to

            told = Address(name or address.host, address.port)
            here = connected_to(self._local_sockets, told)
            if here is not None:
                try:
                    _, near = await loop.create_unix_connection(
                        lambda: TcpConnection(self._connecting), sock=here
                    )
                except BaseException:
                    here.close()
                    raise
                return near

        # One attempt only: a plain peer may have been killed before it answered.
        speaks_tls = address in self._refused_plain
        self._refused_plain.pop(address, None)

        def connection() -> TcpConnection:
            return TcpConnection(
                self._connecting,
                server_name=name or address.host,
                speaks_tls=speaks_tls,
                plain_refused=partial(self._try_tls_with, address),
            )

        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                _, connected = await loop.create_connection(connection, address.host, address.port)
            trouble = await _verdict(connected)  # has its own timeout, which names the cause
        except TimeoutError as error:
            raise ConnectionFailedError(
                f"no connection to {address}: no answer in {CONNECT_SECONDS_MAX:g} s"
            ) from error
        except (*FAILURES, RuntimeError) as error:  # the loop resolves names in threads, too
            raise ConnectionFailedError(f"no connection to {address}: {_reason(error)}") from error
        if trouble:
            raise ConnectionFailedError(f"no connection to {address}: {trouble}")
        if speaks_tls:
            log.info("tls_spoken address=%s: it ended a connection that was plain", address)
        return connected

    def _try_tls_with(self, address: Address) -> None:
        """Begin the next connection to the address with TLS."""
        self._refused_plain[address] = None
        if len(self._refused_plain) > TLS_TRIED_MAX:
            del self._refused_plain[next(iter(self._refused_plain))]

    async def listen(
        self, address: Address, accept: Callable[[Connection], Awaitable[None]]
    ) -> TcpListener:
        loop = asyncio.get_running_loop()
        path = self._local_paths.get(address)
        door = ListeningDoor(self._guests, accept, None if path is None else _local_users())

        def connection() -> TcpConnection:
            return TcpConnection(self._listening, door, handshake_seconds=self._handshake_seconds)

        try:
            # Port 0 on a name with several addresses would take a different port on each.
            hosts: list[str] | str = address.host
            if address.port == 0:
                found = await loop.getaddrinfo(address.host, 0, type=socket.SOCK_STREAM)
                hosts = [str(found[0][4][0])]
            server = await loop.create_server(
                connection,
                hosts,
                address.port,
                backlog=CONNECTIONS_WAITING_MAX,
            )
        except (OSError, UnicodeError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                raise ConfigurationError(
                    f"port {address.port} on {address.host} is in use;"
                    " stop the process that holds it or choose another port"
                ) from error
            raise ConfigurationError(f"cannot listen on {address}: {_reason(error)}") from error
        bound = Address(address.host, server.sockets[0].getsockname()[1])
        if path is None:
            return TcpListener(server, bound)
        from waltz.system.local_socket import LocalSocket

        try:
            listening = LocalSocket(path)
            near = await loop.create_unix_server(
                connection, sock=listening.socket, backlog=CONNECTIONS_WAITING_MAX
            )
        except BaseException:
            server.close()
            raise
        log.info("local_socket address=%s path=%s", bound, path)
        return TcpListener(server, bound, (near, listening))


def _local_users() -> LocalUsers:
    from waltz.system.local_users import LocalUsers

    return LocalUsers()


def connections_max() -> int:
    """Return how many connections this process accepts, given its limit of descriptors."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return min(CONNECTIONS_MAX, int(descriptors * CONNECTIONS_DESCRIPTORS_SHARE))


async def _verdict(connection: TcpConnection) -> str:
    try:
        return await connection.verdict
    except BaseException:
        connection.close()
        raise


def _numeric(found: tuple[Any, ...]) -> str:
    """Return the IP address of a socket address; a link-local one names its link."""
    host = str(found[0])
    scope = found[3] if len(found) == 4 else 0
    return f"{host}%{scope}" if scope and "%" not in host else host


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
