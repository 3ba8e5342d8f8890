"""A read of the partition assignment that no later assignment precedes.

A read alone may come from a ZooKeeper server that lags behind. A write goes through the leader, and
what one coordinator session reads after its own write is at least as new as that write. The write
is to a node of its own: one to the assignment, which would do as well, would wake all servers and
all clients. Source: ZooKeeper, "Consistency Guarantees" (sequential consistency, single system
image).
"""

from __future__ import annotations

from waltz.cluster.paths import ClusterPaths
from waltz.cluster.server_assignment import PartitionAssignment
from waltz.errors import NodeExistsError, NoNodeError, VersionConflictError
from waltz.host import Coordinator


async def read_newest_assignment(
    coordinator: Coordinator, root: str, *, written: bytes
) -> PartitionAssignment:
    """Write `written` into the cluster's node for cuts, then return the partition assignment.

    Every assignment that was there when this was called is the returned one or an earlier one.
    Raises NoNodeError: there is no cluster; RemoteProtocolError; CoordinatorLostError.
    """
    paths = ClusterPaths(root)
    while True:
        try:
            node = await coordinator.read(paths.cut)
            await coordinator.write(paths.cut, written, version=node.version)
            break
        except NoNodeError:
            try:
                await coordinator.create(paths.cut, written)
                break
            except NodeExistsError:
                continue
        except VersionConflictError:
            continue  # another tool has written: every conflict means that one has succeeded
    return PartitionAssignment.decode(
        (await coordinator.read(paths.server_descriptors)).data or b""
    )
