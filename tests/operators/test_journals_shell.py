"""Tools on simulated machines ask storage nodes when transactions were written."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from tests.server.test_server_shell import PARTITIONS, STORAGES, World, play
from waltz.client.applying.callbacks import NoCallbacks
from waltz.client.client_shell import AsyncWaltzClient
from waltz.host import Host
from waltz.operators.journals_shell import (
    JournalAnswer,
    ReplicaTime,
    cluster_journals,
    times_of,
)
from waltz.operators.replicas_shell import Replica
from waltz.types import NOTHING, ClientId, PartitionId, ReplicaId, TransactionId
from waltz.wire.journal_entries import DurableTime, JournalOpened
from waltz.wire.journal_facts import DurableInterval, JournalFacts

P0 = PARTITIONS[0]
PAUSE = 10.0


def t(number: int) -> TransactionId:
    return TransactionId(number)


async def append_slowly(host: Host, count: int) -> None:
    async with AsyncWaltzClient(host, NoCallbacks()) as client:
        for number in range(count):
            await client.append(P0, b"data %d" % number)
            await asyncio.sleep(PAUSE)


def test_every_node_tells_when_its_copy_became_durable() -> None:
    async def scene(world: World, host: Host) -> None:
        await append_slowly(host, 4)
        async with cluster_journals(host) as journals:
            assert journals.partition_count == len(PARTITIONS)
            found = [await journals.time_of(P0, t(number)) for number in range(5)]
        for number, times in enumerate(found[:4]):
            assert times.transaction_id == number
            assert len(times.replicas) == 3
            for each in times.replicas:
                assert each.reason == ""
                assert each.interval is not None
                assert each.interval.not_after - each.interval.not_before < 1_000
                assert each.session_id is not None
        assert times.not_before is not None
        for earlier, times in itertools.pairwise(found[:4]):
            for one, two in zip(earlier.replicas, times.replicas, strict=True):
                assert one.interval is not None
                assert two.interval is not None
                assert two.interval.not_before - one.interval.not_before >= PAUSE * 900
        assert [each.interval for each in found[4].replicas] == [None] * 3
        assert (found[4].not_before, found[4].not_after) == (None, None)

    play(scene, seeds=1)


def test_a_node_that_is_away_is_named_with_the_reason_and_the_others_tell() -> None:
    async def scene(world: World, host: Host) -> None:
        await append_slowly(host, 1)
        world.sites.kill(world.sites.site(STORAGES[1]))
        async with cluster_journals(host) as journals:
            times = await journals.time_of(P0, t(0))
            again = await journals.time_of(P0, t(0))
        assert times == again
        by_name = {each.replica.replica_id: each for each in times.replicas}
        assert by_name[ReplicaId(f"{STORAGES[1]}:7000")].interval is None
        assert STORAGES[1] in by_name[ReplicaId(f"{STORAGES[1]}:7000")].reason
        assert times.not_after is not None

    play(scene, seeds=1)


def test_a_time_has_a_place_in_a_partition() -> None:
    async def scene(world: World, host: Host) -> None:
        await append_slowly(host, 12)
        async with cluster_journals(host) as journals:
            (replica, *_) = await journals.replicas(P0)
            answer = await journals.ask(replica, t(0), t(11))
            intervals = [answer.interval(number) for number in range(12)]
            fifth = intervals[5]
            assert fifth is not None
            found = await journals.transaction_at(P0, fifth.not_after, t(12))
            assert found is not None
            assert found.first >= 6
            assert await journals.transaction_at(P0, 0, t(12)) is not None
            first = await journals.transaction_at(P0, 0, t(12))
            assert first is not None
            assert first.first == 0
            assert first.later == 0
            last = await journals.transaction_at(P0, 2**62, t(12))
            assert last is not None
            assert last.first == 12
            assert last.later is None
            assert await journals.transaction_at(PARTITIONS[1], 0, t(0)) is None

    play(scene, seeds=2)


def test_a_partition_of_one_replica_has_exact_places() -> None:
    facts = JournalFacts(
        [
            JournalOpened(NOTHING, 0),
            *(DurableTime(t(number), 1_000 * number + 10, 0) for number in range(10)),
        ]
    )
    assert facts.last_by(5_010, 0, 10) == 5
    assert facts.last_by(5_009, 0, 10) == 4
    assert facts.last_by(5_010, 0, 3) == 2
    assert facts.last_by(5_010, 6, 10) is None
    assert facts.first_after(5_010, 0, 10) == 6
    assert facts.first_after(5_010, 8, 10) == 8
    assert facts.first_after(5_010, 0, 6) is None
    assert facts.first_after(9_011, 0, 10) is None


@pytest.mark.parametrize("known", [0, 1, 2, 3])
def test_a_majority_of_copies_that_tell_bounds_the_time_of_the_majority(known: int) -> None:
    facts = JournalFacts([JournalOpened(NOTHING, 10), DurableTime(t(0), 20, 0)])
    answers = [
        JournalAnswer(
            Replica(P0, ReplicaId(f"node-{number}:1"), 2, True, None),
            t(0),
            t(1),
            facts if number < known else None,
            "" if number < known else "away",
        )
        for number in range(3)
    ]
    times = times_of(t(0), answers)
    assert [each.reason for each in times.replicas] == [""] * known + ["away"] * (3 - known)
    assert times.not_after == (20 if known >= 2 else None)
    assert times.not_before == (10 if known >= 2 else None)
    assert times.apart_milliseconds == 0
    assert times.replicas[:known] == tuple(
        ReplicaTime(each.replica, DurableInterval(10, 20), None, "") for each in answers[:known]
    )


def test_a_client_that_nobody_noted_is_not_known() -> None:
    async def scene(world: World, host: Host) -> None:
        await append_slowly(host, 1)
        async with cluster_journals(host) as journals:
            for partition_id in (P0, PartitionId(1)):
                found = await journals.notes_of(partition_id, ClientId(77), t(0))
                assert not any(each.notes for each in found)

    play(scene, seeds=1)
