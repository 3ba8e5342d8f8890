"""A read of the assignment that is never an old one, although the coordinator's reads may be."""

from __future__ import annotations

import asyncio

import pytest

from waltz.cluster.newest_assignment_shell import read_newest_assignment
from waltz.cluster.paths import ClusterPaths
from waltz.cluster.server_assignment import NO_ASSIGNMENT, PartitionAssignment
from waltz.cluster.tree import Tree
from waltz.errors import NoNodeError
from waltz.host import Node
from waltz.types import Generation, PartitionId, ServerId

PATHS = ClusterPaths()

OLD = PartitionAssignment(1, 1, {ServerId(1): {PartitionId(0): Generation(1)}})
NEW = PartitionAssignment(2, 1, {ServerId(2): {PartitionId(0): Generation(2)}})


class LaggingCoordinator:
    """One session with a ZooKeeper server that lags behind its leader as far as it may: reads show
    what was there at the session's last write. Writes go to the leader."""

    def __init__(self, leader: Tree) -> None:
        self._leader = leader
        self._seen = self._all()

    async def read(self, path: str) -> Node:
        if path not in self._seen:
            raise NoNodeError(path)
        return self._seen[path]

    async def create(self, path: str, data: bytes | None) -> str:
        try:
            return self._leader.create(path, data)
        finally:
            self._seen = self._all()

    async def write(self, path: str, data: bytes, *, version: int) -> int:
        try:
            return self._leader.write(path, data, version=version)
        finally:
            self._seen = self._all()

    def _all(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        for path in (PATHS.root, PATHS.server_descriptors, PATHS.cut):
            try:
                found[path] = self._leader.read(path)
            except NoNodeError:
                continue
        return found


def leader() -> Tree:
    tree = Tree()
    tree.create(PATHS.root, b"")
    tree.create(PATHS.server_descriptors, OLD.encode())
    return tree


def write(tree: Tree, path: str, data: bytes) -> None:
    tree.write(path, data, version=tree.read(path).version)


@pytest.mark.parametrize("has_node", [False, True])
def test_an_assignment_that_was_there_before_is_not_overlooked(has_node: bool) -> None:

    async def play() -> None:
        tree = leader()
        if has_node:
            tree.create(PATHS.cut, b"1")
        coordinator = LaggingCoordinator(tree)
        write(tree, PATHS.server_descriptors, NEW.encode())
        lagging = (await coordinator.read(PATHS.server_descriptors)).data
        assert PartitionAssignment.decode(lagging or b"") == OLD
        found = await read_newest_assignment(coordinator, PATHS.root, written=b"2")  # type: ignore[arg-type]
        assert found == NEW
        assert tree.read(PATHS.cut).data == b"2"

    asyncio.run(play())


def test_another_tool_that_writes_meanwhile_is_in_nobodys_way() -> None:

    async def play() -> None:
        tree = leader()
        coordinator = LaggingCoordinator(tree)
        tree.create(PATHS.cut, b"1")  # the session has not seen it: its create is refused
        assert await read_newest_assignment(coordinator, PATHS.root, written=b"2") == OLD  # type: ignore[arg-type]
        write(tree, PATHS.cut, b"3")  # nor this: its write is refused
        write(tree, PATHS.server_descriptors, NO_ASSIGNMENT.encode())
        found = await read_newest_assignment(coordinator, PATHS.root, written=b"4")  # type: ignore[arg-type]
        assert found == NO_ASSIGNMENT
        assert tree.read(PATHS.cut).data == b"4"

    asyncio.run(play())


def test_without_a_cluster_nothing_is_written() -> None:

    async def play() -> None:
        tree = Tree()
        with pytest.raises(NoNodeError):
            await read_newest_assignment(LaggingCoordinator(tree), PATHS.root, written=b"2")  # type: ignore[arg-type]

    asyncio.run(play())
