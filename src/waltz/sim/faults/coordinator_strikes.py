"""Carries out the faults of the coordinator, and what foreign processes and operators do to its
nodes.

Owns how these faults come and go, which entries of a backup may be put back, and what a coordinator
holds that was rebuilt. What the coordinator itself does is in `simulated_coordinator.py`.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias, assert_never

from waltz.cluster.partition_metadata import PartitionMetadata, last_session
from waltz.cluster.paths import ClusterPaths
from waltz.cluster.server_assignment import PartitionAssignment
from waltz.cluster.store_params import decode_counter, encode_counter
from waltz.cluster.tree import ROOT, Tree
from waltz.host import ANY_VERSION
from waltz.sim.faults.kinds import (
    CoordinatorOutage,
    CoordinatorSlowness,
    ForeignWrites,
    LostAnswers,
    PutBack,
    Rebuilt,
    SessionLoss,
    SetBack,
)
from waltz.sim.faults.process_strikes import kill_all, start_again
from waltz.sim.faults.strike_record import StrikeRecord
from waltz.sim.simulated_coordinator import SimulatedCoordinatorService
from waltz.sim.sites import Sites
from waltz.types import Generation, PartitionId, ServerId, SessionId

NUMBERS_SKIPPED: Final = 1_000
"""IDs and generations that a rebuilt coordinator passes over: the copy is older than the newest."""

NO_MEMBERSHIP: Final = -1
"""The membership of an assignment that fits none: the first server assigns all partitions anew."""

SETTLED_SECONDS_MAX: Final = 1.5
"""Seconds that a rebuilt coordinator waits for its servers to come to terms, twice, before clients
reach it again: together less than clients wait for it."""

SETTLED_LOOKS: Final = 150
"""Looks at the servers' nodes within that time."""

CoordinatorFault: TypeAlias = (
    SessionLoss
    | CoordinatorOutage
    | CoordinatorSlowness
    | LostAnswers
    | ForeignWrites
    | SetBack
    | PutBack
    | Rebuilt
)


