"""The mutex that serialises changes of store metadata: an ephemeral node, as in the original.

Owns the order of this process's own turns. A session takes the lock at most once, so a lock that is
found to be its own was taken by a call whose answer was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final
from weakref import WeakKeyDictionary

from waltz.cluster.paths import DEFAULT_ROOT, ClusterPaths
from waltz.errors import NodeExistsError, NoNodeError
from waltz.host import Coordinator

_TURNS: Final[WeakKeyDictionary[Coordinator, asyncio.Lock]] = WeakKeyDictionary()
"""Per coordinator session, held by the task of this process that takes or has the lock."""


@contextlib.asynccontextmanager
async def admin_lock(coordinator: Coordinator, *, root: str = DEFAULT_ROOT) -> AsyncIterator[None]:
    """Hold the mutex that serialises changes of store metadata; wait until it is free.

    If this coordinator session has the lock already, a call whose answer was lost has taken it, for
    this process has one turn at a time: it is held from now on.
    """
    path = ClusterPaths(root).admin_lock
    async with _TURNS.setdefault(coordinator, asyncio.Lock()):
        await _take_lock(coordinator, path)
        try:
            yield
        finally:
            with contextlib.suppress(NoNodeError):
                await coordinator.delete(path)


async def _take_lock(coordinator: Coordinator, path: str) -> None:
    while True:
        try:
            await coordinator.create(path, None, ephemeral=True)
            return
        except NodeExistsError:
            with contextlib.suppress(NoNodeError):
                node = await coordinator.read(path)
                if node.is_own:
                    return
                await coordinator.changed(path, node)
