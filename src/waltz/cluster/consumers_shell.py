"""The coordinator's nodes of named consumers: kept, read and forgotten."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from waltz.cluster.consumer_marks import (
    CONSUMERS_MAX,
    KeptMark,
    KeptMarks,
    decode_kept,
    encode_kept,
    merged,
)
from waltz.cluster.paths import DEFAULT_ROOT, ClusterPaths
from waltz.errors import (
    CoordinationError,
    NodeExistsError,
    NoNodeError,
    RemoteProtocolError,
    VersionConflictError,
)
from waltz.host import Coordinator
from waltz.types import PartitionId


async def keep_marks(
    coordinator: Coordinator, name: str, told: KeptMarks, *, root: str = DEFAULT_ROOT
) -> None:
    """Raise the marks of the consumer `name` to those that it has told; one that is lower is left
    as it is.

    Servers that create nodes at the same moment may pass CONSUMERS_MAX by one each. Raises
    CoordinationError: there are CONSUMERS_MAX, and this name is none of them; NoNodeError: there is
    no cluster; RemoteProtocolError: the node cannot be read, and is left as it is;
    CoordinatorLostError: perhaps it was done.
    """
    paths = ClusterPaths(root)
    path = paths.consumer(name)
    while True:
        try:
            node = await coordinator.read(path)
        except NoNodeError:
            await _make_room(coordinator, paths)
            with contextlib.suppress(NodeExistsError):
                await coordinator.create(path, encode_kept(merged({}, told)))
                return
            continue
        kept = decode_kept(node.data or b"{}")
        wanted = merged(kept, told)
        if wanted == kept:
            return
        with contextlib.suppress(VersionConflictError, NoNodeError):
            await coordinator.write(path, encode_kept(wanted), version=node.version)
            return


async def _make_room(coordinator: Coordinator, paths: ClusterPaths) -> None:
    """See that there is a parent node, and that it may get another child."""
    try:
        count = len(await coordinator.children(paths.consumers))
    except NoNodeError:
        with contextlib.suppress(NodeExistsError):
            await coordinator.create(paths.consumers, None)
        return
    if count >= CONSUMERS_MAX:
        raise CoordinationError(
            f"the cluster keeps the marks of {count} consumers, and takes at most {CONSUMERS_MAX};"
            " waltz consumers forget makes room"
        )


async def read_consumers(
    coordinator: Coordinator, *, root: str = DEFAULT_ROOT
) -> Mapping[str, dict[PartitionId, KeptMark] | RemoteProtocolError]:
    """Return the marks that are kept of each consumer, by name; an error for a node that cannot be
    read. Raises CoordinatorLostError."""
    paths = ClusterPaths(root)
    try:
        names = await coordinator.children(paths.consumers)
    except NoNodeError:
        return {}

    async def read(name: str) -> dict[PartitionId, KeptMark] | RemoteProtocolError | None:
        try:
            return decode_kept((await coordinator.read(paths.consumer(name))).data or b"{}")
        except NoNodeError:
            return None  # forgotten just now
        except RemoteProtocolError as error:
            return error

    found = await asyncio.gather(*map(read, names))
    return {name: kept for name, kept in zip(names, found, strict=True) if kept is not None}


async def forget_consumer(coordinator: Coordinator, name: str, *, root: str = DEFAULT_ROOT) -> bool:
    """Delete the marks that are kept of a consumer; False if there were none. Raises
    CoordinatorLostError."""
    try:
        await coordinator.delete(ClusterPaths(root).consumer(name))
    except NoNodeError:
        return False
    return True
