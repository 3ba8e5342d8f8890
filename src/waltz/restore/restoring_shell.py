"""Writes a restored cluster into a coordinator: the plan first, the store parameters last.

Owns each write with its condition. A restore that was cut short is resumed by the same calls:
whatever is there below the root of a cluster without store parameters was written by a restore.
`restored_nodes.py` owns what is written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from waltz.cluster.cluster_shell import claim_root, create_if_absent
from waltz.cluster.locking_shell import admin_lock
from waltz.cluster.paths import ClusterPaths
from waltz.cluster.store_params import ClusterParams
from waltz.errors import ConfigurationError, NodeExistsError, NoNodeError
from waltz.host import Coordinator
from waltz.restore.directory_report import DirectoryReport
from waltz.restore.restore_plan import RestorePlan
from waltz.restore.restored_nodes import RestoredNodes
from waltz.types import ReplicaId


async def begin_restore(coordinator: Coordinator, plan: RestorePlan, *, root: str) -> RestorePlan:
    """Keep the plan, from when on no cluster can be created at `root`. If the same restore was
    begun before, return the plan of then, which is to be resumed.

    Raises NodeExistsError: there is a cluster; ConfigurationError: another restore was begun.
    """
    paths = ClusterPaths(root)
    data = plan.encode()
    try:
        begun = await read_plan(coordinator, root=root)
    except NoNodeError:
        pass
    else:
        if (difference := begun.difference(plan)) is not None:
            raise ConfigurationError(
                f"another restore was begun at {root}, restore {begun.restore_id}: {difference}."
                " Resume that one by its own options, or remove its nodes first: waltz cluster"
                f" delete --name {begun.name}"
            )
        if await is_restored(coordinator, root=root):
            raise NodeExistsError(
                f"restore {begun.restore_id} is finished: the cluster is at {root}"
            )
        return begun
    await claim_root(coordinator, paths, ClusterParams(plan.name, plan.partition_count))
    await create_if_absent(coordinator, paths.restore, data)
    # Of two that begin at once the first has written its plan.
    return await begin_restore(coordinator, plan, root=root)


async def read_plan(coordinator: Coordinator, *, root: str) -> RestorePlan:
    """Return the plan that is kept. Raises NoNodeError: no restore was begun; RemoteProtocolError,
    CoordinatorLostError."""
    node = await coordinator.read(ClusterPaths(root).restore)
    return RestorePlan.decode(node.data or b"")


async def is_restored(coordinator: Coordinator, *, root: str) -> bool:
    """Return whether the cluster exists. Raises CoordinatorLostError."""
    with contextlib.suppress(NoNodeError):
        return (await coordinator.read(ClusterPaths(root).store)).data is not None
    return False


async def report_directory(coordinator: Coordinator, report: DirectoryReport, *, root: str) -> None:
    """Keep a directory's report. Raises NoNodeError: no restore was begun; ConfigurationError: the
    report is of another one."""
    paths = ClusterPaths(root)
    begun = await read_plan(coordinator, root=root)
    if begun.restore_id != report.restore_id:
        raise ConfigurationError(
            f"the directory was filled for restore {report.restore_id}, and restore"
            f" {begun.restore_id} was begun at {root}: fill the directory again, with --start-over"
        )
    await put_node(coordinator, paths.restored_directory(report.replica_id), report.encode())


async def read_reports(coordinator: Coordinator, *, root: str) -> dict[ReplicaId, DirectoryReport]:
    """Return the reports of directories so far. Raises NoNodeError, RemoteProtocolError,
    CoordinatorLostError."""
    return await reports_below(coordinator, ClusterPaths(root).restore)


async def all_reports(
    coordinator: Coordinator,
    plan: RestorePlan,
    on_report: Callable[[int], None],
    *,
    root: str,
) -> dict[ReplicaId, DirectoryReport]:
    """Return the reports once all directories of the plan have reported; `on_report` gets their
    number whenever it has changed. Raises as `read_reports`."""
    wanted = [each.replica_id for each in plan.storages]
    return await all_reports_below(coordinator, ClusterPaths(root).restore, wanted, on_report)


async def reports_below(coordinator: Coordinator, path: str) -> dict[ReplicaId, DirectoryReport]:
    """Return the reports below the node of a restore. Raises as `read_reports`."""
    found = {}
    for name in await coordinator.children(path):
        node = await coordinator.read(f"{path}/{name}")
        found[ReplicaId(name)] = DirectoryReport.decode(node.data or b"")
    return found


async def all_reports_below(
    coordinator: Coordinator,
    path: str,
    wanted: Sequence[ReplicaId],
    on_report: Callable[[int], None],
) -> dict[ReplicaId, DirectoryReport]:
    """Return the reports below the node of a restore once the `wanted` ones are there. Raises as
    `all_reports`."""
    seen = -1
    while True:
        node = await coordinator.read(path)
        reports = await reports_below(coordinator, path)
        found = sum(each in reports for each in wanted)
        if found != seen:
            seen = found
            on_report(found)
        if found == len(wanted):
            return reports
        await coordinator.changed(path, node)


async def write_cluster(coordinator: Coordinator, restored: RestoredNodes, *, root: str) -> None:
    """Write all nodes, the store parameters last: with them the cluster exists.

    May be repeated until then. Raises NodeExistsError: the cluster exists; VersionConflictError:
    another process has just written the parameters.
    """
    paths = ClusterPaths(root)
    if await is_restored(coordinator, root=root):
        raise NodeExistsError(f"there is a cluster at {root}")
    for path, data in restored.nodes:
        await put_node(coordinator, path, data)
    async with admin_lock(coordinator, root=root):
        path, params = restored.last
        assert path == paths.store
        node = await coordinator.read(path)
        if node.data is not None:
            raise NodeExistsError(f"there is a cluster at {root}")
        await coordinator.write(path, params, version=node.version)


async def put_node(coordinator: Coordinator, path: str, data: bytes | None) -> None:
    """Create the node, or give it this data."""
    await create_if_absent(coordinator, path, data)
    node = await coordinator.read(path)
    if data is not None and node.data != data:
        await coordinator.write(path, data, version=node.version)
