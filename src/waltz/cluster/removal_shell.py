"""Takes a whole cluster out of the coordinator.

Owns the order: the node that names the cluster goes last, so that an interrupted removal can be
repeated and no process starts on the remains. Files of storage nodes are not touched: they belong
to a cluster key that no cluster has any more.
"""

from __future__ import annotations

import contextlib
from typing import Final

from waltz.cluster.cluster_shell import read_cluster_params
from waltz.cluster.locking_shell import admin_lock
from waltz.cluster.paths import DEFAULT_ROOT, ClusterPaths
from waltz.cluster.store_params import ClusterParams
from waltz.cluster.tree import parent_of
from waltz.errors import ConfigurationError, CoordinationError, NoNodeError
from waltz.host import Coordinator

STORE: Final = "store"
REMOVALS_MAX: Final = 10
"""Attempts to remove a node below which other processes create nodes at the same time."""


async def remove_cluster(
    coordinator: Coordinator, *, name: str | None, root: str = DEFAULT_ROOT
) -> ClusterParams:
    """Remove the cluster called `name` and return its parameters; `name` None removes it whatever
    its name is, even if servers of it are running (CM-04).

    Raises NoNodeError: there is no cluster; ConfigurationError, with nothing removed: it has
    another name, servers of it are running, or foreign nodes are below its root;
    CoordinatorLostError: look at the coordinator, and repeat the call.
    """
    paths = ClusterPaths(root)
    params = await read_cluster_params(coordinator, root)
    if name is not None:
        await _check_removable(coordinator, paths, params, name)
    others = [each for each in await coordinator.children(root) if each != STORE]
    async with contextlib.AsyncExitStack() as stack:
        with contextlib.suppress(NoNodeError):  # removed by an interrupted removal
            await stack.enter_async_context(admin_lock(coordinator, root=root))
        for other in others:
            await _remove(coordinator, f"{root}/{other}")
        with contextlib.suppress(NoNodeError):
            for child in await coordinator.children(paths.store):
                if f"{paths.store}/{child}" != paths.admin_lock:
                    await _remove(coordinator, f"{paths.store}/{child}")
    await _remove(coordinator, root)
    return params


async def _check_removable(
    coordinator: Coordinator, paths: ClusterPaths, params: ClusterParams, name: str
) -> None:
    if params.name != name:
        raise ConfigurationError(
            f"the cluster at {paths.root} is called {params.name!r}, not {name!r}"
        )
    known = (
        paths.server_descriptors,
        paths.ids,
        paths.store,
        paths.storage_directories,
        paths.server_preferences,
        paths.consumers,
        paths.cut,
        paths.policy,
        paths.notes,
        paths.history,
        paths.restore,
        paths.partition_restores,
    )
    strange = [
        child
        for child in await coordinator.children(paths.root)
        if f"{paths.root}/{child}" not in known
    ]
    if strange:
        raise ConfigurationError(
            f"below {paths.root} there are nodes of no cluster, or of another one:"
            f" {', '.join(strange)}; remove those nodes first"
        )
    with contextlib.suppress(NoNodeError):
        if running := await coordinator.children(paths.server_descriptors):
            raise ConfigurationError(
                f"servers of cluster {name!r} are running, {len(running)} in all; stop them first"
            )


async def _remove(coordinator: Coordinator, path: str) -> None:
    """Remove a node with all nodes below it; nodes that vanish by themselves are no error.

    Raises CoordinationError: other processes create nodes below it as fast as they are removed.
    """
    assert path != parent_of(path)
    for _ in range(REMOVALS_MAX):
        with contextlib.suppress(NoNodeError):
            for child in await coordinator.children(path):
                await _remove(coordinator, f"{path}/{child}")
        try:
            await coordinator.delete(path)
        except NoNodeError:
            return
        except CoordinationError as error:
            refusal = error  # a running server has registered again in the meantime
        else:
            return
    raise refusal
