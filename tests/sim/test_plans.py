"""Fault plans are equal for equal seeds, within their budget, in order of progress."""

from __future__ import annotations

from random import Random
from typing import TypeVar

import pytest

from waltz.sim.faults.drawing import FaultStage
from waltz.sim.faults.kinds import (
    KINDS,
    AddedPartitions,
    BitFlips,
    ChangedPolicy,
    ClockDrift,
    ClockJump,
    CoordinatorOutage,
    CoordinatorSlowness,
    Crash,
    Disconnection,
    DiskFailure,
    Fault,
    Flapping,
    ForeignWrites,
    Forgery,
    FullDisk,
    HalfClose,
    Isolation,
    LostAnswers,
    LostDisk,
    LostFiles,
    Moment,
    OldDisk,
    Partition,
    Pause,
    PutBack,
    Reassignment,
    Rebuilt,
    Replay,
    SessionLoss,
    SetBack,
    SlowLinks,
    Stop,
    count_of,
)
from waltz.sim.faults.plans import (
    PLANS,
    Draw,
    client_crash,
    clock_trouble,
    coordinator_trouble,
    everything,
    flapping,
    isolation,
    mass_restart,
    moving_partitions,
    no_faults,
    one_way,
    partial_partition,
    pauses,
    power_cut,
    put_back,
    rebuilt_coordinator,
    rolling_restart,
    server_crash,
    slow_links,
    stale_server,
    storage_crash,
    swizzle,
)

F = TypeVar("F", bound=Moment)

STORAGES = ("storage-0", "storage-1", "storage-2")
SERVERS = ("server-0", "server-1")
CLIENTS = ("client-0", "client-1", "client-2")
STAGE = FaultStage(STORAGES, SERVERS, CLIENTS)
HARMFUL = {DiskFailure, BitFlips, FullDisk, LostDisk, OldDisk, LostFiles}
ELSEWHERE = {
    AddedPartitions,
    ChangedPolicy,
    Reassignment,
    HalfClose,
    Replay,
    SetBack,
    Rebuilt,
    PutBack,
    Forgery,
}
"""What needs more machines than others have, somebody between them, or a stranger."""


def drawn(draw: Draw) -> list[Fault]:
    return [fault for seed in range(200) for fault in draw(Random(seed), STAGE)]


def only(kind: type[F], draw: Draw) -> list[F]:
    faults = drawn(draw)
    chosen: list[F] = [fault for fault in faults if isinstance(fault, kind)]
    assert len(chosen) == len(faults) > 0
    return chosen


@pytest.mark.parametrize("name", PLANS)
def test_equal_seeds_draw_equal_faults_in_order(name: str) -> None:
    plan = PLANS[name]
    for seed in range(100):
        faults = plan.draw(Random(seed), STAGE)
        assert faults == plan.draw(Random(seed), STAGE)
        moments = [fault.progress for fault in faults]
        assert moments == sorted(moments)
        assert all(count_of(fault) > 0 for fault in faults)


@pytest.mark.parametrize("name", PLANS)
def test_faults_strike_nobody_twice_at_once_and_only_who_is_there(name: str) -> None:
    everybody = {*STORAGES, *SERVERS, *CLIENTS}
    for fault in drawn(PLANS[name].draw):
        match fault:
            case Crash() | Stop() | Pause() | ClockJump() | ClockDrift():
                assert len(fault.names) == len({*fault.names})
                assert everybody >= {*fault.names}
            case (
                Partition(ways=ways)
                | SlowLinks(ways=ways)
                | Disconnection(pairs=ways)
                | HalfClose(ways=ways)
                | Replay(ways=ways)
            ):
                assert len(ways) == len({*ways})
                assert everybody >= {name for way in ways for name in way}
            case _:
                pass


@pytest.mark.parametrize("name", PLANS)
def test_longer_runs_have_more_faults(name: str) -> None:
    short = sum(len(PLANS[name].draw(Random(seed), STAGE)) for seed in range(50))
    stage = FaultStage(STORAGES, SERVERS, CLIENTS, length=10)
    long = sum(len(PLANS[name].draw(Random(seed), stage)) for seed in range(50))
    assert long > 5 * short or name == "none"


def test_a_plan_without_faults_has_none() -> None:
    assert no_faults(Random(1), STAGE) == ()


def test_storage_crash_takes_one_node_at_a_time_with_and_without_its_power() -> None:
    faults = only(Crash, storage_crash)
    assert {len(fault.names) for fault in faults} == {1}
    assert {fault.names[0] for fault in faults} == {*STORAGES}
    assert {fault.power_lost for fault in faults} == {True, False}


def test_server_crash_takes_servers_only() -> None:
    assert {fault.names for fault in only(Crash, server_crash)} == {("server-0",), ("server-1",)}


def test_client_crash_takes_clients_only_in_two_ways() -> None:
    faults = drawn(client_crash)
    assert {type(fault) for fault in faults} == {Crash, Stop}
    assert all({*fault.names} <= {*CLIENTS} for fault in faults if isinstance(fault, Crash | Stop))


def test_power_cut_takes_all_nodes_and_their_unsynced_bytes() -> None:
    faults = only(Crash, power_cut)
    assert all(fault.names == STORAGES and fault.power_lost for fault in faults)


def test_rolling_restart_takes_all_nodes_and_servers_one_by_one() -> None:
    for fault in only(Stop, rolling_restart):
        assert {*fault.names} == {*STORAGES, *SERVERS}
        assert fault.one_by_one


