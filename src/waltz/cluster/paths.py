"""Where a cluster keeps what: node paths under its root. Source: Waltz Storage and Waltz Server;
the Java original has no storage directories, no
server preferences and no notes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from waltz.cluster.tree import check_path
from waltz.types import Address, CoordinatorAddress, PartitionId, ReplicaId, ZooKeeperAddress

DEFAULT_ROOT: Final = "/waltz"

SERVER_NODE_PREFIX: Final = "s_"
"""Of the ephemeral sequential nodes that running servers keep."""


def root_at(coordinator: CoordinatorAddress) -> str:
    """Return the root of the cluster at this address: the usual one, unless it names another."""
    return (isinstance(coordinator, ZooKeeperAddress) and coordinator.root) or DEFAULT_ROOT


@dataclass(frozen=True, slots=True)
class ClusterPaths:
    """The paths of the cluster at `root`. Raises LocalProtocolError: `root` is not a node path."""

    root: str = DEFAULT_ROOT

    def __post_init__(self) -> None:
        check_path(self.root)

    @property
    def server_descriptors(self) -> str:
        """Its data is the partition assignment, its children are the running servers."""
        return f"{self.root}/serverDescriptors"

    @property
    def server_node_prefix(self) -> str:
        return f"{self.server_descriptors}/{SERVER_NODE_PREFIX}"

    @property
    def ids(self) -> str:
        return f"{self.root}/ids"

    @property
    def client_id_counter(self) -> str:
        return f"{self.ids}/client"

    @property
    def server_id_counter(self) -> str:
        return f"{self.ids}/server"

    @property
    def store(self) -> str:
        """Its data is the store parameters."""
        return f"{self.root}/store"

    @property
    def admin_lock(self) -> str:
        """Ephemeral: held by whoever changes store metadata."""
        return f"{self.store}/adminLock"

    @property
    def partitions(self) -> str:
        return f"{self.store}/partition"

    def partition_metadata(self, partition_id: PartitionId) -> str:
        return f"{self.partitions}/{partition_id}"

    @property
    def group_descriptor(self) -> str:
        return f"{self.store}/group"

    @property
    def replica_assignments(self) -> str:
        return f"{self.store}/assignment"

    @property
    def connection_metadata(self) -> str:
        return f"{self.store}/connection"

    @property
    def storage_directories(self) -> str:
        return f"{self.root}/storageDirectories"

    def storage_directory(self, replica_id: ReplicaId) -> str:
        """Its data says which directory the storage node works in."""
        return f"{self.storage_directories}/{replica_id}"

    @property
    def server_preferences(self) -> str:
        return f"{self.root}/serverPreferences"

    def server_preference(self, address: Address) -> str:
        """Its data is the descriptor that the server at `address` last had."""
        return f"{self.server_preferences}/{address}"

    @property
    def notes(self) -> str:
        return f"{self.root}/notes"

    def note(self, name: str) -> str:
        """Its data is an application's."""
        return f"{self.notes}/{name}"
