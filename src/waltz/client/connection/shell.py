"""Connections to servers: one with its handshake, and all that a client keeps.

Owns sockets and links. Which connections there are is decided by `ClusterConnection`; what is said
on them is the sides' business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, assert_never

from waltz.client.cluster_connection import (
    AttachPartition,
    CloseConnection,
    ClusterConnection,
    Connected,
    DetachPartition,
    Disconnected,
    Effect,
    Event,
    OpenConnection,
    RaiseGeneration,
    Role,
    Stopped,
    ViewChanged,
)
from waltz.client.tasks.shell import Tasks
from waltz.errors import LocalProtocolError, RemoteProtocolError, UnavailableError
from waltz.host import Connection, Host
from waltz.limits import (
    CLIENT_MAILBOX_EVENTS_MAX,
    HANDSHAKE_SECONDS_MAX,
    KEEP_ALIVE_SECONDS,
)
from waltz.shell import Mailbox, run
from waltz.types import Address, Generation, PartitionId
from waltz.wire.client_protocol import CLIENT_CODEC, CLIENT_GREETING
from waltz.wire.handshake import Link
from waltz.wire.message import Message

logger = logging.getLogger(__name__)


class ServerConnection:
    """One connection to a server, from the handshake on."""

    def __init__(self, connection: Connection, link: Link) -> None:
        self._connection = connection
        self._link = link
        self._early: list[Message] = []
        self._written = True
        self._keep_alive: asyncio.TimerHandle | None = None

    @classmethod
    async def open(cls, host: Host, address: Address) -> ServerConnection:
        """Connect and shake hands.

        Raises ConnectionFailedError; UnavailableError: it ended or fell silent meanwhile;
        RemoteProtocolError: what answers there is not a server of ours.
        """
        connection = await host.network.connect(address)
        opened = cls(connection, Link(CLIENT_CODEC, CLIENT_GREETING))
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
                await opened._greet(address)
        except TimeoutError:
            opened.close()
            raise UnavailableError(
                f"{address} did not greet in {HANDSHAKE_SECONDS_MAX:g} s"
            ) from None
        except BaseException:
            opened.close()
            raise
        opened._watch_idleness()
        return opened

    async def _greet(self, address: Address) -> None:
        self._connection.write(self._link.hello())
        while self._link.version is None:
            data = await self._connection.read()
            if not data:
                raise UnavailableError(f"{address} ended the connection during the handshake")
            self._early += self._link.receive(data)

    @property
    def version(self) -> int:
        """The one agreed on."""
        assert self._link.version is not None
        return self._link.version

    async def receive(self) -> Sequence[Message] | None:
        """Return what has arrived, possibly nothing whole; None once the connection has ended.

        Raises RemoteProtocolError.
        """
        if self._early:
            early, self._early = self._early, []
            return early
        data = await self._connection.read()
        return self._link.receive(data) if data else None

    def send(self, messages: Sequence[Message]) -> list[tuple[Message, LocalProtocolError]]:
        """Send all `messages` with one write; return those the server's version cannot express."""
        encode = self._link.encode
        try:
            self._write(b"".join([encode(message) for message in messages]))
        except LocalProtocolError:
            return self._send_possible(messages)
        except RemoteProtocolError:
            pass  # the link is dead already; whoever reads from it learns why
        return []

    def _send_possible(
        self, messages: Sequence[Message]
    ) -> list[tuple[Message, LocalProtocolError]]:
        frames, refused = [], []
        for message in messages:
            try:
                frames.append(self._link.encode(message))
            except LocalProtocolError as error:
                refused.append((message, error))
        self._write(b"".join(frames))
        return refused

    def close(self) -> None:
        """Idempotent."""
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        self._connection.close()

    def _write(self, data: bytes) -> None:
        self._written = True
        if data:
            self._connection.write(data)

    def _watch_idleness(self) -> None:
        if not self._written:
            self._connection.write(self._link.keep_alive())
        self._written = False
        self._keep_alive = asyncio.get_running_loop().call_later(
            KEEP_ALIVE_SECONDS, self._watch_idleness
        )


