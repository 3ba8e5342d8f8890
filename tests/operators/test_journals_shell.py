"""Tools on simulated machines ask storage nodes when transactions were written."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.test_server_shell import PARTITIONS, STORAGES, World, play
from waltz.client.applying.callbacks import NoCallbacks
from waltz.client.client_shell import AsyncWaltzClient
from waltz.host import Host
from waltz.operators.journals_shell import (
    JournalAnswer,
    NodePlace,
    ReplicaTime,
    TimePlace,
    cluster_journals,
    place_of,
    times_of,
)
from waltz.operators.replicas_shell import Replica
from waltz.types import NOTHING, ClientId, ReplicaId, SessionId, TransactionId
from waltz.wire.journal_entries import ClockSetBack, DurableTime, JournalOpened, SessionBegan
from waltz.wire.journal_facts import (
    NO_LOWER_BOUND,
    NO_UPPER_BOUND,
    BoundColumns,
    DurableInterval,
    JournalFacts,
    commit_bounds,
)

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
            fifth = await journals.time_of(P0, t(5))
            assert fifth.not_after is not None
            found = await journals.transaction_at(P0, fifth.not_after, t(12))
            assert found == TimePlace(t(6), t(6), {})
            first = await journals.transaction_at(P0, 0, t(12))
            assert first == TimePlace(t(0), t(0), {})
            last = await journals.transaction_at(P0, 2**62, t(12))
            assert last == TimePlace(t(12), None, {})
            none = await journals.transaction_at(PARTITIONS[1], 0, t(0))
            assert none == TimePlace(t(0), None, {})

    play(scene, seeds=2)


def test_a_partition_of_one_replica_has_exact_places() -> None:
    facts = JournalFacts(
        [
            JournalOpened(NOTHING, 0),
            SessionBegan(SessionId(1), NOTHING, 0),
            *(DurableTime(t(number), 1_000 * number + 10, 0) for number in range(10)),
        ]
    )
    assert facts.last_by(5_010, 0, 10) == 5
    assert facts.last_by(5_009, 0, 10) == 4
    assert facts.last_by(5_010, 0, 3) == 2
    assert facts.last_by(5_010, 6, 10) is None
    assert facts.first_new_after(5_010, 0, 10) == 6
    assert facts.first_new_after(5_010, 8, 10) == 8
    assert facts.first_new_after(5_010, 0, 6) is None
    assert facts.first_new_after(9_011, 0, 10) is None


def test_a_copy_that_was_made_anew_does_not_tell_how_old_its_records_are() -> None:
    """The first six were copied in one go, long after they were written."""
    times = [DurableTime(t(5), 9_000, 0), DurableTime(t(6), 9_500, 0), DurableTime(t(7), 9_900, 0)]
    facts = JournalFacts(
        [
            JournalOpened(NOTHING, 8_000),
            times[0],
            SessionBegan(SessionId(2), t(5), 9_000),
            times[1],
            times[2],
        ]
    )
    assert facts.first_new_after(100, 0, 8) == 6
    found = facts.columns(0, 9)
    assert found.not_before.tolist() == [NO_LOWER_BOUND] * 6 + [9_000, 9_500, NO_LOWER_BOUND]
    assert found.not_after.tolist() == [9_000] * 6 + [9_500, 9_900, NO_UPPER_BOUND]


def test_a_clock_that_was_set_back_later_is_no_lower_bound() -> None:
    facts = JournalFacts(
        [
            JournalOpened(NOTHING, 8_000),
            SessionBegan(SessionId(2), NOTHING, 8_000),
            DurableTime(t(0), 9_000, 0),
            ClockSetBack(9_100, 2_000),
            DurableTime(t(0), 2_000, 0),
            DurableTime(t(1), 2_010, 0),
        ]
    )
    found = facts.columns(0, 2)
    assert found.not_before.tolist() == [NO_LOWER_BOUND, 2_000]
    assert found.not_after.tolist() == [9_000, 2_010]
    assert facts.first_new_after(1_000, 0, 2) == 1


@dataclass(frozen=True)
class Arrivals:
    """A copy in the truth: the time of each record's arrival, whether it took all of them from the
    sessions that wrote them, and the slack of what it has noted; None: it tells nothing."""

    times: tuple[int, ...]
    is_original: bool
    slack: int | None

    def bounds(self) -> BoundColumns:
        low, high = NO_LOWER_BOUND, NO_UPPER_BOUND
        known = self.slack is not None
        lows = [t - (self.slack or 0) if known and self.is_original else low for t in self.times]
        highs = [t + (self.slack or 0) if known else high for t in self.times]
        return BoundColumns(np.array(lows), np.array(highs))

    def place(self, moment: int, name: int) -> NodePlace:
        lows, highs = (each.tolist() for each in self.bounds())
        first = sum(each <= moment for each in highs)
        later = next((at for at, each in enumerate(lows) if each >= moment), None)
        return NodePlace(ReplicaId(f"{name}:1"), first, later, "")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_bounds_and_places_hold_for_every_truth(data: st.DataObject) -> None:
    """A copy may have been made anew since; the one that was there before counted then."""
    count, rows = data.draw(st.sampled_from([1, 3, 5])), data.draw(st.integers(1, 5))
    needed = count // 2 + 1
    arriving = st.lists(st.integers(0, 12), min_size=rows, max_size=rows).map(sorted)
    written = [data.draw(arriving) for _ in range(count)]
    committed = [sorted(each[row] for each in written)[needed - 1] for row in range(rows)]
    copies = []
    for times in written:
        is_original = data.draw(st.booleans())
        remade = data.draw(st.integers(12, 20))
        slack = data.draw(st.none() | st.integers(0, 3))
        copies.append(
            Arrivals(tuple(times) if is_original else (remade,) * rows, is_original, slack)
        )
    found = commit_bounds([each.bounds() for each in copies], needed, rows)
    lows, highs = (each.tolist() for each in found)
    for low, at, high in zip(lows, committed, highs, strict=True):
        assert low <= at <= high
    moment = data.draw(st.integers(0, 22))
    nodes = [each.place(moment, name) for name, each in enumerate(copies)]
    place = place_of(nodes, t(rows))
    assert all(at <= moment for at in committed[: place.first])
    if place.later is not None:
        assert all(at >= moment for at in committed[place.later :])


def test_one_row_and_many_have_the_same_bounds() -> None:
    async def scene(world: World, host: Host) -> None:
        await append_slowly(host, 6)
        world.sites.kill(world.sites.site(STORAGES[1]))
        async with cluster_journals(host) as journals:
            run = await journals.times_of_run(P0, 1, 7)
            single = [(await journals.time_of(P0, t(number))).committed() for number in range(1, 7)]
        assert list(run.problems()) == [f"{STORAGES[1]}:7000"]
        lows, highs = (each.tolist() for each in run.committed())
        assert single == [
            (
                None if low == NO_LOWER_BOUND else low,
                None if high == NO_UPPER_BOUND else high,
            )
            for low, high in zip(lows, highs, strict=True)
        ]
        assert None not in single[0]
        assert single[5] == (None, None)

    play(scene, seeds=2)


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
            for partition_id in (P0, PARTITIONS[1]):
                run = await journals.times_of_run(partition_id, 0, 1)
                assert not any(each.notes for each in run.notes_of(ClientId(77), 0))

    play(scene, seeds=1)
