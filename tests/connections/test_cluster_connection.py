from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from waltz.connections.cluster_connection import (
    AbandonConnection,
    AttachPartition,
    Broken,
    ClientStopped,
    ClusterConnection,
    ConnectionGreeted,
    DetachPartition,
    Disconnected,
    Effect,
    Event,
    OpenConnection,
    RaiseGeneration,
    RestoreConnection,
    Restored,
    Role,
    RoleRenewed,
    ViewChanged,
)
from waltz.limits import RECONNECT_BROKEN_SECONDS_MAX, RECONNECT_SECONDS_MAX, RECONNECT_SECONDS_MIN
from waltz.types import Address, Generation, PartitionId

ONE = Address("one", 1)
TWO = Address("two", 2)


def view(**servers: Address) -> ViewChanged:
    """`p0=ONE` puts partition 0 there, with generation 1; `p0_4=ONE` with generation 4."""
    partitions = {}
    for name, address in servers.items():
        number, _, generation = name.removeprefix("p").partition("_")
        partitions[PartitionId(int(number))] = address, Generation(int(generation or 1))
    return ViewChanged(partitions)


class World:
    def __init__(self, *roles: Role) -> None:
        self.machine = ClusterConnection(roles or (Role.STREAM,))
        self.now = 50.0

    def step(self, *events: Event) -> Sequence[Effect]:
        effects = self.machine.step(events, self.now)
        self.machine.check_invariants()
        return effects

    def connected(self, seen: ViewChanged, *sequences: int) -> World:
        self.step(seen)
        self.step(*map(ConnectionGreeted, sequences))
        return self

    def sleep(self, seconds: float) -> Sequence[Effect]:
        self.now += seconds
        return self.step()


def test_every_server_gets_a_connection_of_each_role() -> None:
    """CI-01, CI-02."""
    world = World(Role.STREAM, Role.REQUESTS)
    effects = world.step(view(p0=ONE, p1=TWO, p2=ONE))
    assert [effect for effect in effects if isinstance(effect, OpenConnection)] == [
        OpenConnection(ONE, Role.STREAM, 0),
        OpenConnection(ONE, Role.REQUESTS, 1),
        OpenConnection(TWO, Role.STREAM, 2),
        OpenConnection(TWO, Role.REQUESTS, 3),
    ]


def test_partitions_are_attached_once_their_server_is_connected() -> None:
    """CI-03."""
    world = World()
    world.step(view(p0=ONE, p1=TWO))
    assert world.step(ConnectionGreeted(1)) == [AttachPartition(PartitionId(1), Role.STREAM, 1)]


def test_generations_are_told_before_a_moved_partition_is_attached() -> None:
    world = World().connected(view(p0=ONE, p1=TWO), 0, 1)
    assert world.step(view(p0_2=TWO, p1=TWO)) == [
        RaiseGeneration(PartitionId(0), Generation(2)),
        DetachPartition(PartitionId(0), Role.STREAM, 0),
        AbandonConnection(0),
        AttachPartition(PartitionId(0), Role.STREAM, 1),
    ]


def test_a_new_generation_alone_remounts_nothing() -> None:
    """Section 9.1."""
    world = World().connected(view(p0=ONE), 0)
    assert world.step(view(p0_2=ONE)) == [RaiseGeneration(PartitionId(0), Generation(2))]


def test_a_connection_that_worked_is_replaced_at_once_with_a_higher_sequence() -> None:
    """CI-06."""
    world = World().connected(view(p0=ONE), 0)
    world.now += 2 * RECONNECT_SECONDS_MIN
    assert world.step(Disconnected(0, 0.7)) == [
        DetachPartition(PartitionId(0), Role.STREAM, 0),
        OpenConnection(ONE, Role.STREAM, 1),
    ]


