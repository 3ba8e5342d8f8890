"""The coordinator's node with the policy: read by processes that follow it, written by a tool.

Owns when the node is read again: a server is told of a change by the coordinator, a storage node,
which has no session with it, asks now and then. The node's data is the text of the policy, as
somebody has written it, and the node's version is its generation: the coordinator counts it, so two
that write at once cannot both succeed. The version inside of the text orders policies, for a node
that is made anew begins to count anew.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from waltz.cluster.kept_coordinator_shell import KeptCoordinator
from waltz.cluster.paths import ClusterPaths
from waltz.errors import NodeExistsError, NoNodeError, VersionConflictError
from waltz.host import Coordinator, Node

POLICY_ASK_SECONDS: Final = 3.0
"""Time between two reads of the node by a storage node."""


async def read_policy_node(coordinator: Coordinator, root: str) -> Node | None:
    """Return the node; None: there is none. Raises CoordinatorLostError."""
    try:
        return await coordinator.read(ClusterPaths(root).policy)
    except NoNodeError:
        return None


async def write_policy_node(
    coordinator: Coordinator, root: str, text: bytes, *, over: Node | None
) -> bool:
    """Store the text in place of `over`, or for None as the first one; return False if there is
    another one by now, and nothing was written. Raises CoordinatorLostError: it may have been
    written."""
    path = ClusterPaths(root).policy
    try:
        if over is None:
            await coordinator.create(path, text)
        else:
            await coordinator.write(path, text, version=over.version)
    except (NodeExistsError, NoNodeError, VersionConflictError):
        return False
    return True


class WatchedPolicyNode:
    """The node as the session of a server sees it."""

    def __init__(self, coordinator: Coordinator, root: str) -> None:
        self.place = _place(root)
        self._coordinator = coordinator
        self._root = root
        self._seen: Node | None = None

    async def read(self) -> bytes | None:
        self._seen = await read_policy_node(self._coordinator, self._root)
        return _text(self._seen)

    async def changed(self) -> None:
        await self._coordinator.changed(ClusterPaths(self._root).policy, self._seen)


class AskedPolicyNode:
    """The node as a process sees it that connects to the coordinator to ask."""

    def __init__(self, kept: KeptCoordinator, root: str) -> None:
        self.place = _place(root)
        self._kept = kept
        self._root = root

    async def read(self) -> bytes | None:
        return _text(await self._kept.ask(partial(read_policy_node, root=self._root)))

    async def changed(self) -> None:
        await asyncio.sleep(POLICY_ASK_SECONDS)


def _place(root: str) -> str:
    return f"the coordinator's node {ClusterPaths(root).policy}"


def _text(node: Node | None) -> bytes | None:
    return None if node is None else node.data or b""
