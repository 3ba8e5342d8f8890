"""A database follows one history of the log: a restore under the same key ends another one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest
import sqlalchemy as sql

from tests.client.applications import Recorder
from tests.client.conftest import OpenEngine
from tests.client.fake_cluster import (
    CLUSTER_KEY,
    OLDER_CODEC,
    ROOT,
    FakeCluster,
    run_with_cluster,
)
from tests.client.sql_applications import P0, Applying, rows
from tests.client.test_following_one_cluster import Keeping
from waltz.client.applying.callbacks import NoCallbacks
from waltz.client.applying.calls import load_mark
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.cluster.histories import Histories
from waltz.cluster.log_history import LogHistory, encode_histories
from waltz.errors import (
    HistoryChangedError,
    NoNodeError,
    OperationTimeoutError,
    PostponedError,
)
from waltz.types import PartitionId, TransactionId
from waltz.wire.client_protocol import CLIENT_CODEC
from waltz.wire.history_protocol import HistoriesRequest
from waltz.wire.message import Codec

FORK = 3
RESTORE = LogHistory(UUID(int=77), 1_790_812_800_000, {P0: TransactionId(FORK)})
SECOND = LogHistory(UUID(int=78), 1_790_812_900_000, {P0: TransactionId(FORK - 1)})
NAMED = (
    f"partition 0 of history {CLUSTER_KEY} through transaction {FORK}, and the log of cluster"
    f" {CLUSTER_KEY} was restored from an archive at 2026-10-01T00:00:00\\+00:00: from transaction"
    f" {FORK} on the partition has history {RESTORE.history_id}"
)

Tell = Callable[[FakeCluster, tuple[LogHistory, ...]], Awaitable[None]]


async def by_servers(cluster: FakeCluster, restores: tuple[LogHistory, ...]) -> None:
    cluster.server.histories = Histories(CLUSTER_KEY, restores)


async def by_the_coordinator(cluster: FakeCluster, restores: tuple[LogHistory, ...]) -> None:
    path, data = ROOT.history, encode_histories(restores)
    with contextlib.suppress(NoNodeError):
        await cluster.coordinator.delete(path)
    if restores:
        await cluster.coordinator.create(path, data)


CODECS: dict[Tell, Codec] = {by_servers: CLIENT_CODEC, by_the_coordinator: OLDER_CODEC}
both_ways = pytest.mark.parametrize("tell", list(CODECS), ids=["by_servers", "by_the_coordinator"])
"""Servers of this release tell their histories; for the Java original the coordinator does."""


def run(tell: Tell, work: Callable[[FakeCluster], Awaitable[None]], partitions: int = 1) -> None:
    run_with_cluster(work, partitions, codec=CODECS[tell])


def fill(cluster: FakeCluster, count: int, words: str = "first", partition: int = 0) -> None:
    for number in range(count):
        cluster.server.partitions[partition].add(f"{words} {number}".encode())


async def restore(cluster: FakeCluster, tell: Tell, restores: tuple[LogHistory, ...]) -> None:
    """All servers end, and come back with the log as of the fork, and others after it."""
    await tell(cluster, restores)
    log = cluster.server.partitions[0].log
    del log[restores[-1].firsts[P0] :]
    fill(cluster, 4, f"after restore {len(restores)}")
    cluster.server.cut()


def kept(engine: sql.Engine) -> list[tuple[object, ...]]:
    with engine.connect() as connection:
        found = connection.execute(Applying(engine).table.select().order_by("partition_id"))
        return [tuple(row) for row in found]


@both_ways
def test_a_database_above_the_fork_is_refused_by_name(tell: Tell, open_engine: OpenEngine) -> None:
    async def work(cluster: FakeCluster) -> None:
        await tell(cluster, ())
        fill(cluster, FORK + 1)
        async with AsyncWaltzClient(cluster.host, Applying(open_engine())) as client:
            await client.wait_until_applied()
        await restore(cluster, tell, (RESTORE,))
        async with AsyncWaltzClient(cluster.host, Applying(open_engine())) as client:
            with pytest.raises(HistoryChangedError, match=NAMED) as raised:
                await client.wait_until_applied()
            assert f"as of transaction {FORK - 1} of this partition or before" in str(raised.value)
            with pytest.raises(HistoryChangedError):
                await client.append(0, b"x")
            with pytest.raises(HistoryChangedError):
                await client.flush()
        engine = open_engine()
        assert rows(engine) == list(range(FORK + 1))
        assert kept(engine) == [(0, FORK, str(CLUSTER_KEY))]

    run(tell, work)


@both_ways
def test_a_database_below_the_fork_follows_on_and_takes_the_history_over(
    tell: Tell, open_engine: OpenEngine
) -> None:
    async def work(cluster: FakeCluster) -> None:
        await tell(cluster, ())
        fill(cluster, FORK)
        async with AsyncWaltzClient(cluster.host, Applying(open_engine(), "A")) as client:
            await client.wait_until_applied()
        fill(cluster, 2, "abandoned")
        await restore(cluster, tell, (RESTORE,))
        async with AsyncWaltzClient(cluster.host, Applying(open_engine(), "B")) as client:
            assert await client.wait_until_applied() == {0: FORK + 3}
        engine = open_engine()
        assert rows(engine) == list(range(FORK + 4))
        assert kept(engine) == [(0, FORK + 3, str(RESTORE.history_id))]
        # A second restore, of the log as it was before the first one: all that followed is gone.
        await restore(cluster, tell, (RESTORE, SECOND))
        async with AsyncWaltzClient(cluster.host, Applying(open_engine(), "C")) as client:
            with pytest.raises(HistoryChangedError, match=f"history {RESTORE.history_id} through"):
                await client.wait_until_applied()

    run(tell, work)


@both_ways
def test_a_client_that_lives_through_a_restore_is_refused_above_the_fork(
    tell: Tell, open_engine: OpenEngine
) -> None:
    async def work(cluster: FakeCluster) -> None:
        await tell(cluster, ())
        fill(cluster, FORK + 1)
        recorder = Recorder()
        async with (
            AsyncWaltzClient(cluster.host, recorder) as without_database,
            AsyncWaltzClient(cluster.host, Applying(open_engine())) as client,
        ):
            for each in (client, without_database):
                await each.wait_until_applied()
            waiting = asyncio.create_task(client.wait_until_applied(timeout_seconds=10))
            await waiting
            await restore(cluster, tell, (RESTORE,))
            for each in (client, without_database):
                with pytest.raises(HistoryChangedError, match=NAMED):
                    await each.append(0, b"x")
                with pytest.raises(HistoryChangedError, match=NAMED):
                    await each.get_high_water_mark(0)
                assert each.is_closed
        assert rows(open_engine()) == list(range(FORK + 1))
        assert len(recorder.applied[P0]) == FORK + 1

    run(tell, work)


@both_ways
@pytest.mark.parametrize("is_idle", [True, False])
def test_a_client_that_lives_through_a_restore_follows_on_below_the_fork(
    tell: Tell, is_idle: bool, open_engine: OpenEngine
) -> None:
    """An idle partition asks its application again; another one takes over with the next batch."""

    async def work(cluster: FakeCluster) -> None:
        await tell(cluster, ())
        fill(cluster, FORK)
        async with AsyncWaltzClient(cluster.host, Applying(open_engine())) as client:
            await client.wait_until_applied()
            appending: asyncio.Task[TransactionId] | None = None
            if not is_idle:
                cluster.server.partitions[0].appends_dropped = 1
                appending = asyncio.create_task(client.append(0, b"undecided"))
                while not cluster.server.partitions[0].appends:
                    await asyncio.sleep(0)
            await restore(cluster, tell, (RESTORE,))
            if appending is not None:
                assert await appending == FORK + 4
            last = FORK + 3 + (not is_idle)
            assert await client.wait_until_applied() == {0: last}
        engine = open_engine()
        assert rows(engine) == list(range(last + 1))
        assert kept(engine) == [(0, last, str(RESTORE.history_id))]

    run(tell, work)


@both_ways
@pytest.mark.parametrize("has_database", [True, False])
def test_a_busy_client_that_lives_through_two_restores_is_judged_by_where_it_is(
    tell: Tell, has_database: bool, engine: sql.Engine
) -> None:
    """What it was fed after the first restore is of that history."""

    async def append_through(cluster: FakeCluster, client: AsyncWaltzClient, restores: int) -> None:
        partition = cluster.server.partitions[0]
        appended = len(partition.appends)
        partition.appends_dropped = 1
        appending = asyncio.create_task(client.append(0, b"undecided"))
        while len(partition.appends) == appended:
            await asyncio.sleep(0)
        await restore(cluster, tell, (RESTORE, later)[:restores])
        await appending

    later = LogHistory(SECOND.history_id, 0, {P0: TransactionId(FORK + 5)})
    beyond = LogHistory(UUID(int=79), 0, {P0: TransactionId(FORK + 1)})

    async def work(cluster: FakeCluster) -> None:
        await tell(cluster, ())
        fill(cluster, FORK)
        callbacks = Applying(engine) if has_database else NoCallbacks()
        async with AsyncWaltzClient(cluster.host, callbacks) as client:
            await client.wait_until_applied()
            await append_through(cluster, client, 1)
            assert await client.wait_until_applied() == {0: FORK + 4}
            await append_through(cluster, client, 2)
            assert await client.wait_until_applied() == {0: FORK + 9}
            await restore(cluster, tell, (RESTORE, later, beyond))
            with pytest.raises(HistoryChangedError, match=f"of history {later.history_id} through"):
                await client.append(0, b"x")
        assert rows(engine) == (list(range(FORK + 10)) if has_database else [])

    run(tell, work)


@both_ways
def test_one_partition_above_the_fork_keeps_all_others_back(
    tell: Tell, open_engine: OpenEngine
) -> None:
    """No partition takes the history over: the database is of one time."""
    both = LogHistory(
        RESTORE.history_id, 0, {P0: TransactionId(FORK), PartitionId(1): TransactionId(0)}
    )

    async def work(cluster: FakeCluster) -> None:
        await tell(cluster, ())
        fill(cluster, 1)
        fill(cluster, 1, partition=1)
        async with AsyncWaltzClient(cluster.host, Applying(open_engine())) as client:
            await client.wait_until_applied()
        await restore(cluster, tell, (both,))
        options = ClientOptions(partitions=[0])
        async with AsyncWaltzClient(cluster.host, Applying(open_engine()), options) as client:
            with pytest.raises(HistoryChangedError, match=r"partition 1 .* through transaction 0,"):
                await client.wait_until_applied()
        engine = open_engine()
        assert rows(engine) == [0]
        assert {row[2] for row in kept(engine)} == {str(CLUSTER_KEY)}

    run(tell, work, partitions=2)


def test_a_mark_that_moves_while_a_history_is_taken_over_is_looked_at_again(
    engine: sql.Engine,
) -> None:
    """Another process, which has not noticed the restore, goes beyond the fork in between."""
    first, second = UUID(int=1), UUID(int=2)
    callbacks = Applying(engine)
    assert callbacks.get_client_high_water_mark(P0) == -1
    callbacks.keep_client_history(P0, first, None)
    with engine.begin() as connection:
        connection.execute(callbacks.table.update().values(high_water_mark=9))
    callbacks.keep_client_history(P0, second, first)
    assert kept(engine) == [(0, 9, str(first))]
    assert callbacks.get_client_history(P0) == first
    assert callbacks.seen_high_water_marks == {0: 9}


def test_an_application_whose_mark_has_moved_is_asked_again() -> None:
    class Moving(Keeping):
        def keep_client_history(
            self, partition_id: PartitionId, history: UUID, before: UUID | None
        ) -> None:
            """Keep nothing: the mark has moved."""
            self.moved += 1

        moved = 0

        def get_client_high_water_mark(self, partition_id: PartitionId) -> TransactionId:
            return TransactionId(self.moved)

    histories = Histories(CLUSTER_KEY, (RESTORE,))
    with pytest.raises(PostponedError, match="the mark of partition 0 moved while"):
        load_mark(Moving(), histories, P0, 1)


def test_one_partition_beyond_the_point_is_enough_before_anything_is_taken_over() -> None:
    """Applications are restored as a whole: none of their partitions goes on alone (99003101)."""
    callbacks = Keeping()
    callbacks.marks = {0: FORK - 1, 1: FORK}
    callbacks.histories = dict.fromkeys((0, 1), CLUSTER_KEY)
    both = LogHistory(
        UUID(int=79), 1, {P0: TransactionId(FORK), PartitionId(1): TransactionId(FORK)}
    )
    histories = Histories(CLUSTER_KEY, (both,))
    with pytest.raises(HistoryChangedError, match=f"partition 1 of history {CLUSTER_KEY} through"):
        load_mark(callbacks, histories, P0, 2)
    assert set(callbacks.histories.values()) == {CLUSTER_KEY}
    callbacks.marks[1] = FORK - 1
    assert load_mark(callbacks, histories, P0, 2) == (FORK - 1, UUID(int=79))


def test_an_application_that_keeps_no_history_may_be_wrapped() -> None:
    class Wrapping(Recorder):
        def get_client_high_water_mark(self, partition_id: PartitionId) -> TransactionId:
            return TransactionId(3)

        def get_client_history(self, partition_id: PartitionId) -> UUID | None:
            return super().get_client_history(partition_id)

    assert load_mark(Wrapping(), Histories(CLUSTER_KEY), P0, 1) == (3, None)


def test_the_histories_are_asked_for_only_if_they_are_not_known() -> None:
    """A handshake names the newest one: a connection more costs no question."""

    async def work(cluster: FakeCluster) -> None:
        await by_servers(cluster, (RESTORE,))
        fill(cluster, FORK)
        async with AsyncWaltzClient(cluster.host, Recorder()) as client:
            await client.wait_until_applied()
            asked = cluster.server.count(HistoriesRequest)
            assert asked in (1, 2)  # two connections are opened at the same time
            cluster.server.cut()
            fill(cluster, 1)
            assert await client.append(0, b"x") == FORK + 1
            assert cluster.server.count(HistoriesRequest) == asked

    run(by_servers, work)


def test_a_server_of_the_time_before_the_restore_is_not_used() -> None:
    async def work(cluster: FakeCluster) -> None:
        await by_servers(cluster, (RESTORE,))
        fill(cluster, FORK)
        recorder = Recorder()
        options = ClientOptions(operation_seconds_max=0.5)
        async with AsyncWaltzClient(cluster.host, recorder, options) as client:
            await client.wait_until_applied()
            await by_servers(cluster, ())
            fill(cluster, 2, "of the former process")
            cluster.server.cut()
            with pytest.raises(OperationTimeoutError):
                await client.append(0, b"x", timeout_seconds=0.5)
        assert len(recorder.applied[P0]) == FORK

    run(by_servers, work)
