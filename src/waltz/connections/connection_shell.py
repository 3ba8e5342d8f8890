"""Connections to servers: one logical connection with its handshake, and all that a client keeps.

Owns sockets, links and heartbeats. `ClusterConnection` decides which connections there are; the
sides decide what is said on them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Final, Protocol, assert_never

from waltz.connections.cluster_connection import (
    AbandonConnection,
    AttachPartition,
    Broken,
    ClientStopped,
    ClusterConnection,
    ConnectionGreeted,
    DetachPartition,
    Disconnected,
    Effect,
    Event,
    OpenConnection,
    RaiseGeneration,
    RestoreConnection,
    Restored,
    Role,
    RoleRenewed,
    ViewChanged,
)
from waltz.connections.heartbeats import Duty, Heartbeats
from waltz.connections.logical_handshake import Agreement, ConnectionSettings, Handshake
from waltz.connections.nodes_shell import open_transport
from waltz.connections.tasks_shell import Tasks
from waltz.errors import (
    ConnectionUnknownError,
    HandshakeRefusedError,
    LocalProtocolError,
    PermissionDeniedError,
    RemoteProtocolError,
    UnavailableError,
)
from waltz.host import Connection, Host
from waltz.limits import (
    CLIENT_MAILBOX_EVENTS_MAX,
    HANDSHAKE_SECONDS_MAX,
    KEEP_ALIVE_SECONDS,
    RECONNECT_SECONDS_MAX,
    TIMER_SECONDS_MIN,
)
from waltz.machine_shell import Mailbox, run
from waltz.types import Address, Generation, PartitionId
from waltz.wire.client_protocol import CLIENT_GREETING
from waltz.wire.clients_protocol import AppliedMarks
from waltz.wire.handshake import Link
from waltz.wire.lifecycle_protocol import (
    LIFECYCLE_SINCE,
    MAGIC_BYTES,
    ConnectionRestoreRequest,
    ConnectionRestoreResponse,
    Feature,
)
from waltz.wire.logical_link import LogicalLink
from waltz.wire.message import Message

logger = logging.getLogger(__name__)

RESTORED: Final = ConnectionSettings()
UNRESTORED: Final = ConnectionSettings(
    features=(Feature.HEARTBEAT, Feature.HEADERS, Feature.HISTORY, Feature.DENIALS)
)
"""Settings of connections whose owner opens new ones instead of restoring broken ones."""


class ServerConnection:
    """One logical connection to a server, after the handshake; before version 5 of the protocol it
    is one TCP connection.

    `agreement` is the result of the handshake, None before version 5.
    """

    def __init__(
        self,
        host: Host,
        address: Address,
        settings: ConnectionSettings,
        link: LogicalLink,
        agreement: Agreement | None,
    ) -> None:
        self.address = address
        self.agreement = agreement
        self._host = host
        self._settings = settings
        self._link = link
        self._connection: Connection | None = None
        self._early: Sequence[Message] = ()
        self._restores = 0
        """Attempts to restore this connection."""
        self._written = True
        self._heartbeats: Heartbeats | None = None
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls, host: Host, address: Address, settings: ConnectionSettings = UNRESTORED
    ) -> ServerConnection:
        """Connect and shake hands.

        Raises ConnectionFailedError; UnavailableError: the connection ended or fell silent
        meanwhile; RemoteProtocolError: the peer is not a server of Waltz; HandshakeRefusedError.
        """
        async with _Introduction(host, address, settings) as introduction:
            link, rest = await introduction.greet()
            agreement: Agreement | None = None
            if link.version is not None and link.version >= LIFECYCLE_SINCE:
                agreement, rest = await introduction.shake_hands(rest)
            link.opened()
        logical = LogicalLink(link, agreement.features if agreement is not None else ())
        opened = cls(host, address, settings, logical, agreement)
        opened._carry_on(introduction.connection, rest)
        return opened

    async def restore(self, address: Address) -> None:
        """Resume over a new TCP connection to the same server.

        Raises UnavailableError: another attempt may succeed; ConnectionUnknownError: no attempt
        will; RemoteProtocolError: the peer is not a server of Waltz; LocalProtocolError: this
        connection cannot be restored.
        """
        assert self.agreement is not None, "only what was agreed on is broken"
        self.agreement.expect(Feature.RESTORE)
        self._restores += 1
        async with _Introduction(self._host, address, self._settings) as introduction:
            link, rest = await introduction.greet()
            if link.version != self._link.version:
                raise ConnectionUnknownError(
                    f"{address} now speaks version {link.version}; the connection was agreed on"
                    f" with version {self._link.version}"
                )
            answer, rest = await introduction.ask(
                ConnectionRestoreRequest(
                    MAGIC_BYTES, self.agreement.connection_id, self._link.received, self._restores
                ),
                rest,
            )
            if not isinstance(answer, ConnectionRestoreResponse):
                raise RemoteProtocolError(f"{type(answer).__name__} as answer to a restore")
            if not answer.restored:
                raise ConnectionUnknownError(f"{address}: {answer.text}")
            again = self._link.resume(answer.received)
            if again is None:
                raise ConnectionUnknownError("the messages to send again are no longer kept")
        introduction.connection.write(again)
        self._carry_on(introduction.connection, rest)

    @property
    def is_carried(self) -> bool:
        """Return whether there is a TCP connection, as far as is known."""
        return self._connection is not None

    @property
    def is_restorable(self) -> bool:
        """Return whether the connection could be resumed after a break."""
        return self._link.is_restorable

    @property
    def knows_batches(self) -> bool:
        """Whether the server tells the outcome of each append, and knows ranges of records."""
        return self._link.knows_batches

    def has(self, feature: Feature) -> bool:
        """Return whether both sides use the feature, as agreed on; none before version 5."""
        return feature in self._link.features

    async def receive(self) -> Sequence[Message] | None:
        """Return the messages that have arrived, possibly none; None once the connection has ended.

        Raises RemoteProtocolError.
        """
        if self._early:
            early, self._early = self._early, ()
            return early
        connection = self._connection
        if connection is None or self._link.end_reason is not None:
            return None
        heartbeats = self._heartbeats
        if heartbeats is not None:
            now = self._host.clock.now() if heartbeats.is_unanswered else None
            heartbeats.begin_reading(now)
        data = await connection.read()
        if self._heartbeats is not None:
            self._heartbeats.hear()
        if not data:
            return None
        messages = self._link.receive(data)
        self._write_retained(self._link.take_replies())
        return messages

    def put_back(self, messages: Sequence[Message]) -> None:
        """Let the next `receive` return these messages."""
        self._early = [*messages, *self._early]

    def send(self, messages: Sequence[Message]) -> list[tuple[Message, LocalProtocolError]]:
        """Send all `messages` with one write; return those that the server's version cannot
        express.

        While the connection is broken, messages are kept up to a bound; beyond it the connection no
        longer `is_restorable`.
        """
        try:
            self._write(b"".join(map(self._link.encode, messages)))
        except LocalProtocolError:
            return self._send_possible(messages)
        except RemoteProtocolError:
            pass  # the link is dead already; the reader of this connection learns why
        return []

    def _send_possible(
        self, messages: Sequence[Message]
    ) -> list[tuple[Message, LocalProtocolError]]:
        frames, refused = [], []
        for message in chain.from_iterable(map(self._link.apart, messages)):
            try:
                frames.append(self._link.encode(message))
            except LocalProtocolError as error:
                refused.append((message, error))
        self._write(b"".join(frames))
        return refused

    def break_off(self) -> None:
        """Take note that the TCP connection has ended; what is sent from now on is kept."""
        connection, self._connection = self._connection, None
        self._heartbeats = None
        self._disarm()
        self._link.break_off()
        if connection is not None:
            connection.close()

    def close(self, reason: str = "the client closes") -> None:
        """Give the connection up, and tell the server if it can be told. Idempotent."""
        farewell = self._link.end(reason)
        self._disarm()
        if self._connection is not None:
            self._connection.write(farewell)
            self._connection.close()

    def _carry_on(self, connection: Connection, rest: bytes) -> None:
        """Talk over `connection`, from which `rest` was read already. Raises
        RemoteProtocolError."""
        self._connection = connection
        try:
            self._early = self._link.receive(rest)
        except RemoteProtocolError:
            connection.close()
            raise
        self._write_retained(self._link.take_replies())
        seconds = None
        if self.agreement is not None:
            seconds = self.agreement.heartbeat_seconds(self._settings)
        if seconds is not None:
            self._heartbeats = Heartbeats(*seconds, self._host.clock.now())
            self._arm()
        else:
            self._watch_idleness()

    def _write(self, data: bytes) -> None:
        if data:
            self._write_retained(self._link.retain(data))

    def _write_retained(self, data: bytes) -> None:
        if data:
            self._written = True
            if self._connection is not None:
                self._connection.write(data)

    # Heartbeats

    def _watch_idleness(self) -> None:
        if not self._written:
            self._write(self._link.link.keep_alive())
        self._written = False
        self._timer = asyncio.get_running_loop().call_later(
            KEEP_ALIVE_SECONDS, self._watch_idleness
        )

    def _arm(self) -> None:
        assert self._heartbeats is not None
        if self._timer is None:
            seconds = self._heartbeats.deadline - self._host.clock.now()
            self._timer = asyncio.get_running_loop().call_later(
                max(seconds, TIMER_SECONDS_MIN), self._look
            )

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._heartbeats is None or self._connection is None:
            return
        match self._heartbeats.step(self._host.clock.now()):
            case Duty.GIVE_UP:
                logger.warning("server_silent peer=%s", self._connection.peer)
                self._connection.close()
                return
            case Duty.BEAT:
                with contextlib.suppress(
                    RemoteProtocolError
                ):  # the reader of this connection learns why
                    self._write_retained(self._link.heartbeat(wants_answer=True))
            case Duty.NOTHING:
                pass
        self._arm()


class _Introduction:
    """A TCP connection until its handshake is done; any failure closes it."""

    def __init__(self, host: Host, address: Address, settings: ConnectionSettings) -> None:
        self._host = host
        self._address = address
        self._settings = settings
        self._link = Link(settings.codec, CLIENT_GREETING, opens=True)
        self._time = asyncio.timeout(HANDSHAKE_SECONDS_MAX)
        self.connection: Connection

    async def __aenter__(self) -> _Introduction:
        self.connection = await open_transport(self._host, self._address)
        await self._time.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.connection.close()
        try:
            await self._time.__aexit__(kind, error, trace)
        except TimeoutError:
            raise UnavailableError(
                f"{self._address} sent no Hello in {HANDSHAKE_SECONDS_MAX:g} s"
            ) from None

    async def greet(self) -> tuple[Link, bytes]:
        """Return the link once the version is known, and the bytes that followed the greeting."""
        self.connection.write(self._link.hello())
        while (rest := self._link.greet(await self._read())) is None:
            pass
        return self._link, rest

    async def shake_hands(self, rest: bytes) -> tuple[Agreement, bytes]:
        """Return what both sides agreed on, and the bytes that followed the answer."""
        settings = self._settings
        handshake = Handshake(
            settings.features,
            token=settings.token,
            label=settings.label,
            bearer=self.connection.token,
        )
        while True:
            answer, rest = await self.ask(handshake.request, rest)
            agreement = handshake.take(answer)
            if agreement is not None:
                return agreement, rest

    async def ask(self, request: Message, rest: bytes) -> tuple[Message, bytes]:
        """Send `request`; return the answer, and the bytes that followed it."""
        self.connection.write(self._link.encode(request))
        while (first := self._link.receive_first(rest)) is None:
            rest = await self._read()
        return first

    async def _read(self) -> bytes:
        data = await self.connection.read()
        if not data:
            trouble = self.connection.trouble and f": {self.connection.trouble}"
            raise UnavailableError(
                f"{self._address} ended the connection during the handshake{trouble}"
            )
        return data


class ServerWatcher(Protocol):
    """Is told which servers the client has connections to, one of each role."""

    def server_connected(self, address: Address) -> None: ...

    def server_restored(self, address: Address) -> None:
        """A broken connection was resumed; nothing was lost."""
        ...

    def server_disconnected(self, address: Address) -> None: ...


class Side(Protocol):
    """The part of a client that talks on the connections of one role."""

    def attach(
        self,
        partition_id: PartitionId,
        connection_sequence: int,
        *,
        knows_batches: bool,
        gives_marks: bool,
    ) -> None:
        """The partition's server can be talked to on this connection from now on."""
        ...

    def detach(self, partition_id: PartitionId, connection_sequence: int) -> None: ...

    async def receive(self, connection_sequence: int, messages: Sequence[Message]) -> None:
        """Take `messages`, at least one; the connection is not read before this returns."""
        ...


