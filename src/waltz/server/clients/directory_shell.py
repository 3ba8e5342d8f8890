"""The server's knowledge of its cluster, for clients that have no coordinator.

Owns the newest topology, which stays while the coordinator is away, and the loop that tells it to
those who have subscribed. Client IDs come from the coordinator, one write each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from waltz.cluster.cluster_shell import allocate_client_id
from waltz.cluster.server_assignment import MembershipRead, routes
from waltz.cluster.store_params import ClusterParams, StoreParams
from waltz.errors import CoordinationError, ProtocolError, UnavailableError
from waltz.host import Host
from waltz.limits import SERVER_MAILBOX_EVENTS_MAX
from waltz.machine_shell import Mailbox, run
from waltz.server.clients.subscriptions import (
    Event,
    Stopped,
    Subscribed,
    SubscriberLeft,
    Subscriptions,
    TellTopology,
    TopologyChanged,
)
from waltz.server.feeding.outbox import Part
from waltz.wire.discovery_protocol import (
    ClientIdRequest,
    ClientIdResponse,
    PartitionEntry,
    ServerEntry,
    Topology,
)
from waltz.wire.logical_link import Shared

logger = logging.getLogger(__name__)


class Directory:
    """See the module. `send` writes to a connection that may have gone."""

    def __init__(
        self,
        host: Host,
        root: str,
        send: Callable[[int, Sequence[Part]], None],
        full: Collection[int],
    ) -> None:
        self._host = host
        self._root = root
        self._send = send
        self._topology: Topology | None = None
        self._told: Shared | None = None
        """The newest topology for all who ask for it: thousands may at once."""
        self._subscribers: set[int] = set()
        self._mailbox: Mailbox[Event] = Mailbox(host.clock, SERVER_MAILBOX_EVENTS_MAX)
        self._machine = Subscriptions(full)
        self._task: asyncio.Task[None] | None = None

    def start(self, cluster: ClusterParams, store: StoreParams) -> None:
        """To be called on the loop. Who serves what is not known yet, and is told later: which
        cluster this is must not wait until its servers have come to terms."""
        self._topology = Topology(
            cluster_key=store.cluster_key,
            cluster_name=cluster.name,
            partition_count=cluster.partition_count,
            membership_version=-1,
            servers=(),
            partitions=(),
        )
        self._task = asyncio.get_running_loop().create_task(
            run(self._machine, self._mailbox, self._host, self._tell)
        )

    async def stop(self) -> None:
        """Idempotent."""
        self._mailbox.put(Stopped())
        task, self._task = self._task, None
        if task is not None:
            await task

    @property
    def topology(self) -> Topology:
        """Return the newest topology that is known."""
        assert self._topology is not None, "started"
        return self._topology

    def change(self, membership: MembershipRead) -> None:
        """The server has looked at the membership; what does not fit together is not told."""
        if routes(membership) is None:
            return
        assignment = membership.assignment
        topology = replace(
            self.topology,
            partition_count=max(self.topology.partition_count, assignment.partition_count),
            membership_version=membership.child_version,
            servers=tuple(
                ServerEntry(server_id, (descriptor.address,))
                for server_id, descriptor in sorted(membership.descriptors.items())
            ),
            partitions=tuple(
                PartitionEntry(partition_id, generation, server_id)
                for server_id, held in sorted(assignment.servers.items())
                for partition_id, generation in sorted(held.items())
            ),
        )
        if topology != self._topology:
            self._topology = topology
            self._told = None
            self._mailbox.put(TopologyChanged())

    def told(self) -> Shared:
        """Return the newest topology, to be sent."""
        if self._told is None:
            self._told = Shared(self.topology)
        return self._told

    def subscribe(self, connection_id: int) -> None:
        """Tell this connection what changes from now on."""
        self._subscribers.add(connection_id)
        self._mailbox.put(Subscribed(connection_id))

    async def give_client_id(self, request: ClientIdRequest) -> ClientIdResponse:
        """Return a new client ID, or why there is none now."""
        try:
            client_id = await allocate_client_id(self._host.coordinator, self._root)
        except (UnavailableError, CoordinationError, ProtocolError) as error:
            logger.warning("client_id_not_allocated error=%s", error)
            return ClientIdResponse(request.request_number, None, str(error))
        return ClientIdResponse(request.request_number, client_id, None)

    def forget(self, connection_id: int) -> None:
        """The connection has ended."""
        if connection_id not in self._subscribers:
            return
        self._subscribers.remove(connection_id)
        self._mailbox.put(SubscriberLeft(connection_id))

    def _tell(self, effect: TellTopology) -> None:
        for connection_id in effect.connection_ids:
            if connection_id in self._subscribers:  # it has not just ended
                self._send(connection_id, [self.told()])
