"""What a partition does about callbacks that postpone.

The rest of the shell is covered next to a server, in `test_client_shell.py`.
"""

from __future__ import annotations

from tests.client.applications import Note, Recorder
from tests.client.fake_cluster import FakeCluster, run_with_cluster, until
from waltz.client.client_shell import AsyncWaltzClient
from waltz.client.transaction import Transaction
from waltz.errors import PostponedError
from waltz.types import PartitionId, TransactionId


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
