"""Fault plans are data: equal for equal seeds, within their budget, in order of progress."""

from __future__ import annotations

from random import Random

import pytest

from waltz.sim.faults import (
    PLANS,
    Crash,
    Draw,
    Fault,
    Isolation,
    Members,
    everything,
    isolation,
    no_faults,
    power_cut,
    server_crash,
    stale_server,
    storage_crash,
    swizzle,
)

STORAGES = ("storage-0", "storage-1", "storage-2")
SERVERS = ("server-0", "server-1")
CLIENTS = ("client-0", "client-1", "client-2")
MEMBERS = Members(STORAGES, SERVERS, CLIENTS)


def drawn(draw: Draw) -> list[Fault]:
    return [fault for seed in range(100) for fault in draw(Random(seed), MEMBERS)]


def crashes(draw: Draw) -> list[Crash]:
    faults = drawn(draw)
    chosen = [fault for fault in faults if isinstance(fault, Crash)]
    assert chosen == faults
    return chosen


@pytest.mark.parametrize("plan", PLANS)
def test_equal_seeds_draw_equal_faults_in_order(plan: str) -> None:
    for seed in range(100):
        faults = PLANS[plan].draw(Random(seed), MEMBERS)
        assert faults == PLANS[plan].draw(Random(seed), MEMBERS)
        moments = [fault.progress for fault in faults]
        assert moments == sorted(moments)
        for fault in faults:
            if isinstance(fault, Crash):
                assert len(fault.names) == len(fault.disk_operations) == len(fault.pause_seconds)


def test_a_plan_without_faults_has_none() -> None:
    assert no_faults(Random(1), MEMBERS) == ()


def test_storage_crash_takes_one_node_at_a_time_with_and_without_its_power() -> None:
    faults = crashes(storage_crash)
    assert {len(fault.names) for fault in faults} == {1}
    assert {fault.names[0] for fault in faults} == {*STORAGES}
    assert {fault.power_lost for fault in faults} == {True, False}


def test_server_crash_takes_servers_only() -> None:
    assert {fault.names for fault in crashes(server_crash)} == {("server-0",), ("server-1",)}


def test_power_cut_takes_all_nodes_and_their_unsynced_bytes() -> None:
    assert all(fault.names == STORAGES and fault.power_lost for fault in crashes(power_cut))


def test_isolation_keeps_a_process_from_others_but_not_from_itself() -> None:
    for fault in drawn(isolation):
        assert isinstance(fault, Isolation)
        assert fault.others
        assert fault.name not in fault.others


def test_swizzle_clogs_storage_nodes_and_kills_one_process_meanwhile() -> None:
    for seed in range(100):
        faults = swizzle(Random(seed), MEMBERS)
        moments = {fault.progress for fault in faults}
        for moment in moments:
            together = [fault for fault in faults if fault.progress == moment]
            clogged = [fault.name for fault in together if isinstance(fault, Isolation)]
            assert {*clogged} <= {*STORAGES}
            assert len(clogged) == len({*clogged}) == len(together) - 1


def test_a_stale_server_and_its_clients_lose_nobody_but_the_coordinator() -> None:
    client_counts = set()
    for seed in range(100):
        faults = stale_server(Random(seed), MEMBERS)
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


def test_everything_draws_every_kind_of_fault() -> None:
    faults = drawn(everything)
    assert any(isinstance(fault, Isolation) for fault in faults)
    assert {len(fault.names) for fault in faults if isinstance(fault, Crash)} == {1, 3, 5}
