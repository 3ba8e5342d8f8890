"""The partitions that run on one server, as the cluster assigns them.

Owns which partitions are open, under which generation, and what becomes of one that fails. What a
partition is made of is the server's business, and what it does is its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from waltz.host import Host
from waltz.limits import RETRY_SECONDS_MAX, RETRY_SECONDS_MIN
from waltz.server.appends.refusals import Refusals
from waltz.server.appends.stage_seconds import StageSeconds
from waltz.server.clients.client_connection import Mounts
from waltz.server.clients.clients_shell import Clients
from waltz.server.feeding.feed_cache import FeedCache
from waltz.server.held_partition import HeldPartition
from waltz.server.partition_server_shell import OpenStore, RunningPartition
from waltz.server.server_metrics import ServerPartitionState
from waltz.server.server_partition_events import (
    MountWithdrawn,
    PartitionEvent,
    PartitionRevoked,
    ReleaseRequested,
)
from waltz.types import Generation, PartitionId

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class PartitionFailure:
    """The number of a partition's failures in this process, and the last failure."""

    count: int = 0
    reason: str = ""


NO_FAILURE: Final = PartitionFailure()


class RunningPartitions:
    """The partitions of one server. `make` returns the machine of one, and what opens its store."""

    def __init__(
        self,
        host: Host,
        clients: Clients,
        cache: FeedCache,
        make: Callable[[PartitionId, Generation], tuple[HeldPartition, OpenStore]],
        start: Callable[[Coroutine[None, None, None]], None],
        on_failure: Callable[[BaseException], None] | None,
    ) -> None:
        """`on_failure`: called with the error of a partition, which is not opened again then."""
        self.running: dict[PartitionId, RunningPartition] = {}
        self.assigned: dict[PartitionId, Generation] = {}
        self._host = host
        self._clients = clients
        self._cache = cache
        self._make = make
        self._start = start
        self._on_failure = on_failure
        self._openings = 0
        self._left_behind: dict[PartitionId, Mounts] = {}
        """The clients that were mounted on partitions that have gone to other servers."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        """One for each partition."""
        self._failures: dict[PartitionId, PartitionFailure] = {}
        self._is_refusing = False

    def states(self) -> tuple[ServerPartitionState, ...]:
        """Return the state of each partition that is this server's."""
        return tuple(
            self._state(partition_id, generation)
            for partition_id, generation in sorted(self.assigned.items())
        )

    def _state(self, partition_id: PartitionId, generation: Generation) -> ServerPartitionState:
        partition = self.running.get(partition_id)
        if partition is None:
            return self._failed_state(partition_id, generation)
        return partition.state(self._failures.get(partition_id, NO_FAILURE).count)

    async def look(self, partition_id: PartitionId) -> ServerPartitionState:
        """Return the partition's state once its replicas have been asked."""
        partition = self.running.get(partition_id)
        if partition is not None:
            return await partition.look(self._failures.get(partition_id, NO_FAILURE).count)
        return self._failed_state(partition_id, self.assigned.get(partition_id, Generation(-1)))

    def _failed_state(
        self, partition_id: PartitionId, generation: Generation
    ) -> ServerPartitionState:
        failure = self._failures.get(partition_id, NO_FAILURE)
        return ServerPartitionState(
            partition_id=partition_id,
            generation=generation,
            reason=f"it has failed and is opened again soon: {failure.reason}",
            failures=failure.count,
        )

    def refusals(self, partition_id: PartitionId) -> Refusals | None:
        """Return the refusals of a partition; None if it does not run here."""
        partition = self.running.get(partition_id)
        return None if partition is None else partition.machine.refusals

    def durations(self, partition_id: PartitionId) -> StageSeconds | None:
        """Return the durations of a partition's appends; None if it does not run here."""
        partition = self.running.get(partition_id)
        return None if partition is None else partition.machine.append_seconds

    def mounted(self) -> dict[int, list[PartitionId]]:
        """Return the partitions that each connection has mounted, by its number."""
        found: dict[int, list[PartitionId]] = {}
        for partition_id, partition in self.running.items():
            for connection_id in partition.machine.mounts.connection_ids():
                found.setdefault(connection_id, []).append(partition_id)
        return found

    def withdraw(self, connection_id: int, partition_id: PartitionId) -> None:
        """End a connection's mount of one partition."""
        partition = self.running.get(partition_id)
        if partition is not None:
            partition.put(MountWithdrawn(connection_id))

    def tell_all(self, event: PartitionEvent) -> None:
        for partition in self.running.values():
            partition.put(event)

    def refuse(self) -> None:
        """Open nothing and close nothing any more, whatever is assigned."""
        self._is_refusing = True

    async def release(self) -> None:
        """Return once every partition has closed, with its appends decided or soon anyway."""
        self.tell_all(ReleaseRequested())
        if self._tasks:
            await asyncio.wait(self._tasks)

    def assign(self, assigned: dict[PartitionId, Generation]) -> None:
        """Open what is new, close what is gone.

        A partition that is kept under a higher generation was another server's in between: nothing
        known here holds any more, so it is closed and opened like any other. One that comes back
        later finds clients that never heard that it was away: they are cut off, or they would wait
        for ever, since a generation alone makes no client mount again.
        """
        if self._is_refusing:
            return
        self.assigned = assigned
        for partition_id, partition in list(self.running.items()):
            generation = assigned.get(partition_id)
            if generation != partition.machine.generation:
                del self.running[partition_id]
                partition.put(PartitionRevoked(comes_back=generation is not None))
                if generation is None:
                    self._left_behind[partition_id] = partition.machine.mounts
                logger.info(
                    "partition_closing partition=%d generation=%d",
                    partition_id,
                    partition.machine.generation,
                )
        for partition_id, generation in sorted(assigned.items()):
            if partition_id not in self.running:
                self._open(partition_id, generation)

    def _open(self, partition_id: PartitionId, generation: Generation) -> None:
        left_behind = self._left_behind.pop(partition_id, None)
        for connection_id in left_behind.connection_ids() if left_behind is not None else ():
            self._clients.cut_off(connection_id, f"partition {partition_id} has been away")
        self._openings += 1
        machine, open_store = self._make(partition_id, generation)
        partition = RunningPartition(self._host, self._clients, self._openings, machine, open_store)
        self.running[partition_id] = partition
        task = asyncio.get_running_loop().create_task(partition.run())
        self._tasks[task] = None
        task.add_done_callback(partial(self._on_partition_end, partition))
        logger.info("partition_opened partition=%d generation=%d", partition_id, generation)

    def _on_partition_end(self, partition: RunningPartition, task: asyncio.Task[None]) -> None:
        """Nothing that came for the partition is under way any more."""
        del self._tasks[task]
        waiting = []
        for client in self._clients:
            if client.intake.waits_for(partition.opening):
                waiting.append(client.connection_id)
            client.intake.forget(partition.opening)
            client.note_intake()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(partition, error, waiting)

    def _fail(
        self, partition: RunningPartition, error: BaseException, waiting: Sequence[int]
    ) -> None:
        """A partition that fails is a bug, and ends alone: it is opened again after a pause.

        Clients that are mounted on it or wait for an answer are cut off, or would wait for ever.
        The recovery of its next store session decides the appends that it had sent and not seen
        decided.
        """
        machine = partition.machine
        partition_id = machine.partition_id
        failure = self._failures.setdefault(partition_id, PartitionFailure())
        failure.count += 1
        failure.reason = repr(error)
        logger.error(
            "partition_failed partition=%d generation=%d failures=%d error=%r",
            partition_id,
            machine.generation,
            failure.count,
            error,
            exc_info=error,
        )
        for connection_id in {*machine.mounts.connection_ids(), *waiting}:
            self._clients.cut_off(connection_id, f"partition {partition_id} has failed")
        if self.running.get(partition_id) is not partition:
            return
        del self.running[partition_id]
        self._cache.drop(partition_id)
        if self._on_failure is not None:
            self._on_failure(error)
        elif not self._is_refusing:
            self._start(self._open_again(partition_id, failure.count))

    async def _open_again(self, partition_id: PartitionId, failures: int) -> None:
        """Open a failed partition after a pause that grows with each failure, if it is still this
        server's."""
        pause = min(RETRY_SECONDS_MIN * 2 ** min(failures, 16), RETRY_SECONDS_MAX)
        await asyncio.sleep(self._host.random.uniform(pause / 2, pause))
        generation = self.assigned.get(partition_id)
        if generation is not None and partition_id not in self.running:
            self._open(partition_id, generation)