def test_mass_restart_takes_everybody_at_once() -> None:
    for fault in drawn(mass_restart):
        assert isinstance(fault, Crash | Stop)
        assert {*fault.names} == {*STORAGES, *SERVERS, *CLIENTS}
        assert isinstance(fault, Crash) or not fault.one_by_one


def test_pauses_are_of_all_lengths_and_of_all_kinds_of_processes() -> None:
    faults = only(Pause, pauses)
    assert {name for fault in faults for name in fault.names} == {*STORAGES, *SERVERS, *CLIENTS}
    seconds = [span for fault in faults for span in fault.seconds]
    assert min(seconds) < 0.1
    assert max(seconds) > 20.0


def test_isolation_keeps_a_process_from_others_but_not_from_itself() -> None:
    for fault in only(Isolation, isolation):
        assert fault.others
        assert fault.name not in fault.others


def test_swizzle_clogs_storage_nodes_and_kills_one_process_meanwhile() -> None:
    for seed in range(100):
        faults = swizzle(Random(seed), STAGE)
        moments = {fault.progress for fault in faults}
        for moment in moments:
            together = [fault for fault in faults if fault.progress == moment]
            clogged = [fault.name for fault in together if isinstance(fault, Isolation)]
            assert {*clogged} <= {*STORAGES}
            assert len(clogged) == len({*clogged}) == len(together) - 1


def test_a_stale_server_and_its_clients_lose_nobody_but_the_coordinator() -> None:
    client_counts = set()
    for seed in range(100):
        faults = stale_server(Random(seed), STAGE)
        for moment in {fault.progress for fault in faults}:
            together = [fault for fault in faults if fault.progress == moment]
            *clients, server = together
            for fault in together:
                assert isinstance(fault, Isolation)
                assert fault.others == ()
                assert fault.with_coordinator
                assert fault.session_ended == (fault is server)
                assert fault.name in (SERVERS if fault is server else CLIENTS)
            client_counts.add(len(clients))
    assert client_counts == {1, 2, 3}
    assert PLANS["stale_server"].server_count_min == 2


def test_partial_partitions_part_pairs_both_ways_and_leave_the_coordinator() -> None:
    for fault in only(Partition, partial_partition):
        assert {*fault.ways} == {way[::-1] for way in fault.ways}
        assert {*fault.ways} <= {*STAGE.links, *(link[::-1] for link in STAGE.links)}


def test_one_way_partitions_leave_the_way_back_open() -> None:
    for fault in only(Partition, one_way):
        assert not {*fault.ways} & {way[::-1] for way in fault.ways}


def test_slow_links_are_slower_than_requests_may_be() -> None:
    assert max(fault.slowest_seconds for fault in only(SlowLinks, slow_links)) >= 5.0


def test_flapping_links_fail_more_than_once_and_connections_are_lost() -> None:
    faults = drawn(flapping)
    assert {type(fault) for fault in faults} == {Flapping, Disconnection}
    assert all(fault.times > 1 for fault in faults if isinstance(fault, Flapping))


def test_coordinator_trouble_comes_in_all_kinds() -> None:
    assert {type(fault) for fault in drawn(coordinator_trouble)} == {
        SessionLoss, CoordinatorOutage, CoordinatorSlowness, LostAnswers, ForeignWrites, Crash,
    }  # fmt: skip


def test_partitions_move_while_everybody_hears_late() -> None:
    for seed in range(50):
        slowness, links, *losses = moving_partitions(Random(seed), STAGE)
        assert isinstance(slowness, CoordinatorSlowness)
        assert isinstance(links, SlowLinks)
        assert len(losses) == 10
        assert {loss.name for loss in losses if isinstance(loss, SessionLoss)} <= {*SERVERS}
    assert PLANS["moving_partitions"].server_count_min == 2


def test_a_coordinator_is_rebuilt_without_servers_and_under_the_eyes_of_all_clients() -> None:
    faults = drawn(rebuilt_coordinator)
    rebuilt = [fault for fault in faults if isinstance(fault, Rebuilt)]
    assert {type(fault) for fault in faults} == {Rebuilt, Crash}
    assert {(fault.names, fault.survivors) for fault in rebuilt} == {(SERVERS, CLIENTS)}
    assert {fault.refuses for fault in rebuilt} == {True, False}


def test_a_coordinator_is_put_back_after_partitions_have_moved() -> None:
    faults = drawn(put_back)
    found = [fault for fault in faults if isinstance(fault, PutBack)]
    assert {type(fault) for fault in faults} == {PutBack, Crash}
    assert {fault.names for fault in found} == {SERVERS}
    assert {len(fault.moves) for fault in found} == {1, 2, 3, 4, 5, 6}
    assert {name for fault in found for name in fault.moves} == {*SERVERS}
    assert PLANS["put_back"].server_count_min == 2


def test_clocks_jump_both_ways_and_drift_both_ways() -> None:
    faults = drawn(clock_trouble)
    jumps = [ms for fault in faults if isinstance(fault, ClockJump) for ms in fault.milliseconds]
    rates = [rate for fault in faults if isinstance(fault, ClockDrift) for rate in fault.rates]
    assert min(jumps) < 0 < max(jumps)
    assert min(rates) < 1.0 < max(rates)


def test_everything_draws_every_kind_of_fault_that_is_safe() -> None:
    assert {type(fault) for fault in drawn(everything)} == {*KINDS} - HARMFUL - ELSEWHERE