OpenServer = Callable[[Address, Role, ConnectionSettings], Awaitable[ServerConnection]]


class Connections:
    """All connections of a client to the servers of its cluster, kept up until `stop`."""

    def __init__(
        self,
        host: Host,
        tasks: Tasks,
        sides: Mapping[Role, Side],
        on_generation: Callable[[PartitionId, Generation], None],
        settings: ConnectionSettings = RESTORED,
        *,
        open_server: OpenServer,
        watchers: Sequence[ServerWatcher] = (),
        reconnect_seconds_max: float = RECONNECT_SECONDS_MAX,
    ) -> None:
        self._settings = settings
        self._host = host
        self._tasks = tasks
        self._sides = sides
        self._on_generation = on_generation
        self._open_server = open_server
        self._watchers = watchers
        self._machine = ClusterConnection(tuple(sides), reconnect_seconds_max=reconnect_seconds_max)
        self._mailbox: Mailbox[Event] = Mailbox(host.clock, CLIENT_MAILBOX_EVENTS_MAX)
        self._open: dict[int, ServerConnection] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._troubles: dict[Address, str] = {}
        """The error that ended the last attempt to reach each server."""

    def trouble_of(self, partition_id: PartitionId) -> str:
        """Return why the partition cannot be used, as the end of a sentence."""
        address = self._machine.address_of(partition_id)
        if address is None:
            return ": no server has it"
        trouble = self._troubles.get(address)
        if trouble is None:
            return f": {address} does not take mounts of it"
        return f": {trouble}" if str(address) in trouble else f": {address}: {trouble}"

    def start(self) -> None:
        self._tasks.start(run(self._machine, self._mailbox, self._host, self._perform))

    def change_view(self, partitions: Mapping[PartitionId, tuple[Address, Generation]]) -> None:
        """Connect to the servers of `partitions` and to no others."""
        self._mailbox.put(ViewChanged(partitions))

    def renew(self, role: Role) -> None:
        """Replace the connections of this role by new ones."""
        self._mailbox.put(RoleRenewed(role))

    def stop(self) -> None:
        """Close all connections."""
        self._mailbox.put(ClientStopped())

    def send(
        self, connection_sequence: int, messages: Sequence[Message]
    ) -> list[tuple[Message, LocalProtocolError]]:
        """Send on that connection, or nowhere if it has ended; return the messages that its version
        cannot express."""
        connection = self._open.get(connection_sequence)
        if connection is None:
            return []
        refused = connection.send(messages)
        if not connection.is_carried and not connection.is_restorable:
            logger.warning("connection_overflowed sequence=%d", connection_sequence)
            self._give_up(connection_sequence)
        return refused

    def tell_marks(self, connection_sequence: int, marks: AppliedMarks) -> None:
        """Send `marks` on that connection, if its server wants to hear of them."""
        connection = self._open.get(connection_sequence)
        if connection is not None and connection.has(Feature.CLIENTS):
            self.send(connection_sequence, [marks])

    def break_off(self, connection_sequence: int, reason: str) -> None:
        """End a connection that is beyond repair; a new one replaces it (CI-06)."""
        connection = self._open.get(connection_sequence)
        if connection is not None:
            logger.warning("connection_broken_off reason=%s", reason)
            connection.close(reason)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case OpenConnection():
                task = self._tasks.start(self._keep(effect, partial(self._connect, effect)))
                self._running[effect.connection_sequence] = task
            case RestoreConnection():
                task = self._tasks.start(self._keep(effect, partial(self._restore, effect)))
                self._running[effect.connection_sequence] = task
            case AbandonConnection():
                self._close(effect.connection_sequence)
            case AttachPartition():
                sequence = effect.connection_sequence
                connection = self._open.get(sequence)
                if connection is not None:  # otherwise it has just ended, and is detached next
                    side = self._sides[effect.role]
                    side.attach(
                        effect.partition_id,
                        sequence,
                        knows_batches=connection.knows_batches,
                        gives_marks=connection.has(Feature.MARKS),
                    )
            case DetachPartition():
                self._sides[effect.role].detach(effect.partition_id, effect.connection_sequence)
            case RaiseGeneration():
                self._on_generation(effect.partition_id, effect.generation)
            case _:
                assert_never(effect)

    async def _connect(self, effect: OpenConnection) -> ServerConnection:
        connection = await self._open_server(effect.address, effect.role, self._settings)
        self._open[effect.connection_sequence] = connection
        self._troubles.pop(effect.address, None)
        self._mailbox.put(ConnectionGreeted(effect.connection_sequence))
        for watcher in self._watchers:
            watcher.server_connected(effect.address)
        return connection

    async def _restore(self, effect: RestoreConnection) -> ServerConnection:
        connection = self._open[effect.connection_sequence]
        try:
            await connection.restore(effect.address)
        except (ConnectionUnknownError, RemoteProtocolError):
            connection.close()
            raise
        logger.info("connection_restored address=%s", effect.address)
        self._mailbox.put(Restored(effect.connection_sequence))
        for watcher in self._watchers:
            watcher.server_restored(effect.address)
        return connection

    async def _keep(
        self,
        effect: OpenConnection | RestoreConnection,
        connect: Callable[[], Awaitable[ServerConnection]],
    ) -> None:
        """Run a connection from its opening, or from its restoration, until it ends next."""
        sequence = effect.connection_sequence
        side = self._sides[effect.role]
        try:
            connection = await connect()
            while (messages := await connection.receive()) is not None:
                if messages:
                    await side.receive(sequence, messages)
            logger.debug("connection_ended address=%s", effect.address)
        except (
            UnavailableError,
            RemoteProtocolError,
            HandshakeRefusedError,
            PermissionDeniedError,
        ) as error:
            logger.info("connection_failed address=%s error=%s", effect.address, error)
            self._troubles[effect.address] = str(error)
            if isinstance(error, RemoteProtocolError) and sequence in self._open:
                self._open[sequence].close()
        except asyncio.CancelledError:
            if sequence in self._open:  # the client closes; nothing has to be kept
                self._open[sequence].close()
            raise
        finally:
            self._running.pop(sequence, None)
            found = self._open.get(sequence)
            if found is not None and found.is_restorable and found.agreement is not None:
                found.break_off()
                jitter = self._host.random.uniform(0.0, 1.0)
                self._mailbox.put(Broken(sequence, found.agreement.restore_seconds, jitter))
            else:
                self._give_up(sequence)

    def _close(self, connection_sequence: int) -> None:
        connection = self._open.pop(connection_sequence, None)
        if connection is not None:
            connection.close()
            for watcher in self._watchers:
                watcher.server_disconnected(connection.address)
        task = self._running.pop(connection_sequence, None)
        if task is not None:
            task.cancel()

    def _give_up(self, connection_sequence: int) -> None:
        self._close(connection_sequence)
        self._mailbox.put(Disconnected(connection_sequence, self._host.random.uniform(0.0, 1.0)))
