"""The client beside a server in miniature: real frames on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.client.applications import WRITTEN, Note, Recorder
from tests.client.fake_cluster import FakeCluster, FakeServer, run_with_cluster, until
from waltz.client.applying.callbacks import NoCallbacks
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.client.transaction import Transaction
from waltz.errors import (
    ClientAheadError,
    ClientClosedError,
    LocalProtocolError,
    NoNodeError,
    NotFoundError,
    OperationTimeoutError,
    PartitionInactiveError,
    PartitionNotReadyError,
)
from waltz.types import TransactionId
from waltz.wire.client_protocol import (
    CLIENT_CODEC,
    AppendRequest,
    HighWaterMarkRequest,
    MountRequest,
    TransactionDataRequest,
)
from waltz.wire.message import Codec


def opened(
    cluster: FakeCluster, callbacks: Recorder | NoCallbacks | None = None, **options: object
) -> AsyncWaltzClient:
    settings = ClientOptions(**options)  # type: ignore[arg-type]
    return AsyncWaltzClient(cluster.host, callbacks or Recorder(), settings)


def test_a_transaction_is_written_comes_back_and_is_applied() -> None:
    """PM-01, PM-02, PM-05, PM-10, PM-11, PM-33."""

    async def work(cluster: FakeCluster) -> None:
        recorder, note = Recorder(), Note()
        async with opened(cluster, recorder) as client:
            await client.submit(note)
            await client.flush()
            assert not client.has_pending_transactions()
            assert client.client_high_water_mark(0) == 0
        assert note.story == WRITTEN
        assert recorder.data == [b"hello"]

    run_with_cluster(work)


def test_a_submit_returns_before_its_verdict() -> None:
    """PM-05."""

    async def work(cluster: FakeCluster) -> None:
        partition = cluster.server.partitions[0]
        partition.feed_held = True
        note = Note()
        async with opened(cluster) as client:
            await client.submit(note)
            await until(lambda: bool(partition.log))
            assert note.story == ["execute"]
            assert client.has_pending_transactions()
            partition.feed_held = False
            cluster.server.feed()
            await client.flush()
        assert note.story == WRITTEN

    run_with_cluster(work)


def test_the_feed_starts_after_the_applications_mark() -> None:
    """PM-03, PM-28, CI-27: in order, none twice."""

    async def work(cluster: FakeCluster) -> None:
        for number in range(1000):
            cluster.server.partitions[0].add(b"%d" % number)
        recorders = [Recorder(mark=mark) for mark in (-1, 949, 969)]
        for recorder in recorders:
            async with opened(cluster, recorder):
                await until(recorder.has_applied(999))
        assert [len(recorder.applied_in()) for recorder in recorders] == [1000, 50, 30]
        assert recorders[0].applied_in() == list(range(1000))
        assert recorders[0].data == [b"%d" % number for number in range(1000)]

    run_with_cluster(work)


def test_nothing_to_write_completes_as_false() -> None:
    """PM-08."""

    async def work(cluster: FakeCluster) -> None:
        note = Note(write=False)
        async with opened(cluster) as client:
            await client.submit(note)
            assert not client.has_pending_transactions()
        assert note.story == ["execute", False]
        assert cluster.server.partitions[0].appends == []

    run_with_cluster(work)


def test_what_execute_raises_reaches_context_and_submitter() -> None:
    """PM-09."""

    async def work(cluster: FakeCluster) -> None:
        error = ValueError("no")
        note = Note(write=error)
        async with opened(cluster) as client:
            with pytest.raises(ValueError, match="no"):
                await client.submit(note)
            assert not client.has_pending_transactions()
        assert note.story == ["execute", error]

    run_with_cluster(work)


def test_a_partition_that_does_not_exist_is_refused() -> None:
    """PM-06."""

    async def work(cluster: FakeCluster) -> None:
        note = Note(partition=5)
        async with opened(cluster) as client:
            with pytest.raises(NotFoundError, match="partition 5"):
                await client.submit(note)
            with pytest.raises(NotFoundError, match="partition 7"):
                await client.get_high_water_mark(7)
        assert isinstance(note.story[0], NotFoundError)

    run_with_cluster(work)


def test_a_refused_lock_is_retried_once_its_winner_is_applied() -> None:
    """PM-13, PM-20, PM-40, CI-20."""

    async def work(cluster: FakeCluster) -> None:
        partition = cluster.server.partitions[0]
        partition.refusals = [TransactionId(1)]
        partition.add(b"first")
        note = Note(lock=4)
        async with opened(cluster) as client:
            await until(lambda: client.client_high_water_mark(0) == 0)
            await client.submit(note)
            await until(lambda: bool(partition.appends))
            partition.add(b"winner")
            cluster.server.feed()
            await client.flush()
        assert note.story == ["execute", ("lock", 1), *WRITTEN]
        assert [append.client_high_water_mark for append in partition.appends] == [0, 1]

    run_with_cluster(work)


def test_a_lost_append_is_noticed_and_retried() -> None:
    """PM-40, PM-43: nothing else happens on the partition."""

    async def work(cluster: FakeCluster) -> None:
        partition = cluster.server.partitions[0]
        partition.appends_dropped = 2
        note = Note()
        async with opened(cluster, long_wait_seconds=0.05) as client:
            await client.submit(note)
            await until(lambda: note.story[-1] == "applied")
        assert note.story == ["execute", "execute", *WRITTEN]
        assert len(partition.log) == 1

    run_with_cluster(work)


def test_without_retry_threads_a_failed_append_is_reported() -> None:
    """PM-39, PM-41."""

    async def work(cluster: FakeCluster) -> None:
        partition = cluster.server.partitions[0]
        partition.refusals = [TransactionId(-1)]
        refused, lost = Note(), Note()
        async with opened(cluster, retry_threads=0) as client:
            await client.submit(refused)
            await client.flush()
            partition.appends_dropped = 1
            await client.submit(lost)
            assert client.has_pending_transactions()
            await client.flush()
            partition.refusals = [TransactionId(-1)]
            with pytest.raises(OperationTimeoutError, match="no threads to retry it"):
                await client.append(0, b"")
        assert refused.story == ["execute", ("lock", -1), False]
        assert lost.story == ["execute", False]

    run_with_cluster(work)


def test_a_server_that_is_not_ready_is_mounted_later() -> None:
    """CI-25."""

    async def work(cluster: FakeCluster) -> None:
        cluster.server.partitions[0].mounts_not_ready = 1
        async with opened(cluster) as client:
            await client.append(0, b"x")
        assert cluster.server.count(MountRequest) == 2

    run_with_cluster(work)


def test_cut_connections_lose_nothing_and_double_nothing() -> None:
    """CI-06, CI-17, PM-04: stored = applied = submitted."""

    async def work(cluster: FakeCluster) -> None:
        recorder = Recorder()
        notes = [Note(f"{number}") for number in range(200)]
        partition = cluster.server.partitions[0]
        async with opened(cluster, recorder, max_concurrent_transactions=20) as client:

            async def cut() -> None:
                for _ in range(8):
                    await until(lambda: bool(partition.appends))
                    partition.appends.clear()
                    partition.appends_dropped = 3
                    cluster.server.cut()

            cutting = asyncio.create_task(cut())
            for note in notes:
                await client.submit(note)
            await cutting
            await client.flush()
            await until(lambda: recorder.marks.get(0) == len(partition.log) - 1)
        texts = [data.decode() for _, _, data in partition.log]
        assert sorted(texts, key=int) == [note.text for note in notes]
        assert recorder.data == [data for _, _, data in partition.log]
        assert all(note.story[-2:] == [True, "applied"] for note in notes)
        assert all(note.story.count(True) == 1 for note in notes)

    run_with_cluster(work)


def test_a_moved_partition_is_followed_with_its_new_generation() -> None:
    """CI-04, CI-08, LC-86."""

    async def work(cluster: FakeCluster) -> None:
        other = FakeServer(2)
        old = cluster.server
        other.partitions[1] = old.partitions[1]
        await other.start()
        async with opened(cluster) as client:
            assert await client.append(1, b"old server") == 0
            old.partitions.pop(1)
            other.partitions[1].generation = 2
            await cluster.coordinator.assign({old.address: {0: 1}, other.address: {1: 2}})
            assert await client.append(1, b"new server") == 1
            assert await client.append(0, b"old server") == 0
        assert other.partitions[1].appends[-1].request_id.generation == 2
        await other.stop()

    run_with_cluster(work, partition_count=2)


def test_there_are_two_connections_per_server() -> None:
    """CI-01."""

    async def work(cluster: FakeCluster) -> None:
        async with opened(cluster) as client:
            await client.append(0, b"x")
            await until(lambda: len(cluster.server.connections) == 2)
        await until(lambda: not cluster.server.connections)

    run_with_cluster(work)


def test_room_is_bounded_and_more_submits_wait() -> None:
    """PM-42: a wait that takes long asks for verdicts."""

    async def work(cluster: FakeCluster) -> None:
        partition = cluster.server.partitions[0]
        partition.feed_held = True
        async with opened(
            cluster, max_concurrent_transactions=2, registration_seconds_max=0.05
        ) as client:
            notes = [Note() for _ in range(3)]
            await client.submit(notes[0])
            await client.submit(notes[1])
            third = asyncio.create_task(client.submit(notes[2]))
            await asyncio.sleep(0.1)
            assert not third.done()
            assert len(partition.log) == 2
            partition.feed_held = False
            cluster.server.feed()
            await third
            await client.flush()
        assert all(note.story == WRITTEN for note in notes)

    run_with_cluster(work)


def test_a_partition_without_a_server_is_not_waited_for_for_ever() -> None:
    """CI-11."""

    async def work(cluster: FakeCluster) -> None:
        cluster.server.partitions.clear()
        note = Note()
        async with opened(cluster, mount_seconds_max=0.05) as client:
            with pytest.raises(PartitionNotReadyError, match=r"0\.05 s"):
                await client.submit(note)
        assert isinstance(note.story[0], PartitionNotReadyError)

    run_with_cluster(work)


def test_a_client_ahead_of_the_log_is_told_so() -> None:
    """CI-12."""

    async def work(cluster: FakeCluster) -> None:
        recorder = Recorder(mark=1000)
        async with opened(cluster, recorder, ahead_seconds_max=0.05) as client:
            with pytest.raises(ClientAheadError, match="through transaction 1000"):
                await client.submit(Note())
        assert recorder.applied == {}

    run_with_cluster(work)


def test_inactive_partitions_are_refused() -> None:
    """PM-35."""

    async def work(cluster: FakeCluster) -> None:
        async with opened(cluster, partitions=[1]) as client:
            assert await client.append(1, b"") == 0
            with pytest.raises(PartitionInactiveError, match="partition 0"):
                await client.submit(Note())

    run_with_cluster(work, partition_count=2)


def test_a_failing_callback_keeps_back_its_partition_only() -> None:
    """PM-29, PM-38, CI-30."""

    async def work(cluster: FakeCluster) -> None:
        recorder = Recorder()
        error = ValueError("poison")
        recorder.failures = {0: error}
        note = Note()
        async with opened(cluster, recorder) as client:
            await client.submit(note)
            await client.append(1, b"flows")
            await client.flush()
        assert recorder.uncaught[0][1:] == (0, error)
        assert len(recorder.uncaught) == 1
        assert note.story == WRITTEN
        assert recorder.applied == {0: [0], 1: [0]}

    run_with_cluster(work, partition_count=2)


def test_bodies_are_fetched_only_when_asked_for() -> None:
    """PM-31, PM-45, PM-46: a consumer that wants one header fetches those bodies."""

    async def work(cluster: FakeCluster) -> None:
        for number in range(30):
            cluster.server.partitions[0].add(b"%d" % number, header=number % 3)
        recorder = Recorder(prefetch=False)
        recorder.wants = lambda transaction: transaction.header == 2
        async with opened(cluster, recorder):
            await until(lambda: recorder.marks.get(0) == 29)
        assert recorder.data == [b"%d" % number for number in range(2, 30, 3)]
        assert cluster.server.count(TransactionDataRequest) == 10

    run_with_cluster(work)


def test_bodies_that_are_read_in_a_row_are_requested_once_each() -> None:
    """PM-31, CI-22: ahead of the calls or with them, and again if the server could not give one."""

    async def work(cluster: FakeCluster) -> None:
        partition = cluster.server.partitions[0]
        for number in range(300):
            partition.add(b"%d" % number)
        recorder = Recorder(prefetch=False)
        failures = partition.data_failures = 3
        async with opened(cluster, recorder):
            await until(lambda: recorder.marks.get(0) == 299)
        assert recorder.data == [b"%d" % number for number in range(300)]
        assert cluster.server.count(TransactionDataRequest) == 300 + failures

    run_with_cluster(work)


def test_chosen_bodies_are_fetched_ahead() -> None:
    """PM-45."""

    class Choosing(Recorder):
        def choose_prefetch(self, batch: Sequence[Transaction]) -> Sequence[Transaction]:
            return [each for each in batch if each.header == 2]

    async def work(cluster: FakeCluster) -> None:
        for number in range(30):
            cluster.server.partitions[0].add(b"%d" % number, header=number % 3)
        recorder = Choosing(prefetch=False)
        recorder.wants = lambda transaction: transaction.has_data
        async with opened(cluster, recorder):
            await until(lambda: recorder.marks.get(0) == 29)
        assert recorder.data == [b"%d" % number for number in range(2, 30, 3)]
        assert cluster.server.count(TransactionDataRequest) == 10

    run_with_cluster(work)


def test_own_bodies_are_not_fetched() -> None:
    async def work(cluster: FakeCluster) -> None:
        recorder = Recorder()
        async with opened(cluster, recorder) as client:
            await client.append(0, b"mine")
        assert recorder.data == [b"mine"]
        assert cluster.server.count(TransactionDataRequest) == 0

    run_with_cluster(work)


def test_a_failed_fetch_is_repeated() -> None:
    """PM-32."""

    async def work(cluster: FakeCluster) -> None:
        cluster.server.partitions[0].add(b"body")
        cluster.server.partitions[0].data_failures = 2
        recorder = Recorder()
        async with opened(cluster, recorder):
            await until(lambda: recorder.data == [b"body"])

    run_with_cluster(work)


def test_concurrent_questions_for_a_mark_share_a_request() -> None:
    """PM-34, PM-36."""

    async def work(cluster: FakeCluster) -> None:
        cluster.server.partitions[0].add(b"x")
        async with opened(cluster) as client:
            asked = [client.get_high_water_mark(0) for _ in range(20)]
            assert await asyncio.gather(*asked) == [0] * 20
            assert client.client_id == 1
            assert client.cluster_name == "fake"
            assert client.partition_count == 1
            assert client.cluster_key.int == 7
        assert cluster.server.count(HighWaterMarkRequest) == 1

    run_with_cluster(work)


def test_two_clients_have_different_ids() -> None:
    """CI-29, CI-16."""

    async def work(cluster: FakeCluster) -> None:
        recorders = [Recorder(), Recorder()]
        async with opened(cluster, recorders[0]) as one, opened(cluster, recorders[1]) as two:
            assert one.client_id != two.client_id
            notes = [Note(f"{number}") for number in range(20)]
            for number, note in enumerate(notes):
                await (one, two)[number % 2].submit(note)
            await one.flush()
            await two.flush()
            await until(lambda: all(recorder.marks.get(0) == 19 for recorder in recorders))
        assert recorders[0].data == recorders[1].data
        assert all(note.story == WRITTEN for note in notes)

    run_with_cluster(work)


def test_a_client_that_only_writes_starts_at_the_end_of_the_log() -> None:
    async def work(cluster: FakeCluster) -> None:
        for _ in range(500):
            cluster.server.partitions[0].add(b"x")
        async with opened(cluster, NoCallbacks()) as client:
            assert await client.append(0, b"y") == 500
        mount = next(m for m in cluster.server.received if isinstance(m, MountRequest))
        assert mount.client_high_water_mark == 499

    run_with_cluster(work)


def test_a_context_out_of_time_is_given_up() -> None:
    """PM-14: once, and no retry after it."""

    async def work(cluster: FakeCluster) -> None:
        partition = cluster.server.partitions[0]
        note = Note(timeout_seconds=0.5)
        async with opened(cluster) as client:
            await client.append(0, b"mounted")
            partition.appends_dropped = 1_000_000
            await client.submit(note)
            await until(lambda: note.story == ["execute", "expired"])
            partition.appends_dropped = 0
            await client.append(0, b"later")
            await client.flush()
        assert note.story == ["execute", "expired"]
        assert len(partition.log) == 2

    run_with_cluster(work)


def test_closing_ends_what_has_no_verdict() -> None:
    """PM-15, PM-44: idempotent."""

    async def work(cluster: FakeCluster) -> None:
        cluster.server.partitions[0].appends_dropped = 10
        notes = [Note() for _ in range(3)]
        client = opened(cluster)
        await client.start()
        for note in notes:
            await client.submit(note)
        await client.close()
        await client.close()
        for note in notes:
            assert note.story[0] == "execute"
            assert isinstance(note.story[1], ClientClosedError)
            assert len(note.story) == 2
        with pytest.raises(ClientClosedError):
            await client.submit(Note())
        await until(lambda: not cluster.server.connections)

    run_with_cluster(work)


def test_a_client_without_a_cluster_does_not_start() -> None:
    async def work(cluster: FakeCluster) -> None:
        client = opened(cluster, root="/elsewhere")
        with pytest.raises(NoNodeError, match="elsewhere"):
            await client.start()

    run_with_cluster(work)


def test_waiting_inside_a_callback_for_itself_is_refused() -> None:
    """UA-64: submits are welcome there, waits are not."""

    class Nested(Recorder):
        client: AsyncWaltzClient
        refused = 0

        def apply_transaction(self, transaction: Transaction) -> None:
            super().apply_transaction(transaction)
            for wait in (self.client.flush, self.client.close):
                try:
                    wait().send(None)
                except LocalProtocolError:
                    self.refused += 1

    async def work(cluster: FakeCluster) -> None:
        nested = Nested()
        async with opened(cluster, nested) as client:
            nested.client = client
            await client.append(0, b"x")
        assert nested.refused == 2

    run_with_cluster(work)


def test_locks_an_old_server_cannot_carry_end_the_context() -> None:
    """Hazard H11: version 0 has no read locks."""
    old = Codec(CLIENT_CODEC.magic, (0,), [k for k in CLIENT_CODEC.messages if not k.SINCE])

    async def work(cluster: FakeCluster) -> None:
        note = Note(lock=1)
        async with opened(cluster) as client:
            await client.submit(note)
            await client.flush()
            assert await client.append(0, b"without locks") == 0
        assert note.story[0] == "execute"
        assert "upgrade servers" in str(note.story[1])

    run_with_cluster(work, codec=old)


def test_an_append_request_carries_locks_and_generation() -> None:
    async def work(cluster: FakeCluster) -> None:
        async with opened(cluster) as client:
            await client.submit(Note("text", lock=7))
            await client.flush()
        (append,) = [m for m in cluster.server.received if isinstance(m, AppendRequest)]
        assert (append.header, append.data) == (4, b"text")
        assert len(append.write_locks) == len(append.read_locks) == 1
        assert append.append_locks == ()
        assert append.request_id.generation == 1

    run_with_cluster(work)