class CoordinatorStrikes:
    """Faults of the coordinator, and of those who change its nodes."""

    def __init__(self, sites: Sites, record: StrikeRecord) -> None:
        self._sites = sites
        self._coordinator = sites.coordinator
        self._record = record

    async def strike(self, fault: CoordinatorFault) -> None:
        coordinator = self._coordinator
        match fault:
            case SessionLoss(name=name):
                process = self._sites.process(name)
                if process is not None and not process.dead:
                    self._record.struck(fault, name)
                    coordinator.expire(process)
            case CoordinatorOutage():
                self._record.struck(fault)
                coordinator.begin_outage()
                await asyncio.sleep(fault.seconds)
                coordinator.end_outage()
            case CoordinatorSlowness():
                self._record.struck(fault)
                coordinator.traffic.slow_down(fault.slowest_seconds)
                await asyncio.sleep(fault.seconds)
                coordinator.traffic.speed_up(fault.slowest_seconds)
            case LostAnswers():
                self._record.struck(fault)
                coordinator.traffic.lose_answers(fault.share)
                await asyncio.sleep(fault.seconds)
                coordinator.traffic.keep_answers(fault.share)
            case ForeignWrites():
                for choice in fault.choices:
                    self._record.struck(fault, rewrite(coordinator, choice))
                    await asyncio.sleep(fault.pause_seconds)
            case SetBack():
                await self._set_back(fault)
            case PutBack():
                await self._put_back(fault)
            case Rebuilt():
                await self._rebuild(fault)
            case _:
                assert_never(fault)

    async def _set_back(self, fault: SetBack) -> None:
        """Put old entries back while no server runs, as the page on backups demands."""
        copy = partition_entries(self._coordinator.tree)
        await asyncio.sleep(fault.seconds)
        sites = kill_all(self._sites, fault.names)
        if sites is None:
            return
        self._record.struck(fault, *set_back(self._coordinator, copy))
        for site in sites:
            await start_again(self._sites, site, fault.pause_seconds)

    async def _put_back(self, fault: PutBack) -> None:
        """Put partitions, counters and generations back as they were before partitions moved."""
        tree = self._coordinator.tree
        copy, numbers = partition_entries(tree), number_entries(tree)
        for name in fault.moves:
            site = self._sites.site(name)
            if not site.is_struck and not site.process.dead:
                site.is_struck = True
                self._sites.kill(site)
                await start_again(self._sites, site, fault.seconds)
                await self._reopened(number_entries(tree), len(fault.names))
        sites = kill_all(self._sites, fault.names)
        if sites is None:
            return
        old = put_back(self._coordinator, copy, numbers)
        self._record.struck(fault, *old)
        if old:
            self._coordinator.effects["numbers of the coordinator that were put back"] += 1
        for site in sites:
            await start_again(self._sites, site, fault.pause_seconds)

    async def _rebuild(self, fault: Rebuilt) -> None:
        """Make the coordinator anew while no server runs, and let those that lived on find the
        versions that they have seen."""
        copy = partition_entries(self._coordinator.tree)
        await asyncio.sleep(fault.seconds)
        sites = kill_all(self._sites, fault.names)
        if sites is None:
            return
        survivors = [self._sites.site(name).process for name in fault.survivors]
        for process in survivors:
            self._coordinator.lose(process)
        path = ClusterPaths().server_descriptors
        seen = self._coordinator.tree.read(path)
        tree, old = rebuilt(self._coordinator.tree, copy)
        transactions = 0 if fault.refuses else self._coordinator.transactions
        self._coordinator.rebuild(tree, transactions=transactions)
        self._record.struck(fault, *old)
        async with asyncio.TaskGroup() as group:
            for site in sites:
                group.create_task(start_again(self._sites, site, fault.pause_seconds))
        if await self._settled(len(sites)):
            raise_child_version(self._coordinator, path, seen.child_version)
            if await self._settled(len(sites)):
                raise_version(self._coordinator, path, seen.version)
        if not self._coordinator.tree.differs(path, seen):
            self._coordinator.effects["versions of the coordinator that are equal again"] += 1
        for process in survivors:
            if not process.dead:
                self._coordinator.heal(process)
        self._record.note("rebuilt")

    async def _settled(self, servers: int) -> bool:
        """Wait until the servers have come to terms; return whether they have."""
        for _ in range(SETTLED_LOOKS):
            if is_settled(self._coordinator.tree, servers):
                return True
            await asyncio.sleep(SETTLED_SECONDS_MAX / SETTLED_LOOKS)
        return False

    async def _reopened(self, numbers: Mapping[str, bytes], servers: int) -> None:
        """Wait until partitions have been assigned anew and have had a session since, or for long
        enough."""
        tree, path = self._coordinator.tree, ClusterPaths().server_descriptors
        for _ in range(SETTLED_LOOKS):
            is_new = number_entries(tree)[path] != numbers[path]
            if is_new and is_settled(tree, servers) and are_opened(tree):
                return
            await asyncio.sleep(SETTLED_SECONDS_MAX / SETTLED_LOOKS)


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


def number_entries(tree: Tree) -> dict[str, bytes]:
    """Return the data of the nodes with the counters of IDs and the generations."""
    paths = ClusterPaths()
    numbers = paths.client_id_counter, paths.server_id_counter, paths.server_descriptors
    return {path: tree.read(path).data or b"" for path in numbers}


def put_back(
    coordinator: SimulatedCoordinatorService,
    entries: Mapping[str, bytes],
    numbers: Mapping[str, bytes],
) -> list[str]:
    """Restore the partitions' nodes, counters and generations as they were once, and return the
    paths of those that differed. Nothing is restored if `set_back` would leave a partition out, if
    no session has opened since, or if there are more partitions now.

    Servers that died lately lose their descriptors, which no backup can have: these name server IDs
    that are given again.
    """
    tree, assigned = coordinator.tree, ClusterPaths().server_descriptors
    present = partition_entries(tree)
    old = [each for each, data in entries.items() if data != present.get(each)]
    then = PartitionAssignment.decode(numbers[assigned])
    now = PartitionAssignment.decode(tree.read(assigned).data or b"")
    if (
        entries.keys() != present.keys()
        or not any(_has_opened_since(path, entries[path], present[path]) for path in entries)
        or now.partition_count != then.partition_count
        or not all(_may_be_put_back(tree, each, entries[each]) for each in old)
    ):
        return []
    for name in tree.children(assigned):
        _delete(coordinator, f"{assigned}/{name}")
    for each, data in numbers.items():
        _write(coordinator, each, data)
    return set_back(coordinator, entries)