class Side(Protocol):
    """Who talks on the connections of one role."""

    def attach(self, partition_id: PartitionId, connection_sequence: int, version: int) -> None:
        """The partition's server can be talked to on this connection from now on, in the version
        agreed on."""
        ...

    def detach(self, partition_id: PartitionId, connection_sequence: int) -> None: ...

    async def receive(self, connection_sequence: int, messages: Sequence[Message]) -> None:
        """Take `messages`, at least one; the connection is not read before this returns."""
        ...


class Connections:
    """All connections of a client to the servers of its cluster, kept up until `stop`."""

    def __init__(
        self,
        host: Host,
        tasks: Tasks,
        sides: Mapping[Role, Side],
        on_generation: Callable[[PartitionId, Generation], None],
    ) -> None:
        self._host = host
        self._tasks = tasks
        self._sides = sides
        self._on_generation = on_generation
        self._machine = ClusterConnection(tuple(sides))
        self._mailbox: Mailbox[Event] = Mailbox(host.clock, CLIENT_MAILBOX_EVENTS_MAX)
        self._open: dict[int, ServerConnection] = {}
        self._opening: dict[int, asyncio.Task[None]] = {}

    def start(self) -> None:
        self._tasks.start(run(self._machine, self._mailbox, self._host, self._perform))

    def change_view(self, partitions: Mapping[PartitionId, tuple[Address, Generation]]) -> None:
        """Connect to these servers and to no others."""
        self._mailbox.put(ViewChanged(partitions))

    def stop(self) -> None:
        """Close all connections."""
        self._mailbox.put(Stopped())

    def send(
        self, connection_sequence: int, messages: Sequence[Message]
    ) -> list[tuple[Message, LocalProtocolError]]:
        """Send on that connection, or nowhere if it has ended; return what it cannot express."""
        connection = self._open.get(connection_sequence)
        return connection.send(messages) if connection is not None else []

    def break_off(self, connection_sequence: int, reason: str) -> None:
        """End a connection that is beyond repair; another one takes its place (CI-06)."""
        connection = self._open.get(connection_sequence)
        if connection is not None:
            logger.warning("connection_broken_off reason=%s", reason)
            connection.close()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case OpenConnection():
                self._opening[effect.connection_sequence] = self._tasks.start(self._keep(effect))
            case CloseConnection():
                task = self._opening.pop(effect.connection_sequence, None)
                if task is not None:
                    task.cancel()
                connection = self._open.get(effect.connection_sequence)
                if connection is not None:
                    connection.close()
            case AttachPartition():
                sequence = effect.connection_sequence
                connection = self._open.get(sequence)
                if connection is not None:  # else it has just ended, and is detached next
                    side = self._sides[effect.role]
                    side.attach(effect.partition_id, sequence, connection.version)
            case DetachPartition():
                self._sides[effect.role].detach(effect.partition_id, effect.connection_sequence)
            case RaiseGeneration():
                self._on_generation(effect.partition_id, effect.generation)
            case _:
                assert_never(effect)

    async def _keep(self, effect: OpenConnection) -> None:
        """Run one connection from its opening to its end."""
        sequence = effect.connection_sequence
        side = self._sides[effect.role]
        try:
            connection = await ServerConnection.open(self._host, effect.address)
            self._open[sequence] = connection
            self._mailbox.put(Connected(sequence))
            while (messages := await connection.receive()) is not None:
                if messages:
                    await side.receive(sequence, messages)
            logger.debug("connection_ended address=%s", effect.address)
        except (UnavailableError, RemoteProtocolError) as error:
            logger.info("connection_failed address=%s error=%s", effect.address, error)
        finally:
            self._opening.pop(sequence, None)
            ended = self._open.pop(sequence, None)
            if ended is not None:
                ended.close()
            self._mailbox.put(Disconnected(sequence, self._host.random.uniform(0.0, 1.0)))
