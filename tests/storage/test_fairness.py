"""Partitions of one node share its disk and its threads: flooded ones do not starve another."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

import pytest

from tests.storage.support import (
    DIRECTORY,
    KEY,
    SESSION,
    batch,
    fresh_disk,
    make_partition,
    open_control,
)
from tests.storage.test_partition_queue_shell import Recorder
from waltz.limits import WORKER_THREADS_MAX
from waltz.sim.loop import WORKER_SECONDS_MAX, Process, SimulatedLoop, SimulatedWorkers
from waltz.sim.simulated_disk import DiskOperation
from waltz.storage.partition_queue_shell import PartitionQueue, StoragePeer
from waltz.system.real_host import real_host
from waltz.types import PartitionId
from waltz.wire.handshake import Link
from waltz.wire.storage_protocol import STORAGE_CODEC, AppendRecordsRequest, StorageMessage

T = TypeVar("T")

Work = Callable[[], Callable[[], object]]

QUIET = 0
"""The partition that is appended to one at a time; the others are flooded."""

QUIET_APPENDS = 20


class FewThreads:
    """Simulated workers of which only so many run; the rest wait in order, as for real threads."""

    def __init__(self, loop: SimulatedLoop, seed: int, threads: int) -> None:
        self.most: Counter[int] = Counter()
        """Calls that a partition ever had under way or waiting at a time."""
        self._workers = SimulatedWorkers(loop, Random(seed))
        self._free = threads
        self._waiting: deque[Work] = deque()
        self._calls: Counter[int] = Counter()

    def start_for(self, number: int, function: Work) -> None:
        self._calls[number] += 1
        self.most[number] = max(self.most[number], self._calls[number])

        def work() -> Callable[[], object]:
            then = function()

            def end() -> None:
                self._calls[number] -= 1
                self._free += 1
                self._go_on()
                then()

            return end

        self._waiting.append(work)
        self._go_on()

    def _go_on(self) -> None:
        if self._free and self._waiting:
            self._free -= 1
            self._workers.start(self._waiting.popleft())


class ThreadsOfOne:
    """Implements `host.Workers` for one partition."""

    def __init__(self, workers: FewThreads, number: int) -> None:
        self._workers = workers
        self._number = number

    def start(self, function: Work) -> None:
        self._workers.start_for(self._number, function)

    async def run_blocking(self, function: Callable[[], T]) -> T:
        raise AssertionError


class Waiting(Recorder):
    """A connection whose other end can wait for answers."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.arrived.set()


def peer_of(connection: Recorder) -> StoragePeer:
    ours, theirs = Link(STORAGE_CODEC, "node"), Link(STORAGE_CODEC, "test")
    ours.receive(theirs.hello())
    return StoragePeer(connection, ours, is_opened=True)


def append_of(partition_id: PartitionId, number: int) -> StorageMessage:
    return AppendRecordsRequest(
        SESSION, number, partition_id, batch(number, 1, partition=partition_id), offline=False
    )


async def flood(queue: PartitionQueue) -> None:
    """So much that something always waits, from a connection that never waits for an answer."""
    connection = Recorder()
    peer = peer_of(connection)
    number = 0
    while True:
        if not connection.is_paused:
            queue.put(peer, [append_of(queue.partition.partition_id, number)])
            number += 1
        await asyncio.sleep(WORKER_SECONDS_MAX / 10)


async def append_in_turn(queue: PartitionQueue) -> None:
    connection = Waiting()
    peer = peer_of(connection)
    for number in range(QUIET_APPENDS):
        connection.arrived.clear()
        queue.put(peer, [append_of(queue.partition.partition_id, number)])
        await connection.arrived.wait()


def run_node(seed: int, *, flooded: int, threads: int) -> tuple[list[int], Counter[int]]:
    """Return the partition of every sync of data, in order, and the calls of each at a time."""
    loop = SimulatedLoop(seed)
    syncs: list[int] = []

    def note(operation: DiskOperation, path: str) -> None:
        if operation is DiskOperation.SYNC and path.endswith(".seg"):
            syncs.append(int(path.removeprefix(f"{DIRECTORY}/").split("/")[0]))

    async def main() -> Counter[int]:
        workers = FewThreads(loop, seed, threads)
        disk = fresh_disk()
        control_file = open_control(
            disk, key=KEY, partition_count=flooded + 1, assigned=range(flooded + 1)
        )
        queues = []
        for number in range(flooded + 1):
            partition = make_partition(disk, control_file, number=number)
            partition.open()
            partition.announce(SESSION)
            host = replace(real_host(None), workers=ThreadsOfOne(workers, number))
            queues.append(PartitionQueue(host, partition))
        disk.fault = note
        flooding = [asyncio.create_task(flood(queue)) for queue in queues[1:]]
        await append_in_turn(queues[QUIET])
        for task in flooding:
            task.cancel()
        for queue in queues:
            await queue.stop()
        return workers.most

    try:
        return syncs, loop.run_until_complete(loop.spawn(Process("node"), main()))
    finally:
        loop.shut_down()


def gaps(syncs: Sequence[int]) -> list[Counter[int]]:
    """Per pair of syncs of the quiet partition, how often each other one synced in between."""
    found: list[Counter[int]] = [Counter()]
    for number in syncs:
        if number == QUIET:
            found.append(Counter())
        else:
            found[-1][number] += 1
    return found[1:-1]


@pytest.mark.parametrize(
    ("flooded", "threads"), [(1, WORKER_THREADS_MAX), (1, 1), (5, 1), (40, WORKER_THREADS_MAX)]
)
@pytest.mark.parametrize("seed", range(2))
def test_between_two_syncs_of_one_partition_each_flooded_one_has_only_a_few(
    flooded: int, threads: int, seed: int
) -> None:
    syncs, _ = run_node(seed, flooded=flooded, threads=threads)
    assert syncs.count(QUIET) == QUIET_APPENDS
    assert max(count for gap in gaps(syncs) for count in gap.values()) <= 4


def test_no_partition_ever_holds_more_than_one_thread() -> None:
    _, most = run_node(1, flooded=3, threads=WORKER_THREADS_MAX)
    assert most == dict.fromkeys(range(4), 1)