def test_a_server_that_is_down_is_tried_ever_more_rarely() -> None:
    """CI-07; jitter takes up to half of the delay."""
    world = World()
    world.step(view(p0=ONE))
    for attempt in range(12):
        assert world.step(Disconnected(attempt, 1.0)) == []
        assert world.machine.deadline is not None
        delay = world.machine.deadline - world.now
        assert delay == pytest.approx(
            min(RECONNECT_SECONDS_MAX, RECONNECT_SECONDS_MIN * 2**attempt)
        )
        assert world.sleep(delay + 1e-6) == [OpenConnection(ONE, Role.STREAM, attempt + 1)]


def test_a_server_that_is_given_partitions_anew_is_tried_at_once() -> None:
    """CI-07: one that was killed and has come back to its address need not wait for a back-off."""
    world = World()
    world.step(view(p0=ONE))
    for attempt in range(12):
        world.step(Disconnected(attempt, 1.0))
        world.sleep(RECONNECT_SECONDS_MAX)
    assert world.step(Disconnected(12, 1.0)) == []
    assert world.step(view(p0=ONE)) == [], "nothing is new"
    assert world.step(view(p0_2=ONE)) == [
        RaiseGeneration(PartitionId(0), Generation(2)),
        OpenConnection(ONE, Role.STREAM, 13),
    ]
    world.step(Disconnected(13, 1.0))
    assert world.machine.deadline == pytest.approx(world.now + RECONNECT_SECONDS_MIN)


def test_a_server_that_accepts_and_hangs_up_is_not_hammered() -> None:
    world = World().connected(view(p0=ONE), 0)
    world.step(Disconnected(0, 1.0))
    for sequence in range(1, 10):
        world.sleep(RECONNECT_BROKEN_SECONDS_MAX)
        world.step(ConnectionGreeted(sequence))
        effects = world.step(Disconnected(sequence, 1.0))
        assert not [effect for effect in effects if isinstance(effect, OpenConnection)]
    assert world.machine.deadline == world.now + RECONNECT_BROKEN_SECONDS_MAX


def test_a_server_that_leaves_is_disconnected_and_starts_anew_when_it_returns() -> None:
    """CI-08, hazard H5: its sequence goes on growing."""
    world = World().connected(view(p0=ONE), 0)
    assert AbandonConnection(0) in world.step(view())
    assert world.step(Disconnected(0, 0.5)) == []
    assert world.machine.deadline is None
    effects = world.step(view(p0=ONE))
    assert OpenConnection(ONE, Role.STREAM, 1) in effects


def test_the_connections_of_one_role_are_exchanged_for_others_at_once() -> None:
    world = World(*Role)
    world.step(view(p1=ONE))
    world.step(ConnectionGreeted(0), ConnectionGreeted(1))
    assert world.step(RoleRenewed(Role.STREAM)) == [
        AbandonConnection(0),
        DetachPartition(PartitionId(1), Role.STREAM, 0),
        OpenConnection(ONE, Role.STREAM, 2),
    ]
    assert world.step(ConnectionGreeted(2)) == [AttachPartition(PartitionId(1), Role.STREAM, 2)]
    assert world.step(Disconnected(0, 0.0)) == [], "it is gone already"


def test_a_connection_that_is_broken_is_exchanged_as_well() -> None:
    world = World(*Role)
    world.step(view(p1=ONE))
    world.step(ConnectionGreeted(0), ConnectionGreeted(1))
    world.step(broken())
    assert AbandonConnection(0) in world.step(RoleRenewed(Role.STREAM))


def test_stopping_closes_everything() -> None:
    world = World().connected(view(p0=ONE), 0)
    assert world.step(ClientStopped())[-1] == AbandonConnection(0)
    assert world.machine.closed


RESTORE = RestoreConnection(ONE, Role.STREAM, 0)
P0 = PartitionId(0)


def broken(jitter: float = 1.0) -> Broken:
    return Broken(0, 10.0, jitter)


