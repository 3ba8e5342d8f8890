"""The gate for tasks, and what a partition does about callbacks that postpone.

The rest of the shell is covered beside a server, in `test_shell.py`.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.client.applications import Note, Recorder
from tests.client.fake_cluster import FakeCluster, run_with_cluster, until
from waltz.client.client_shell import AsyncWaltzClient
from waltz.client.partitions.partition_runner_shell import LoopGate
from waltz.client.transaction import Transaction
from waltz.errors import ClientClosedError, PartitionNotReadyError, PostponedError
from waltz.types import PartitionId, TransactionId


def test_a_gate_opens_when_the_partition_is_mounted() -> None:
    async def main() -> None:
        gate = LoopGate(1)
        entering = asyncio.create_task(gate.enter(10.0, 10.0, lambda: None))
        await asyncio.sleep(0)
        gate.set_mounted(False)
        await asyncio.sleep(0)
        assert not entering.done()
        gate.set_mounted(True)
        await entering

    asyncio.run(main())


def test_a_gate_lets_in_as_many_as_have_room() -> None:
    async def main() -> None:
        nudges: list[None] = []
        gate = LoopGate(2)
        gate.set_mounted(True)
        entering = [
            asyncio.create_task(gate.enter(1.0, 0.01, lambda: nudges.append(None)))
            for _ in range(3)
        ]
        await asyncio.sleep(0.05)
        assert sum(each.done() for each in entering) == 2
        assert nudges
        gate.release(1)
        await asyncio.gather(*entering)

    asyncio.run(main())


def test_a_gate_that_stays_shut_or_fails_says_so() -> None:
    async def main() -> None:
        gate = LoopGate(1)
        with pytest.raises(PartitionNotReadyError):
            await gate.enter(0.01, 1.0, lambda: None)
        entering = asyncio.create_task(gate.enter(10.0, 10.0, lambda: None))
        await asyncio.sleep(0)
        gate.fail(ClientClosedError("closed"))
        with pytest.raises(ClientClosedError):
            await entering

    asyncio.run(main())


class Postponing(Recorder):
    """Puts off its mark and the first transaction a few times."""

    def __init__(self) -> None:
        super().__init__()
        self.postponed = 0
        self.broken = 0

    def get_client_high_water_mark(self, partition_id: PartitionId) -> TransactionId:
        if self.postponed < 2:
            self.postponed += 1
            raise PostponedError("database away", 0.001)
        if not self.broken:
            self.broken += 1
            raise ValueError("a broken callback")
        return super().get_client_high_water_mark(partition_id)

    def apply_transaction(self, transaction: Transaction) -> None:
        if self.postponed < 4:
            self.postponed += 1
            raise PostponedError("not now", 0.001)
        super().apply_transaction(transaction)


def test_postponed_callbacks_are_called_again_and_not_reported() -> None:
    """PM-54, PM-55."""

    async def work(cluster: FakeCluster) -> None:
        callbacks = Postponing()
        async with AsyncWaltzClient(cluster.host, callbacks) as client:
            note = Note()
            await client.submit(note)
            await client.flush()
        assert callbacks.postponed == 4
        assert callbacks.uncaught == []
        assert callbacks.applied_in() == [0]
        assert note.story == ["execute", True, "applied"]

    run_with_cluster(work)


def test_fetched_bodies_are_kept_for_the_next_attempt() -> None:
    async def work(cluster: FakeCluster) -> None:
        cluster.server.partitions[0].add(b"body")
        callbacks = Postponing()
        async with AsyncWaltzClient(cluster.host, callbacks):
            await until(lambda: callbacks.data == [b"body"])
        assert (
            len([m for m in cluster.server.received if type(m).__name__.endswith("DataRequest")])
            == 1
        )

    run_with_cluster(work)