def _has_opened_since(path: str, then: bytes, now: bytes) -> bool:
    """Return whether a majority of the replicas has promised a session that `then` does not know: a
    number that was only written shows nothing."""
    number = PartitionId(int(path.rpartition("/")[2]))
    opened = last_session(PartitionMetadata.decode(now, number).replica_states)
    return opened > PartitionMetadata.decode(then, number).session_id


def are_opened(tree: Tree) -> bool:
    """Return whether the last session that was given of each partition has opened."""
    for path, data in partition_entries(tree).items():
        found = PartitionMetadata.decode(data, PartitionId(int(path.rpartition("/")[2])))
        if last_session(found.replica_states) < found.session_id:
            return False
    return True


def rebuilt(tree: Tree, entries: Mapping[str, bytes]) -> tuple[Tree, list[str]]:
    """Return the tree as operators make it anew, each node at its first version, as a restore does,
    and the paths of those of `entries` that differ from the present ones.

    Partitions' nodes are those of `entries`, as far as `set_back` would restore them. Counters and
    generations pass over a number of values, and no server has a partition.
    """
    paths = ClusterPaths()
    data = {path: tree.read(path).data for path in _paths(tree, ROOT)}
    old = [path for path, then in entries.items() if _may_be_put_back(tree, path, then)]
    data.update((path, entries[path]) for path in old)
    counters = paths.client_id_counter, paths.server_id_counter
    for path in counters:
        data[path] = encode_counter(decode_counter(data[path] or b"") + NUMBERS_SKIPPED)
    nobody = ServerId(decode_counter(data[paths.server_id_counter] or b""))
    last = PartitionAssignment.decode(data[paths.server_descriptors] or b"")
    generations = {
        partition_id: Generation(generation + NUMBERS_SKIPPED)
        for held in last.servers.values()
        for partition_id, generation in held.items()
    }
    made = PartitionAssignment(NO_MEMBERSHIP, last.partition_count, {nobody: generations})
    data[paths.server_descriptors] = made.encode()

    def first(path: str, document: dict[str, Any]) -> dict[str, Any]:
        children = {
            name: first(f"{path.rstrip('/')}/{name}", each)
            for name, each in document["children"].items()
        }
        found = data[path]
        text = None if found is None else b64encode(found).decode("ascii")
        return {"data": text, "version": 0, "child_version": len(children), "children": children}

    return Tree.from_snapshot(first(ROOT, tree.snapshot())), old


def is_settled(tree: Tree, servers: int) -> bool:
    """Return whether as many servers have registered, and all partitions are assigned to them."""
    path = ClusterPaths().server_descriptors
    node = tree.read(path)
    assignment = PartitionAssignment.decode(node.data or b"")
    return (
        len(tree.children(path)) == servers and assignment.membership_version == node.child_version
    )


def raise_child_version(coordinator: SimulatedCoordinatorService, path: str, version: int) -> None:
    """Create and delete a child, as a foreign process might, until the node is at a child version,
    or one below it."""
    child = f"{path}/foreign"
    while coordinator.tree.read(path).child_version + 2 <= version:
        coordinator.apply(lambda tree: tree.create(child, None))
        coordinator.apply(lambda tree: tree.delete(child))


def raise_version(coordinator: SimulatedCoordinatorService, path: str, version: int) -> None:
    """Rewrite the node with what it holds until it is at a version."""
    while (node := coordinator.tree.read(path)).version < version:
        _write(coordinator, path, node.data or b"")


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


def _delete(coordinator: SimulatedCoordinatorService, path: str) -> None:
    coordinator.apply(lambda tree: tree.delete(path))


def _has_states(path: str, data: bytes) -> bool:
    number = PartitionId(int(path.rpartition("/")[2]))
    return bool(PartitionMetadata.decode(data, number).replica_states)


def names_unopened(metadata: PartitionMetadata, opened: SessionId) -> bool:
    """Return whether `metadata` is of the moment before the session that it names was open, and
    that session has opened since: `opened` was the last one.

    Restored, that is the one past state that cannot be told from a failed recovery.
    """
    return last_session(metadata.replica_states) < metadata.session_id <= opened
