"""Reads all nodes of a cluster from the coordinator, to keep a copy of them."""

from __future__ import annotations

from typing import Final

from waltz.cluster.paths import DEFAULT_ROOT
from waltz.cluster.tree import COORDINATOR_NODES_MAX
from waltz.errors import CoordinationError, NoNodeError
from waltz.host import Coordinator

SNAPSHOT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of all nodes of a snapshot; a larger tree is refused."""


async def read_nodes(coordinator: Coordinator, root: str = DEFAULT_ROOT) -> dict[str, bytes]:
    """Return the content of each node below `root` by its path from there, "" for the root itself;
    empty bytes if a node has no content.

    Nodes are read one after the other: a node that changes meanwhile is as it was at some moment of
    the reading, and a node that is deleted meanwhile may be left out. Raises NoNodeError: there is
    no cluster; CoordinationError: the tree is too large; CoordinatorLostError.
    """
    found: dict[str, bytes] = {}
    byte_count = 0
    waiting = [""]
    while waiting:
        path = waiting.pop()
        try:
            node = await coordinator.read(root + path)
            names = await coordinator.children(root + path)
        except NoNodeError:
            if not path:
                raise
            continue
        if node.is_own:
            continue
        found[path] = node.data or b""
        byte_count += len(found[path])
        if len(found) + len(waiting) > COORDINATOR_NODES_MAX or byte_count > SNAPSHOT_BYTES_MAX:
            raise CoordinationError(
                f"the nodes below {root} have more than {COORDINATOR_NODES_MAX} nodes or"
                f" {SNAPSHOT_BYTES_MAX} bytes; they are not copied"
            )
        waiting += (f"{path}/{name}" for name in names)
    return dict(sorted(found.items()))
