"""The paths of a cluster's nodes below its root. Source: Waltz Storage and Waltz Server; the Java
original has no storage directories, server preferences, notes, consumers, cut, policy, history,
restore or partition restores.
"""

from __future__ import annotations

from typing import Final

from waltz.cluster.tree import check_path
from waltz.types import Address, CoordinatorAddress, PartitionId, ReplicaId, ZooKeeperAddress

DEFAULT_ROOT: Final = "/waltz"

SERVER_NODE_PREFIX: Final = "s_"
"""Prefix of the ephemeral sequential nodes of running servers."""


def root_at(coordinator: CoordinatorAddress) -> str:
    """Return the root of the cluster at this address: the default unless the address names one."""
    return (isinstance(coordinator, ZooKeeperAddress) and coordinator.root) or DEFAULT_ROOT


class ClusterPaths:
    """The paths of the cluster at `root`; nothing changes them."""

    def __init__(self, root: str = DEFAULT_ROOT) -> None:
        """Raises LocalProtocolError: `root` is not a node path."""
        check_path(root)
        self.root = root
        self.server_descriptors = f"{root}/serverDescriptors"
        """The node with the partition assignment; its children are the running servers."""
        self.server_node_prefix = f"{self.server_descriptors}/{SERVER_NODE_PREFIX}"
        self.ids = f"{root}/ids"
        self.client_id_counter = f"{self.ids}/client"
        self.server_id_counter = f"{self.ids}/server"
        self.store = f"{root}/store"
        """The node with the store parameters."""
        self.admin_lock = f"{self.store}/adminLock"
        """The ephemeral node of the process that changes store metadata."""
        self.partitions = f"{self.store}/partition"
        self.group_descriptor = f"{self.store}/group"
        self.replica_assignments = f"{self.store}/assignment"
        self.connection_metadata = f"{self.store}/connection"
        self.storage_directories = f"{root}/storageDirectories"
        self.server_preferences = f"{root}/serverPreferences"
        self.consumers = f"{root}/consumers"
        self.cut = f"{root}/cut"
        """The node that a tool writes while it takes a cut, so that what it reads next is no older
        than its write."""
        self.policy = f"{root}/policy"
        """The node with the text of the policy that servers and storage nodes may follow."""
        self.notes = f"{root}/notes"
        self.history = f"{root}/history"
        """The node with the histories that restores under the same cluster key have begun."""
        self.restore = f"{root}/restore"
        """The node with the restore that made, or is making, this cluster."""
        self.partition_restores = f"{root}/partitionRestores"

    def partition_metadata(self, partition_id: PartitionId) -> str:
        return f"{self.partitions}/{partition_id}"

    def storage_directory(self, replica_id: ReplicaId) -> str:
        """The node that tells which directory the storage node works in."""
        return f"{self.storage_directories}/{replica_id}"

    def server_preference(self, address: Address) -> str:
        """The node with the last descriptor of the server at `address`."""
        return f"{self.server_preferences}/{address}"

    def consumer(self, name: str) -> str:
        """The node with the marks of a named consumer."""
        return f"{self.consumers}/{name}"

    def note(self, name: str) -> str:
        """The node with an application's note."""
        return f"{self.notes}/{name}"

    def restored_directory(self, replica_id: ReplicaId) -> str:
        """The node with the report of a storage directory that was filled for the restore."""
        return f"{self.restore}/{replica_id}"

    def partition_restore(self, partition_id: PartitionId) -> str:
        """The node with the plan of a restore of this partition alone, while that is under way; its
        children are the reports of directories."""
        return f"{self.partition_restores}/{partition_id}"
