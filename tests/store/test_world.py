"""Session keepers in worlds full of faults: nothing committed is lost, nothing forks, all heals.

Rows ST-02 to ST-10, ST-18, ST-39; invariants I2, I3, I6, I9, I12. A failing seed is replayed by
`World(seed)`; its `trace` is the whole story.
"""

from __future__ import annotations

import pytest

from tests.store.world import World

SEEDS_PER_CASE = 80


@pytest.mark.parametrize("fault_rate", [0.02, 0.05, 0.15])
def test_three_replicas_survive_faults_and_a_blank_disk(fault_rate: float) -> None:
    for seed in range(SEEDS_PER_CASE):
        world = World(seed, replica_count=3)
        world.blank_budget = seed % 2
        world.run(250, fault_rate=fault_rate)
        world.heal()


@pytest.mark.parametrize("fault_rate", [0.02, 0.05, 0.15])
def test_changes_of_the_assignment_survive_faults(fault_rate: float) -> None:
    for seed in range(SEEDS_PER_CASE):
        world = World(seed, replica_count=4)
        world.assigned = world.assigned[:3]
        world.run(250, fault_rate=fault_rate)
        world.heal()


@pytest.mark.parametrize("fault_rate", [0.02, 0.05, 0.15])
def test_exchanging_any_number_of_replicas_at_once_survives_faults(fault_rate: float) -> None:
    """Hazard R4, ST-40."""
    for seed in range(SEEDS_PER_CASE):
        world = World(seed, replica_count=6)
        world.assigned = world.assigned[:3]
        world.changes_many = True
        world.run(250, fault_rate=fault_rate)
        world.heal()


@pytest.mark.parametrize("replica_count", [1, 2, 4, 5])
def test_other_sizes_survive_faults(replica_count: int) -> None:
    for seed in range(SEEDS_PER_CASE // 2):
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
