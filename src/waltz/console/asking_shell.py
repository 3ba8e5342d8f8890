"""The questions that the console asks a cluster: those that every tool may ask.

Each is bounded in time. The processes are asked one by one, so that a slow one holds up nothing
else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from waltz.cli.cluster_list import ClusterMetadata, read_metadata
from waltz.cli.storage_questions import StorageReport, ask_storage
from waltz.cluster.store_params import StoreParams
from waltz.console.answers import ConsumerAnswer, ConsumersTold, ServerTold
from waltz.errors import UnavailableError
from waltz.host import Host
from waltz.operators.named_consumers_shell import ConsumersView, read_named_consumers
from waltz.operators.questions_shell import ask_health, ask_reports, talk_to_server
from waltz.types import Address, PartitionId, ReplicaId

SERVER_SECONDS_MAX: Final = 5.0
"""Seconds that a server may take for its reports; it waits at most 2 s for its replicas."""

NODE_SECONDS_MAX: Final = 3.0
"""Seconds that a storage node may take for each of its ports."""


class Asker(Protocol):
    """The questions; each raises a WaltzError if nobody answers."""

    async def coordinator(self) -> ClusterMetadata: ...
    async def server(self, address: Address, owned: Sequence[PartitionId]) -> ServerTold: ...
    async def node(self, node: ReplicaId, metadata: ClusterMetadata) -> StorageReport: ...
    async def consumers(self) -> ConsumersTold | None:
        """Return the consumers; None: no server of this release tells of them."""
        ...


class ClusterAsker:
    """Asks the processes of a running cluster."""

    def __init__(self, host: Host, root: str) -> None:
        self._host = host
        self._root = root

    async def coordinator(self) -> ClusterMetadata:
        return await read_metadata(self._host, self._root)

    async def server(self, address: Address, owned: Sequence[PartitionId]) -> ServerTold:
        """Ask for reports; a server whose release has none, for what every release says."""
        try:
            return ServerTold(
                await ask_reports(self._host, address, owned, seconds=SERVER_SECONDS_MAX)
            )
        except UnavailableError as error:
            async with talk_to_server(self._host, address, seconds=SERVER_SECONDS_MAX) as talk:
                return ServerTold(None, str(error), await ask_health(talk))

    async def node(self, node: ReplicaId, metadata: ClusterMetadata) -> StorageReport:
        params = StoreParams(metadata.cluster_key, metadata.placement.partition_count)
        return await ask_storage(
            self._host, node, metadata.placement.admin_ports, params, seconds=NODE_SECONDS_MAX
        )

    async def consumers(self) -> ConsumersTold | None:
        view = await read_named_consumers(
            self._host, self._root, everybody=True, seconds=SERVER_SECONDS_MAX
        )
        return consumers_told(view)


def consumers_told(view: ConsumersView) -> ConsumersTold:
    """Return the consumers as the console shows them, a client without a name by its ID."""
    found = []
    for consumer in view.consumers:
        clients = [each.client for each in consumer.instances]
        name = consumer.name or f"client {clients[0].client_id if clients else 'without a name'}"
        for each in consumer.partitions:
            connected = [
                client
                for client in clients
                if client.is_connected
                and any(mount.partition_id == each.partition_id for mount in client.mounts)
            ]
            found.append(
                ConsumerAnswer(
                    name,
                    each.partition_id,
                    each.mark,
                    each.is_current,
                    each.lag_transactions,
                    None if each.lag is None else each.lag.least_seconds,
                    None if each.lag is None else each.lag.most_seconds,
                    tuple(client.address for client in connected),
                    tuple(sorted({each.principal for each in connected if each.principal})),
                    not connected and not view.is_complete,
                )
            )
    unasked = {str(address): reason for address, reason in view.unasked.items()}
    unread = {each.name or "": each.trouble for each in view.consumers if each.trouble is not None}
    return ConsumersTold(tuple(found), unasked, view.is_complete, unread)
