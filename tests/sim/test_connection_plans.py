"""The plans that harm connections of clients, and nothing but those."""

from __future__ import annotations

from random import Random

from waltz.sim.faults.connection_plans import broken_connections, hostile_peers, meddling
from waltz.sim.faults.drawing import FaultStage
from waltz.sim.faults.kinds import (
    Crash,
    Disconnection,
    Fault,
    HalfClose,
    Partition,
    Pause,
    Replay,
    SlowLinks,
)
from waltz.sim.simulated_network import Way

CLIENTS, SERVERS = ("client-0", "client-1"), ("server-0", "server-1")
STAGE = FaultStage(("storage-0",), SERVERS, CLIENTS)


def drawn() -> list[Fault]:
    return [fault for seed in range(200) for fault in broken_connections(Random(seed), STAGE)]


def is_between_client_and_server(way: Way) -> bool:
    return {name.split("-")[0] for name in way} == {"client", "server"}


def test_it_breaks_what_is_between_clients_and_servers() -> None:
    faults = drawn()
    assert {type(fault) for fault in faults} == {Disconnection, Partition, Pause, Crash}
    for fault in faults:
        match fault:
            case Disconnection(pairs=ways) | Partition(ways=ways):
                assert ways
                assert all(map(is_between_client_and_server, ways))
            case Pause(names=names):
                assert {*names} <= {*CLIENTS, *SERVERS}
            case Crash(names=names):
                assert {*names} <= {*SERVERS}


def test_silence_is_longer_than_any_timeout_now_and_then() -> None:
    seconds = [fault.seconds for fault in drawn() if isinstance(fault, Partition)]
    assert min(seconds) < 1.0
    assert max(seconds) > 40.0


def test_equal_seeds_give_equal_faults() -> None:
    assert broken_connections(Random(3), STAGE) == broken_connections(Random(3), STAGE)


def test_whoever_meddles_stands_between_clients_and_servers() -> None:
    faults = [fault for seed in range(200) for fault in meddling(Random(seed), STAGE)]
    assert {type(fault) for fault in faults} == {
        Disconnection, HalfClose, Partition, Replay, SlowLinks,
    }  # fmt: skip
    for fault in faults:
        match fault:
            case Disconnection(pairs=ways) | Replay(ways=ways):
                assert {way[0] for way in ways} <= {*CLIENTS}
                assert all(map(is_between_client_and_server, ways))
            case Partition(ways=ways) | HalfClose(ways=ways) | SlowLinks(ways=ways):
                assert all(map(is_between_client_and_server, ways))
            case _:
                raise AssertionError(fault)
    kept = [fault.kept for fault in faults if isinstance(fault, HalfClose | Replay)]
    assert min(kept) == 0.0
    assert max(kept) == 1.0


def test_forgers_name_clients_and_sessions_that_are_there_and_that_are_not() -> None:
    faults = [fault for seed in range(200) for fault in hostile_peers(Random(seed), STAGE)]
    assert {fault.server for fault in faults} == {*SERVERS}
    assert {name for fault in faults for name in fault.storages} == {"storage-0"}
    assert {fault.client_id for fault in faults} == {1, 2, 3, 4}
    assert {fault.shows_token for fault in faults} == {True, False}
    sessions = {session for fault in faults for session in fault.sessions}
    assert min(sessions) <= 3
    assert max(sessions) == 2**63 - 1
