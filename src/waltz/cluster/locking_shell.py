"""The mutex that serialises changes of store metadata: an ephemeral node, as the original has it.

Owns who of this process has its turn. A session has the lock at most once, so that one that is
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
"""Held by whoever of this process is at the lock, by coordinator session."""


@contextlib.asynccontextmanager
async def admin_lock(coordinator: Coordinator, *, root: str = DEFAULT_ROOT) -> AsyncIterator[None]:
    """Hold the mutex that serialises changes of store metadata; wait for whoever has it.

    One that this coordinator session has already was left by a call whose answer was lost, since
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