def test_a_broken_connection_is_restored_while_its_partitions_stay_attached() -> None:
    """LC-04, LC-44, LC-71: nobody is detached, and the sequence number stays."""
    world = World().connected(view(p0=ONE), 0)
    world.now += 2 * RECONNECT_SECONDS_MIN
    assert world.step(broken()) == [RESTORE]
    assert world.step(Restored(0)) == []
    assert world.machine.deadline is None


def test_a_connection_that_breaks_at_once_again_is_restored_after_a_pause() -> None:
    """LC-64."""
    world = World().connected(view(p0=ONE), 0)
    world.now += 2 * RECONNECT_SECONDS_MIN
    world.step(broken())
    delays = []
    for _ in range(8):
        assert world.step(Restored(0)) == []
        assert world.step(broken()) == []
        assert world.machine.deadline is not None
        delays.append(world.machine.deadline - world.now)
        assert world.sleep(delays[-1] + 1e-6) == [RESTORE]
    assert delays == sorted(delays)
    assert delays[-1] == pytest.approx(RECONNECT_BROKEN_SECONDS_MAX)


def test_restoring_is_tried_until_the_server_has_forgotten() -> None:
    """LC-49, LC-50, LC-72: then the partitions are detached, and all begins anew."""
    world = World().connected(view(p0=ONE), 0)
    world.now += 2 * RECONNECT_SECONDS_MIN
    began = world.now
    assert world.step(broken()) == [RESTORE]
    attempts = 1
    while True:
        effects = world.step(broken())
        if not effects:
            assert world.machine.deadline is not None
            effects = world.sleep(world.machine.deadline - world.now)
        if effects != [RESTORE]:
            break
        attempts += 1
    assert world.now - began == pytest.approx(10.0)
    assert 10 < attempts < 10 / RECONNECT_SECONDS_MIN
    assert effects[:2] == [AbandonConnection(0), DetachPartition(P0, Role.STREAM, 0)]
    if len(effects) == 2:
        effects = [*effects, *world.sleep(RECONNECT_BROKEN_SECONDS_MAX)]
    assert effects[2:] == [OpenConnection(ONE, Role.STREAM, 1)]
    assert world.step(broken()) == []


def test_an_attempt_that_never_ends_is_ended() -> None:
    world = World().connected(view(p0=ONE), 0)
    world.now += 2 * RECONNECT_SECONDS_MIN
    assert world.step(broken()) == [RESTORE]
    assert world.machine.deadline == world.now + 10.0
    assert AbandonConnection(0) in world.sleep(10.0)


def test_a_connection_unknown_to_its_server_is_replaced() -> None:
    """LC-50."""
    world = World().connected(view(p0=ONE), 0)
    world.now += 2 * RECONNECT_SECONDS_MIN
    assert world.step(broken()) == [RESTORE]
    effects = [*world.step(Disconnected(0, 1.0)), *world.sleep(RECONNECT_BROKEN_SECONDS_MAX)]
    assert effects == [
        DetachPartition(P0, Role.STREAM, 0),
        OpenConnection(ONE, Role.STREAM, 1),
    ]
    assert world.step(Restored(0)) == []


def test_partitions_come_and_go_on_a_broken_connection() -> None:
    """What is said for them waits until it is restored."""
    world = World().connected(view(p0=ONE), 0)
    world.step(broken())
    one, two = PartitionId(1), PartitionId(2)
    assert world.step(view(p0=ONE, p1=ONE, p2=TWO)) == [
        RaiseGeneration(one, Generation(1)),
        RaiseGeneration(two, Generation(1)),
        AttachPartition(one, Role.STREAM, 0),
        OpenConnection(TWO, Role.STREAM, 1),
    ]
    assert world.step(view(p0=TWO, p1=TWO, p2=TWO)) == [
        DetachPartition(P0, Role.STREAM, 0),
        DetachPartition(one, Role.STREAM, 0),
        AbandonConnection(0),
    ]


