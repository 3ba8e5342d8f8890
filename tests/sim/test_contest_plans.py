"""Contests: owners change while storage nodes come and go, and one replica alone holds a tail."""

from __future__ import annotations

from random import Random

from waltz.sim.faults.contest_plans import (
    changing_replicas,
    contested_partition,
    lone_tails,
    outlived_tails,
)
from waltz.sim.faults.drawing import FaultStage
from waltz.sim.faults.kinds import (
    CoordinatorSlowness,
    Crash,
    Disconnection,
    Isolation,
    LostAnswers,
    Reassignment,
    SessionLoss,
    SlowLinks,
)
from waltz.sim.faults.plans import PLANS

STORAGES = ("storage-0", "storage-1", "storage-2")
SERVERS = ("server-0", "server-1")
STAGE = FaultStage(STORAGES, SERVERS, ("client-0",))


def test_a_contested_partition_loses_owners_and_replicas_while_all_are_late() -> None:
    faults = [fault for seed in range(100) for fault in contested_partition(Random(seed), STAGE)]
    assert {type(fault) for fault in faults} == {
        CoordinatorSlowness, SlowLinks, SessionLoss, Isolation, Crash, Disconnection,
    }  # fmt: skip
    crashed = {fault.names for fault in faults if isinstance(fault, Crash)}
    assert {1, 2, 3} == {len(names) for names in crashed if {*names} <= {*STORAGES}}
    assert {("server-0",), ("server-1",)} <= crashed
    assert PLANS["contested_partition"].server_count_min == 2


def test_contests_often_begin_when_a_partition_is_still_empty() -> None:
    starts = [contested_partition(Random(seed), STAGE)[0].progress for seed in range(200)]
    assert 50 < starts.count(0.0) < 150


def test_replicas_come_and_go_in_all_manners_while_others_fail() -> None:
    stage = FaultStage(
        STORAGES, SERVERS, ("client-0",), spares=("new-0", "new-1"), partition_count=2
    )
    nodes = {*stage.storages, *stage.spares}
    manners, alone, kinds = set(), set(), set()
    for seed in range(300):
        held = [{*STORAGES}, {*STORAGES}]
        for fault in changing_replicas(Random(seed), stage):
            kinds.add(type(fault))
            if not isinstance(fault, Reassignment):
                continue
            assert len(fault.holders) == 2
            alone.add(fault.holders.count(()))
            for position, names in enumerate(fault.holders):
                after, before = {*names}, held[position]
                if after:
                    assert len(after) == len(names)
                    assert after <= nodes
                    manners.add((len(after - before), len(before - after)))
                    held[position] = after
    assert alone == {0, 1}
    assert {(0, 1), (0, 2), (1, 0), (2, 0), (1, 1), (2, 2), (1, 3)} <= manners
    assert kinds == {
        Reassignment, Crash, Disconnection, Isolation, SessionLoss, CoordinatorSlowness,
        LostAnswers,
    }  # fmt: skip
    assert PLANS["changing_replicas"].spare_count_max == 3


def test_a_lone_tail_is_on_a_replica_that_dies_with_the_servers_while_the_others_are_cut_off() -> (
    None
):
    for seed in range(100):
        faults = lone_tails(Random(seed), STAGE)
        for moment in {fault.progress for fault in faults}:
            together = [fault for fault in faults if fault.progress == moment]
            cut_off = [fault for fault in together if isinstance(fault, Isolation)]
            owners, holder, *again = (fault for fault in together if isinstance(fault, Crash))
            assert {fault.others for fault in cut_off} == {SERVERS}
            assert owners.names == SERVERS
            assert {*holder.names, *(fault.name for fault in cut_off)} == {*STORAGES}
            assert owners.delay_seconds == holder.delay_seconds < cut_off[0].seconds
            assert all({*fault.names} >= {*holder.names} for fault in again)
            assert all(fault.delay_seconds > holder.delay_seconds for fault in again)


def test_a_tail_is_outlived_while_its_holder_is_away_and_owners_change() -> None:
    changes = set()
    for seed in range(100):
        faults = outlived_tails(Random(seed), STAGE)
        for moment in {fault.progress for fault in faults}:
            together = [fault for fault in faults if fault.progress == moment]
            cut_off = [fault for fault in together if isinstance(fault, Isolation) and fault.others]
            owners, holder = together[len(cut_off) : len(cut_off) + 2]
            assert isinstance(owners, Crash)
            assert isinstance(holder, Crash)
            assert {*holder.names, *(fault.name for fault in cut_off)} == {*STORAGES}
            assert owners.delay_seconds == holder.delay_seconds < cut_off[0].seconds
            end = holder.delay_seconds + holder.pause_seconds[0]
            later = together[len(cut_off) + 2 :]
            assert later
            assert all(holder.delay_seconds <= fault.delay_seconds <= end for fault in later)
            changes |= {type(fault) for fault in later}
    assert changes == {SessionLoss, Crash, Isolation}
