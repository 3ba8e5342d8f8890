"""When a context came, and how long it may take."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from tests.client.applications import Note, Recorder
from tests.client.fake_cluster import FakeCluster, run_with_cluster
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.client.transaction import TransactionBuilder, TransactionContext
from waltz.testing import InMemoryCluster


def test_a_context_says_when_it_came() -> None:
    """PM-16: in milliseconds, and it stays when it is executed again."""
    with InMemoryCluster(for_tests=True) as cluster:
        client = cluster.open_client(Recorder())
        first, second = Note(), Note(lock=1)
        assert [each.creation_time for each in (first, second)] == [None, None]
        cluster.faults.fail_next_lock()
        client.submit(first)
        time.sleep(0.01)
        client.submit(second)
        created = second.creation_time
        client.flush()
    assert second.story.count("execute") == 2
    assert second.creation_time == created
    assert (second.creation_time or 0) >= (first.creation_time or 0) + 10 > 10


@dataclass(frozen=True)
class Frozen(TransactionContext):
    data: bytes

    def partition_id(self, partition_count: int) -> int:
        return 0

    def execute(self, builder: TransactionBuilder) -> bool:
        builder.set_data(self.data)
        return True


def test_a_context_that_is_a_frozen_value_is_told_when_it_came_and_how_it_was_sent() -> None:
    """PM-16, UA-30."""
    with InMemoryCluster(for_tests=True) as cluster:
        context = Frozen(b"data")
        client = cluster.open_client(Recorder())
        client.submit(context)
        client.flush()
        assert context.creation_time is not None
        assert context.request_id is not None
        assert client.outcome(context.request_id, context.executed_at) == 0


def test_a_context_runs_out_of_time_while_it_waits_for_a_server() -> None:
    """PM-14: once; nobody has executed it."""

    async def work(cluster: FakeCluster) -> None:
        cluster.server.partitions[0].mounts_not_ready = 1_000_000
        note = Note(timeout_seconds=0.05)
        async with AsyncWaltzClient(cluster.host, Recorder(), ClientOptions()) as client:
            await client.submit(note)
            assert note.story == ["expired"]
            assert not client.has_pending_transactions()
            await asyncio.sleep(0.1)
        assert note.story == ["expired"]

    run_with_cluster(work)
