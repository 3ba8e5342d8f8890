"""Calls a listener with the events of its client, apart from everything that moves data.

Owns which servers are connected and which partitions mounted, so that each change is reported once,
and the events that wait for a slow listener.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import Final

from waltz.client.lifecycle_events import (
    ConnectionRestored,
    LifecycleEvent,
    LifecycleListener,
    PartitionMounted,
    PartitionUnmounted,
    ServerConnected,
    ServerDisconnected,
)
from waltz.connections.tasks_shell import Tasks
from waltz.host import Host
from waltz.types import Address, PartitionId

LISTENER_EVENTS_MAX: Final = 10_000
"""Events that wait for a slow listener; further events are dropped."""


logger = logging.getLogger(__name__)


class Listening:
    """See the module; a watcher of `Connections`. Without a `listener` nothing is reported."""

    def __init__(self, host: Host, tasks: Tasks, listener: LifecycleListener | None) -> None:
        self._host = host
        self._tasks = tasks
        self._listener = listener
        self._connections: dict[Address, int] = {}
        self.opened = self.restored = self.lost = 0
        """Connections that were opened, resumed after a break, and that have ended."""
        self._mounted: set[PartitionId] = set()
        self._waiting: deque[LifecycleEvent] = deque()
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()

    @property
    def connected_servers(self) -> frozenset[Address]:
        """Return the servers to which there is a logical connection. Any thread may call."""
        return frozenset(list(self._connections))

    def start(self) -> None:
        if self._listener is not None:
            self._tasks.start(self._tell_all(self._listener))

    def tell(self, event: LifecycleEvent) -> None:
        if self._listener is None:
            return
        if len(self._waiting) >= LISTENER_EVENTS_MAX:
            logger.warning("listener_too_slow event=%s waiting=%d", event, len(self._waiting))
            return
        self._waiting.append(event)
        self._arrived.set()

    def server_connected(self, address: Address) -> None:
        self.opened += 1
        count = self._connections.get(address, 0)
        self._connections[address] = count + 1
        if not count:
            self.tell(ServerConnected(address))

    def server_restored(self, address: Address) -> None:
        self.restored += 1
        self.tell(ConnectionRestored(address))

    def server_disconnected(self, address: Address) -> None:
        self.lost += 1
        self._connections[address] -= 1
        if not self._connections[address]:
            del self._connections[address]
            self.tell(ServerDisconnected(address))

    def partition_mounted(self, partition_id: PartitionId, mounted: bool) -> None:
        """Take a partition's report on itself, which may repeat an earlier one."""
        if mounted and partition_id not in self._mounted:
            self._mounted.add(partition_id)
            self.tell(PartitionMounted(partition_id))
        elif not mounted and partition_id in self._mounted:
            self._mounted.discard(partition_id)
            self.tell(PartitionUnmounted(partition_id))

    async def told(self) -> None:
        """Return once the listener was called with every event; the last call may still run, for it
        may be the call that closes the client."""
        while self._waiting:
            self._taken.clear()
            await self._taken.wait()

    async def _tell_all(self, listener: LifecycleListener) -> None:
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            # Shielded: if the client ends because of this event, a call that has not begun would be
            # cancelled with it.
            calling = asyncio.ensure_future(self._call(listener))
            await asyncio.shield(calling)

    async def _call(self, listener: LifecycleListener) -> None:
        event = self._waiting.popleft()
        self._taken.set()
        await self._host.workers.run_blocking(partial(_call, listener, event))


def _call(listener: LifecycleListener, event: LifecycleEvent) -> None:
    try:
        listener(event)
    except Exception:
        logger.exception("listener_failed event=%s", event)
