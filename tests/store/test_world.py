"""Session keepers in worlds full of faults: nothing committed is lost, nothing forks, all heals.

Rows ST-02 to ST-10, ST-18, ST-39; invariants I2, I3, I6, I9, I12. A failing seed is replayed by
`World(seed)`; its `trace` is the whole story.
"""

from __future__ import annotations

from itertools import product

import pytest

from tests.shares import one_in
from tests.store.world import World

SEEDS = one_in(2, [range(24), range(24, 80)])


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("fault_rate", [0.02, 0.05, 0.15])
def test_three_replicas_survive_faults_and_a_blank_disk(fault_rate: float, seeds: range) -> None:
    for seed in seeds:
        world = World(seed, replica_count=3)
        world.blank_budget = seed % 2
        world.run(250, fault_rate=fault_rate)
        world.heal()


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("fault_rate", [0.02, 0.05, 0.15])
@pytest.mark.parametrize("replica_count", [3, 5])
def test_damage_is_repaired_between_all_other_faults(
    fault_rate: float, replica_count: int, seeds: range
) -> None:
    """SD-17. Of each record one copy may be damaged, on whichever replica, before or after commit;
    nobody votes while it is damaged, and in the end all hold all."""
    for seed in seeds:
        world = World(seed, replica_count)
        world.damage_budget = 1 + seed % 10
        for number, replica in enumerate(world.replicas.values()):
            replica.is_repairable = number != seed % 7
        world.run(250, fault_rate=fault_rate)
        world.heal()


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("fault_rate", [0.02, 0.05, 0.15])
def test_changes_of_the_assignment_survive_faults(fault_rate: float, seeds: range) -> None:
    for seed in seeds:
        world = World(seed, replica_count=4)
        world.assigned = world.assigned[:3]
        world.run(250, fault_rate=fault_rate)
        world.heal()


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("fault_rate", [0.02, 0.05, 0.15])
def test_replacing_any_number_of_replicas_at_once_survives_faults(
    fault_rate: float, seeds: range
) -> None:
    """Hazard R4, ST-40."""
    for seed in seeds:
        world = World(seed, replica_count=6)
        world.assigned = world.assigned[:3]
        world.changes_many = True
        world.run(250, fault_rate=fault_rate)
        world.heal()


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("replica_count", [1, 2, 4, 5])
def test_other_sizes_survive_faults(replica_count: int, seeds: range) -> None:
    for seed in seeds:
        world = World(seed, replica_count=replica_count)
        world.run(250, fault_rate=0.05)
        world.heal()


def test_without_faults_there_is_one_session_and_everything_commits() -> None:
    for seed in range(30):
        world = World(seed)
        world.run(150, fault_rate=0.0)
        world.heal()
        assert not world.failed
        assert len(world.marks) == 1
        assert len(world.log) == world.request_count


def settled(seed: int) -> World:
    """Three replicas that hold the same; the server has gone."""
    world = World(seed)
    for replica in world.replicas.values():
        replica.is_repairable = replica.is_tolerant = True
    world.run(150, fault_rate=0.0)
    world.close(world.heal())
    assert len(world.log) > 10
    return world


def opens(world: World, *, steps_max: int = 2_000) -> bool:
    server = world.add_server()
    for _ in range(steps_max):
        if server.is_open:
            return True
        world.happen(world.random.choice(world.possible()))
    return False


def test_a_partition_opens_with_one_replica_lost_and_one_damaged() -> None:
    """SD-17: the sound one mends the damaged one, which then votes."""
    for seed in range(20):
        world = settled(seed)
        lost, damaged, _ = world.replicas.values()
        world.crash(lost)
        damaged.damaged = {0, 1, 7, damaged.last}
        assert opens(world)
        assert not damaged.damaged
        lost.is_up = True
        world.heal()


def test_a_partition_opens_with_all_replicas_damaged_in_different_places() -> None:
    for seed in range(20):
        world = settled(seed)
        for number, replica in enumerate(world.replicas.values()):
            replica.damaged = {number, 5 + number, replica.last - number}
        assert opens(world)
        world.heal()


def test_what_nobody_can_supply_keeps_those_that_lack_it_from_voting() -> None:
    """I11: it is not cut, though the third replica alone could not decide without it."""
    for seed in range(10):
        world = settled(seed)
        lost, one, other = world.replicas.values()
        world.crash(lost)
        one.damaged, other.damaged = {3, 4}, {4}
        last = one.last
        assert not opens(world)
        assert (one.damaged, other.damaged) == ({4}, {4})
        assert one.last == other.last == last
        lost.is_up = True
        world.heal()


def test_a_partition_opens_without_what_all_replicas_have_damaged() -> None:
    """F-20: all else is the log's, appends go on; what is lost stays damaged and in its place."""
    for seed in range(20):
        world = settled(seed)
        for replica in world.replicas.values():
            replica.damaged = {3, 4, 8}
        world.lost = {3, 4, 8}
        last = replica.last
        assert opens(world)
        owner = world.heal()
        assert owner.keeper.high_water_mark is not None
        assert owner.keeper.high_water_mark > last
        assert all(replica.damaged == world.lost for replica in world.replicas.values())


def test_while_one_is_absent_that_may_have_the_record_nobody_goes_on_without_it() -> None:
    """F-20: the absent one comes back whole, and all get the record again."""
    for seed in range(10):
        world = settled(seed)
        absent, *others = world.replicas.values()
        world.crash(absent)
        for replica in others:
            replica.damaged = {3}
        assert not opens(world)
        [server] = world.servers
        assert server.keeper.obstacle is not None
        assert f"{absent.replica_id} may have them" in server.keeper.obstacle
        absent.is_up = True
        world.heal()
        assert not any(replica.damaged for replica in world.replicas.values())


def test_damage_at_the_end_of_the_log_is_accepted_of_nobody() -> None:
    """F-20: nobody knows there which records there were."""
    for seed in range(10):
        world = settled(seed)
        for replica in world.replicas.values():
            replica.damaged = {3, replica.last}
        assert not opens(world)
        [server] = world.servers
        assert "nobody knows where its log ended" in str(server.keeper.obstacle)


def test_damage_that_nobody_knew_of_is_accepted_once_a_read_has_found_it() -> None:
    """F-20: the third votes, for it does not know; what it cannot give it has to be asked about."""
    for seed in range(10):
        world = settled(seed)
        for number, replica in enumerate(world.replicas.values()):
            replica.damaged = {3}
            replica.unnoticed = {3} if number == 0 else set()
        world.lost = {3}
        assert opens(world)
        world.heal()


@pytest.mark.parametrize("world_of", one_in(4, product((3, 5), (0.02, 0.05, 0.15))))
def test_records_lost_on_all_replicas_cost_no_other_record(world_of: tuple[int, float]) -> None:
    """F-20, between all other faults. Nothing else is lost or replaced; and the partition takes
    appends again where a majority holds what follows the lost ones."""
    replica_count, fault_rate = world_of
    opened = 0
    for seed in range(80):
        world = World(seed, replica_count)
        world.loss_budget, world.damage_budget = 1 + seed % 3, seed % 5
        for replica in world.replicas.values():
            replica.is_repairable = replica.is_tolerant = True
        world.run(250, fault_rate=fault_rate)
        if not world.lost:
            continue
        if owner := world.heal_in_part():
            opened += 1
            assert owner.is_open
    assert opened > 0
