"""Carries out what foreign processes and operators do to the nodes of the coordinator.

Owns which entries of a backup may be put back. What the coordinator itself does, and when it is
away, is in `simulated_coordinator.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from waltz.cluster.partition_metadata import PartitionMetadata, last_session
from waltz.cluster.paths import ClusterPaths
from waltz.cluster.tree import ROOT, Tree
from waltz.host import ANY_VERSION
from waltz.sim.simulated_coordinator import SimulatedCoordinatorService
from waltz.types import PartitionId, SessionId


def rewrite(coordinator: SimulatedCoordinatorService, choice: float) -> str | None:
    """Rewrite a node's data, as a foreign process might, and return its path.

    `choice`, 0 to 1, picks one of the nodes that have data.
    """
    tree = coordinator.tree
    paths = [path for path in _paths(tree, ROOT) if tree.read(path).data is not None]
    if not paths:
        return None
    path = paths[min(int(choice * len(paths)), len(paths) - 1)]
    _write(coordinator, path, tree.read(path).data or b"")
    return path


def partition_entries(tree: Tree) -> dict[str, bytes]:
    """Return the data of all partitions' nodes, as a backup has them.

    Without those of partitions that had no session yet: a node that has records refuses a
    server to which the partition is new, and waits for an operator.
    """
    partitions = ClusterPaths().partitions
    found = {path: tree.read(path).data for path in _paths(tree, ROOT)}
    return {
        path: data
        for path, data in found.items()
        if data is not None and path.startswith(f"{partitions}/") and _has_states(path, data)
    }


def set_back(coordinator: SimulatedCoordinatorService, entries: Mapping[str, bytes]) -> list[str]:
    """Restore `entries`, and return those that differed from the present ones.

    An entry from before the opening of the session that it names is left out, if that session
    has opened since: decision 0030 says why such an entry cannot be recognised.
    """
    changed = [
        path for path, data in entries.items() if _may_be_put_back(coordinator.tree, path, data)
    ]
    for path in changed:
        _write(coordinator, path, entries[path])
    return changed


def _may_be_put_back(tree: Tree, path: str, data: bytes) -> bool:
    number, present = PartitionId(int(path.rpartition("/")[2])), tree.read(path).data or b""
    opened = last_session(PartitionMetadata.decode(present, number).replica_states)
    then = PartitionMetadata.decode(data, number)
    return data != present and not names_unopened(then, opened)


def _paths(tree: Tree, path: str) -> Iterator[str]:
    yield path
    for name in tree.children(path):
        yield from _paths(tree, f"{path.rstrip('/')}/{name}")


def _write(coordinator: SimulatedCoordinatorService, path: str, data: bytes) -> None:
    coordinator.apply(lambda tree: tree.write(path, data, version=ANY_VERSION))


def _has_states(path: str, data: bytes) -> bool:
    number = PartitionId(int(path.rpartition("/")[2]))
    return bool(PartitionMetadata.decode(data, number).replica_states)


def names_unopened(metadata: PartitionMetadata, opened: SessionId) -> bool:
    """Return whether `metadata` is of the moment before the session that it names was open, and
    that session has opened since: `opened` was the last one.

    Restored, that is the one past state that cannot be told from a failed recovery.
    """
    return last_session(metadata.replica_states) < metadata.session_id <= opened
