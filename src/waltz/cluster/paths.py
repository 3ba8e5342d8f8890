"""The paths of a cluster's nodes below its root. Source: Waltz Storage and Waltz Server; the Java
original has no storage directories, server preferences, notes, consumers, cut, policy, history,
restore or partition restores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from waltz.cluster.tree import check_path
from waltz.types import Address, CoordinatorAddress, PartitionId, ReplicaId, ZooKeeperAddress

DEFAULT_ROOT: Final = "/waltz"

SERVER_NODE_PREFIX: Final = "s_"
"""Prefix of the ephemeral sequential nodes of running servers."""


def root_at(coordinator: CoordinatorAddress) -> str:
    """Return the root of the cluster at this address: the default unless the address names one."""
    return (isinstance(coordinator, ZooKeeperAddress) and coordinator.root) or DEFAULT_ROOT


@dataclass(frozen=True, slots=True)
class ClusterPaths:
    """The paths of the cluster at `root`. Raises LocalProtocolError: `root` is not a node path."""

    root: str = DEFAULT_ROOT

    def __post_init__(self) -> None:
        check_path(self.root)

    @property
    def server_descriptors(self) -> str:
        """The node with the partition assignment; its children are the running servers."""
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
        """The node with the store parameters."""
        return f"{self.root}/store"

    @property
    def admin_lock(self) -> str:
        """The ephemeral node of the process that changes store metadata."""
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
        """The node that tells which directory the storage node works in."""
        return f"{self.storage_directories}/{replica_id}"

    @property
    def server_preferences(self) -> str:
        return f"{self.root}/serverPreferences"

    def server_preference(self, address: Address) -> str:
        """The node with the last descriptor of the server at `address`."""
        return f"{self.server_preferences}/{address}"

    @property
    def consumers(self) -> str:
        return f"{self.root}/consumers"

    def consumer(self, name: str) -> str:
        """The node with the marks of a named consumer."""
        return f"{self.consumers}/{name}"

    @property
    def cut(self) -> str:
        """The node that a tool writes while it takes a cut, so that what it reads next is no older
        than its write."""
        return f"{self.root}/cut"

    @property
    def policy(self) -> str:
        """The node with the text of the policy that servers and storage nodes may follow."""
        return f"{self.root}/policy"

    @property
    def notes(self) -> str:
        return f"{self.root}/notes"

    def note(self, name: str) -> str:
        """The node with an application's note."""
        return f"{self.notes}/{name}"

    @property
    def history(self) -> str:
        """The node with the histories that restores under the same cluster key have begun."""
        return f"{self.root}/history"

    @property
    def restore(self) -> str:
        """The node with the restore that made, or is making, this cluster."""
        return f"{self.root}/restore"

    def restored_directory(self, replica_id: ReplicaId) -> str:
        """The node with the report of a storage directory that was filled for the restore."""
        return f"{self.restore}/{replica_id}"

    @property
    def partition_restores(self) -> str:
        return f"{self.root}/partitionRestores"

    def partition_restore(self, partition_id: PartitionId) -> str:
        """The node with the plan of a restore of this partition alone, while that is under way; its
        children are the reports of directories."""
        return f"{self.partition_restores}/{partition_id}"
