"""The source of a client's view of its cluster and of its client ID.

Two sources behind one protocol: the coordinator (here), and the servers (`discovery_shell.py`).
Clients and readers use the protocol only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from waltz.cluster.cluster_shell import ClusterSnapshot, ClusterView, allocate_client_id
from waltz.cluster.histories import Histories
from waltz.cluster.log_history_shell import read_log_histories
from waltz.cluster.paths import ClusterPaths
from waltz.connections.cluster_connection import Role
from waltz.connections.connection_shell import ServerConnection, Side
from waltz.connections.known_histories_shell import KnownHistories, OnHistories
from waltz.connections.logical_handshake import ConnectionSettings
from waltz.errors import CoordinationError, RemoteProtocolError, UnavailableError
from waltz.host import Host
from waltz.types import Address, ClientId


class ClusterSource(Protocol):
    async def start(self) -> None:
        """Take the first view, and begin to follow changes.

        Raises UnavailableError: nothing answers; NoNodeError: there is no cluster;
        RemoteProtocolError: the peer is not a server of Waltz.
        """
        ...

    async def start_client(self) -> ClientId:
        """Start, and return a client ID for the caller. Raises as `start`."""
        ...

    async def stop(self) -> None:
        """Stop following. Idempotent."""
        ...

    @property
    def current(self) -> ClusterSnapshot:
        """Return the newest view; there is one once `start` has returned."""
        ...

    @property
    def histories(self) -> Histories | None:
        """Return the histories of the log that connections which `open` has returned may bring;
        None: nobody who was asked knows them."""
        ...

    async def allocate_client_id(self) -> ClientId:
        """Return another client ID, which costs a write to the coordinator. Raises
        UnavailableError."""
        ...

    async def open(
        self, address: Address, role: Role, settings: ConnectionSettings
    ) -> ServerConnection:
        """Open a connection to a server of the cluster. Raises as `ServerConnection.open`."""
        ...

    def side(self, role: Role, side: Side) -> Side:
        """Return the side to attach to connections of this role: `side`, or one that passes on to
        it."""
        ...

    def server_connected(self, address: Address) -> None:
        """A connection that `open` returned is in use from now on."""
        ...

    def server_restored(self, address: Address) -> None: ...

    def server_disconnected(self, address: Address) -> None: ...


class CoordinatorSource:
    """Implements `ClusterSource` with the coordinator of the host."""

    def __init__(
        self,
        host: Host,
        root: str,
        on_view: Callable[[ClusterSnapshot], None],
        on_histories: OnHistories,
    ) -> None:
        self._host = host
        self._root = root
        self._view = ClusterView(host, on_view, root=root)
        self._histories = KnownHistories(on_histories)

    async def start(self) -> None:
        await self._view.start()

    async def start_client(self) -> ClientId:
        await self.start()
        return await self.allocate_client_id()

    async def stop(self) -> None:
        await self._view.stop()

    @property
    def current(self) -> ClusterSnapshot:
        return self._view.current

    @property
    def histories(self) -> Histories | None:
        return self._histories.current

    async def allocate_client_id(self) -> ClientId:
        return await allocate_client_id(self._host.coordinator, self._root)

    async def open(
        self, address: Address, role: Role, settings: ConnectionSettings
    ) -> ServerConnection:
        """Open a connection to a server of the cluster.

        Raises as `ServerConnection.open`; RemoteProtocolError also if the server belongs to another
        cluster: nothing of it is taken. Servers before version 5 do not report their cluster.
        """
        connection = await ServerConnection.open(self._host, address, settings)
        expected, agreement = self.current.cluster_key, connection.agreement
        if agreement is not None and agreement.cluster_key != expected:
            connection.close()
            raise RemoteProtocolError(
                f"{address} is a server of cluster {agreement.cluster_key}, where the coordinator"
                f" says there is one of cluster {expected}"
            )
        try:
            await self._histories.learn(connection, expected, self._kept_histories)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _kept_histories(self) -> Histories:
        """Return what the coordinator keeps, for a server that knows nothing of histories: that of
        the Java original, or of an earlier release.

        Raises UnavailableError: the coordinator does not tell, and the log may have been restored
        since this process last saw it.
        """
        try:
            kept = await read_log_histories(self._host.coordinator, ClusterPaths(self._root))
        except (UnavailableError, CoordinationError) as error:
            raise UnavailableError(
                "the server does not know whether the log was restored from an archive, and the"
                f" coordinator does not tell ({error})"
            ) from error
        return Histories.kept(self.current.cluster_key, kept)

    def side(self, role: Role, side: Side) -> Side:
        return side

    def server_connected(self, address: Address) -> None:
        """Do nothing: the coordinator reports the cluster."""

    def server_restored(self, address: Address) -> None:
        """Do nothing: the coordinator reports the cluster."""

    def server_disconnected(self, address: Address) -> None:
        """Do nothing: the coordinator reports the cluster."""
