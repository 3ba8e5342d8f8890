"""The cluster as its servers report it: the source of views for clients without a coordinator.

Owns the connection to the server that was found first, the guide, and the question asked on every
other connection before it is used: what the cluster is, which also shows whether it is still the
same cluster. `ClusterDiscovery` decides when to search for which server.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, assert_never
from uuid import UUID

from waltz.cluster.cluster_shell import ClusterSnapshot
from waltz.cluster.histories import Histories
from waltz.connections.cluster_connection import Role
from waltz.connections.cluster_discovery import (
    ClusterDiscovery,
    ClusterIsAnother,
    ConnectionDown,
    ConnectionUp,
    Effect,
    Event,
    GuideFound,
    GuideLost,
    GuideNotFound,
    OpeningBegun,
    ReleaseGuide,
    ShowView,
    Told,
)
from waltz.connections.connection_shell import UNRESTORED, ServerConnection, Side
from waltz.connections.initial_connection import NotConnected, TryNode
from waltz.connections.known_histories_shell import KnownHistories, OnHistories, ask_first
from waltz.connections.logical_handshake import ConnectionSettings
from waltz.connections.sources_shell import ClusterSource, CoordinatorSource
from waltz.connections.tasks_shell import Tasks
from waltz.errors import (
    ClusterChangedError,
    ConnectionFailedError,
    HandshakeRefusedError,
    PermissionDeniedError,
    ProtocolError,
    RemoteProtocolError,
    UnavailableError,
)
from waltz.host import Host
from waltz.limits import (
    CLIENT_MAILBOX_EVENTS_MAX,
    CONNECTION_SECONDS_MAX,
    RECONNECT_BROKEN_SECONDS_MAX,
    RECONNECT_SECONDS_MAX,
    REFRESH_SECONDS,
)
from waltz.machine_shell import Mailbox, run
from waltz.types import Address, ClientId, PartitionId
from waltz.wire.discovery_protocol import (
    ClientIdRequest,
    ClientIdResponse,
    Topology,
    TopologyRequest,
)
from waltz.wire.message import Message

logger = logging.getLogger(__name__)

A = TypeVar("A", bound=Message)


class _Listening:
    """Takes topology reports off a connection and passes the other messages on to `side`."""

    def __init__(self, side: Side, take: Callable[[Topology], None]) -> None:
        self._side = side
        self._take = take

    def attach(
        self,
        partition_id: PartitionId,
        connection_sequence: int,
        *,
        knows_batches: bool,
        gives_marks: bool,
    ) -> None:
        self._side.attach(
            partition_id,
            connection_sequence,
            knows_batches=knows_batches,
            gives_marks=gives_marks,
        )

    def detach(self, partition_id: PartitionId, connection_sequence: int) -> None:
        self._side.detach(partition_id, connection_sequence)

    async def receive(self, connection_sequence: int, messages: Sequence[Message]) -> None:
        others = [message for message in messages if type(message) is not Topology]
        if len(others) < len(messages):
            for message in messages:
                if type(message) is Topology:
                    self._take(message)
        if others:
            await self._side.receive(connection_sequence, others)


@dataclass(frozen=True, slots=True)
class DiscoverySettings:
    """The servers to ask, and the times in seconds; `refresh_seconds` 0 turns refreshing off."""

    servers: Sequence[Address]
    connection_seconds_max: float = CONNECTION_SECONDS_MAX
    reconnect_seconds_max: float = RECONNECT_SECONDS_MAX
    refresh_seconds: float = REFRESH_SECONDS


class DiscoverySource:
    """Implements `ClusterSource` with the servers of the cluster.

    `on_changed` is called once, when another cluster answers; after that the source does nothing.
    """

    def __init__(
        self,
        host: Host,
        tasks: Tasks,
        settings: DiscoverySettings,
        on_view: Callable[[ClusterSnapshot], None],
        on_changed: Callable[[ClusterChangedError, UUID, UUID], None],
        on_histories: OnHistories,
    ) -> None:
        self._host = host
        self._tasks = tasks
        self._settings = settings
        self._on_view = on_view
        self._on_changed = on_changed
        self._histories = KnownHistories(on_histories)
        self._machine = ClusterDiscovery(
            settings.servers,
            connection_seconds_max=settings.connection_seconds_max,
            reconnect_seconds_max=settings.reconnect_seconds_max,
            refresh_seconds=settings.refresh_seconds,
        )
        self._mailbox: Mailbox[Event] = Mailbox(host.clock, CLIENT_MAILBOX_EVENTS_MAX)
        self._running: asyncio.Task[None] | None = None
        self._guide: asyncio.Task[None] | None = None
        self._is_for_client = False
        self._client_id: ClientId | None = None
        self._started: asyncio.Future[None] | None = None
        self._error: ClusterChangedError | None = None
        self._denied: PermissionDeniedError | None = None
        """Why the server that was asked last denies this process everything; None: it does not."""
        self._numbers = itertools.count(1)

    async def start_client(self) -> ClientId:
        """Find the cluster; return the client ID that it allocated. Raises as `start`."""
        self._is_for_client = True
        await self.start()
        assert self._client_id is not None
        return self._client_id

    async def start(self) -> None:
        """Find the cluster.

        Raises ConnectionFailedError: no server in time; RemoteProtocolError: the peer is not a
        server of Waltz, or too old; PermissionDeniedError.
        """
        self._started = asyncio.get_running_loop().create_future()
        self._running = self._tasks.start(
            run(self._machine, self._mailbox, self._host, self._perform)
        )
        self._mailbox.put(OpeningBegun(self._host.random.uniform(0.0, 1.0)))
        waits: list[asyncio.Future[None]] = [self._started, self._running]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if not self._started.done():
            self._running.result()
        self._started.result()

    async def stop(self) -> None:
        tasks = [task for task in (self._guide, self._running) if task is not None]
        self._guide = self._running = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def current(self) -> ClusterSnapshot:
        return self._machine.snapshot

    @property
    def histories(self) -> Histories | None:
        return self._histories.current

    async def allocate_client_id(self) -> ClientId:
        """Ask one server after the other until one allocates a client ID. Raises
        ClusterChangedError, PermissionDeniedError."""
        while self._error is None:
            for address in self._machine.candidates():
                try:
                    connection = await self.open(address, Role.STREAM, UNRESTORED)
                    try:
                        return await self._ask_client_id(connection)
                    finally:
                        connection.close()
                except (UnavailableError, RemoteProtocolError, HandshakeRefusedError) as error:
                    logger.info("no_client_id server=%s error=%s", address, error)
            await asyncio.sleep(self._host.random.uniform(0.5, 1.0) * RECONNECT_BROKEN_SECONDS_MAX)
        raise self._error

    # Connections

    async def open(
        self, address: Address, role: Role, settings: ConnectionSettings
    ) -> ServerConnection:
        """Open a connection to a server of the cluster.

        Raises as `ServerConnection.open`; RemoteProtocolError also if the server belongs to another
        cluster: nothing of it is taken.
        """
        if self._error is not None:
            raise RemoteProtocolError(str(self._error))
        connection = await ServerConnection.open(self._host, address, settings)
        try:
            topology = await self._ask_topology(connection, subscribe=role is Role.REQUESTS)
            known = self._machine.snapshot.cluster_key
            self._mailbox.put(Told(topology))
            if topology.cluster_key != known:
                raise RemoteProtocolError(str(_changed(known, topology.cluster_key)))
            await self._histories.learn(connection, known)
        except BaseException:
            connection.close()
            raise
        return connection

    def side(self, role: Role, side: Side) -> Side:
        return _Listening(side, self._take_topology) if role is Role.REQUESTS else side

    def server_connected(self, address: Address) -> None:
        self._mailbox.put(ConnectionUp(address))

    def server_restored(self, address: Address) -> None:
        """Do nothing: subscriptions survive a restoration."""

    def server_disconnected(self, address: Address) -> None:
        self._mailbox.put(ConnectionDown(address, self._jitter()))

    def _take_topology(self, message: Message) -> None:
        if isinstance(message, Topology):
            self._mailbox.put(Told(message))

    def _jitter(self) -> float:
        return self._host.random.uniform(0.0, 1.0)

    # Questions to servers

    async def _ask_topology(self, connection: ServerConnection, *, subscribe: bool) -> Topology:
        return await self._ask(connection, TopologyRequest(subscribe), Topology)

    async def _ask_client_id(self, connection: ServerConnection) -> ClientId:
        request = ClientIdRequest(next(self._numbers))
        response = await self._ask(connection, request, ClientIdResponse)
        if response.client_id is None:
            raise UnavailableError(f"the server gave no client ID: {response.error}")
        return response.client_id

    async def _ask(self, connection: ServerConnection, request: Message, kind: type[A]) -> A:
        """Ask on a connection that has no reader yet. Other messages are dropped: a subscription
        reports the newest state again."""
        return await ask_first(connection, request, kind, self._take_topology)

    # The guide

    def _perform(self, effect: Effect) -> None:
        match effect:
            case TryNode():
                self._end_guide()
                self._guide = self._tasks.start(self._be_guided(effect))
            case ShowView():
                self._on_view(effect.snapshot)
                if self._started is not None and not self._started.done():
                    self._started.set_result(None)
            case ReleaseGuide():
                self._end_guide()
            case NotConnected():
                self._end_guide()
                kind = RemoteProtocolError if effect.in_handshake else ConnectionFailedError
                error = self._denied if effect.in_handshake else None
                if self._started is not None and not self._started.done():
                    self._started.set_exception(error or kind(effect.reason))
            case ClusterIsAnother():
                self._end_guide()
                self._error = self._error or _changed(effect.expected, effect.found)
                logger.error("cluster_changed expected=%s found=%s", effect.expected, effect.found)
                self._on_changed(self._error, effect.expected, effect.found)
            case _:
                assert_never(effect)

    def _end_guide(self) -> None:
        guide, self._guide = self._guide, None
        if guide is not None:
            guide.cancel()

    async def _be_guided(self, attempt: TryNode) -> None:
        """Find a server and take its reports, until its connection ends or it is released."""
        try:
            async with asyncio.timeout(attempt.seconds_max):
                connection = await ServerConnection.open(self._host, attempt.address)
                try:
                    if self._is_for_client and self._client_id is None:
                        self._client_id = await self._ask_client_id(connection)
                    topology = await self._ask_topology(connection, subscribe=True)
                except BaseException:
                    connection.close()
                    raise
        except (UnavailableError, ProtocolError, PermissionDeniedError, TimeoutError) as error:
            reason = str(error) or f"no answer in {attempt.seconds_max:g} s"
            logger.info("server_not_found address=%s error=%s", attempt.address, reason)
            self._denied = error if isinstance(error, PermissionDeniedError) else None
            is_final = isinstance(error, ProtocolError | PermissionDeniedError)
            self._mailbox.put(GuideNotFound(reason, is_final, self._jitter()))
            return
        try:
            self._mailbox.put(GuideFound(topology))
            logger.info("server_found address=%s cluster=%s", attempt.address, topology.cluster_key)
            while (messages := await connection.receive()) is not None:
                for message in messages:
                    self._take_topology(message)
        except RemoteProtocolError as error:
            logger.warning("guide_faulted address=%s error=%s", attempt.address, error)
        finally:
            connection.close()
        self._mailbox.put(GuideLost(self._jitter()))


def _changed(expected: UUID, found: UUID) -> ClusterChangedError:
    return ClusterChangedError(
        f"another cluster answers: its key is {found}, that of this client's cluster {expected};"
        " close this client and open a new one if the new cluster is meant"
    )


def source_for(
    host: Host,
    tasks: Tasks,
    root: str,
    discovery: DiscoverySettings,
    on_view: Callable[[ClusterSnapshot], None],
    on_changed: Callable[[ClusterChangedError, UUID, UUID], None],
    on_histories: OnHistories,
) -> ClusterSource:
    """Return the servers of `discovery` as the source, or the coordinator if `discovery` has
    none."""
    if discovery.servers:
        return DiscoverySource(host, tasks, discovery, on_view, on_changed, on_histories)
    return CoordinatorSource(host, root, on_view, on_histories)