def test_a_broken_connection_of_a_server_that_left_is_given_up() -> None:
    world = World().connected(view(p0=ONE), 0)
    world.step(broken())
    assert AbandonConnection(0) in world.step(view())
    assert world.step(broken(), Restored(0)) == []
    assert world.machine.deadline is None


@pytest.mark.parametrize("seed", range(30))
def test_after_any_history_every_partition_is_attached_where_it_is(seed: int) -> None:
    """A plain model: who is attached to what follows from the effects alone."""
    random = Random(seed)
    world = World(Role.STREAM, Role.REQUESTS)
    open_: dict[int, tuple[Address, Role]] = {}
    connected: set[int] = set()
    attached: set[tuple[PartitionId, Role, int]] = set()
    present: dict[PartitionId, tuple[Address, Generation]] = {}
    for _ in range(200):
        events: list[Event] = []
        choice = random.random()
        opening = [sequence for sequence in open_ if sequence not in connected]
        if choice < 0.2:
            present = {
                PartitionId(number): (random.choice((ONE, TWO)), Generation(1))
                for number in range(4)
                if random.random() < 0.8
            }
            events.append(ViewChanged(present))
        elif choice < 0.6 and opening:
            sequence = random.choice(opening)
            connected.add(sequence)
            events.append(ConnectionGreeted(sequence))
        elif choice < 0.7 and open_:
            sequence = random.choice(list(open_))
            del open_[sequence]
            connected.discard(sequence)
            events.append(Disconnected(sequence, random.random()))
        elif choice < 0.8 and connected:
            sequence = random.choice(sorted(connected))
            events.append(Broken(sequence, 3.0, random.random()))
        elif choice < 0.9 and connected:
            events.append(Restored(random.choice(sorted(connected))))
        world.now += random.choice((0.0, 0.1, 10.0))
        for effect in world.step(*events):
            match effect:
                case OpenConnection():
                    open_[effect.connection_sequence] = effect.address, effect.role
                case AbandonConnection():
                    del open_[effect.connection_sequence]
                    connected.discard(effect.connection_sequence)
                case AttachPartition():
                    assert effect.connection_sequence in connected
                    attached.add((effect.partition_id, effect.role, effect.connection_sequence))
                case DetachPartition():
                    attached.remove((effect.partition_id, effect.role, effect.connection_sequence))
        assert attached == {
            (partition_id, role, sequence)
            for sequence in connected
            for partition_id, (address, _) in present.items()
            for at, role in [open_[sequence]]
            if at == address
        }


def test_a_server_that_was_away_is_tried_by_one_connection_at_a_time() -> None:
    """LC-64: the others follow it, or wait as long as it does."""
    world = World(Role.STREAM, Role.REQUESTS)
    world.step(view(p0=ONE))
    world.step(Disconnected(0, 1.0), Disconnected(1, 1.0))
    assert world.sleep(RECONNECT_SECONDS_MIN) == [OpenConnection(ONE, Role.STREAM, 2)]
    assert world.machine.deadline is None
    assert world.sleep(100.0) == []
    world.step(Disconnected(2, 1.0))
    assert world.machine.deadline == pytest.approx(world.now + 2 * RECONNECT_SECONDS_MIN)
    assert world.sleep(2 * RECONNECT_SECONDS_MIN) == [OpenConnection(ONE, Role.STREAM, 3)]
    assert OpenConnection(ONE, Role.REQUESTS, 4) in world.step(ConnectionGreeted(3))


def test_the_longest_pause_may_be_set() -> None:
    """LC-88."""
    machine = ClusterConnection((Role.STREAM,), reconnect_seconds_max=0.3)
    machine.step([view(p0=ONE)], 0.0)
    for attempt in range(10):
        machine.step([Disconnected(attempt, 1.0)], 100.0 * attempt)
        due = machine.deadline
        assert due is not None
        assert due - 100.0 * attempt <= 0.3 + 1e-9
        machine.step([], 100.0 * attempt + 99.0)
