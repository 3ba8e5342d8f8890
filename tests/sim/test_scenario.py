"""A run is data: equal for equal seeds, and the same after it was written down and read."""

from __future__ import annotations

import itertools
from dataclasses import replace
from random import Random

import pytest

from waltz.errors import ConfigurationError
from waltz.sim.applications.workloads import WORKLOADS
from waltz.sim.faults.plans import PLANS
from waltz.sim.scenario import (
    STORAGE_VERSIONS,
    VERSIONS,
    Scenario,
    draw_scenario,
    draw_shape,
    draw_versions,
)


def test_equal_seeds_draw_equal_shapes() -> None:
    for seed in range(20):
        shape = draw_shape(Random(seed), server_count_min=1)
        assert shape == draw_shape(Random(seed), server_count_min=1)
        assert draw_shape(Random(seed), server_count_min=2).server_count >= 2
        assert not shape.spares
        spared = draw_shape(Random(seed), server_count_min=1, spare_count_max=3)
        assert spared == replace(shape, spare_count=spared.spare_count)
        assert 1 <= len(spared.spares) <= 3
        assert not {*spared.spares} & {*spared.storages}
        assert shape.storage_count in (3, 5), "a majority is left when one is lost"
        assert len(shape.storages) == shape.storage_count
        assert len(shape.servers) == shape.server_count
        assert len(shape.partition_ids) == shape.partition_count


@pytest.mark.parametrize("plan", PLANS)
def test_scenarios_are_equal_for_equal_seeds_and_read_back_as_written(plan: str) -> None:
    for workload, seed in itertools.product(WORKLOADS, range(5)):
        scenario = draw_scenario(seed, workload, plan)
        assert scenario == draw_scenario(seed, workload, plan)
        assert Scenario.from_json(scenario.to_json()) == scenario
        assert scenario.transactions > 0
        assert len(scenario.client_names) == len(scenario.clients)


def test_what_one_part_draws_changes_nothing_of_the_others() -> None:
    one, other = (draw_scenario(1, "append", plan) for plan in ("none", "storage_crash"))
    assert one.source != other.source
    long = draw_scenario(1, "append", "storage_crash", length=5)
    assert len(long.faults) >= 5
    assert long.source != other.source


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"plan": "earthquake"}',
        '{"plan": "none"}',
        draw_scenario(1, "append", "none").to_json().replace("partition_count", "partitions"),
        draw_scenario(1, "append", "none").to_json().replace('"faults": []', '"faults": 7'),
    ],
)
def test_what_is_no_scenario_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        Scenario.from_json(text)


def test_a_cluster_may_be_of_several_versions() -> None:
    """LC-43, CS-02: always old, upgraded by a restart, or put back."""
    names = ["server-0", "client-0", "client-1"]
    drawn = [draw_versions(Random(seed), names) for seed in range(200)]
    assert {} in drawn
    assert {versions for each in drawn for versions in each.values()} == {*VERSIONS}
    assert all({*each} <= {*names} for each in drawn)


def test_servers_and_storage_nodes_may_be_of_several_versions() -> None:
    """LC-43: of the storage protocol, in every mixture; where records are damaged, every node can
    be repaired."""
    drawn = [draw_scenario(seed, "append", "none").storage_versions for seed in range(200)]
    assert {} in drawn
    assert {versions for each in drawn for versions in each.values()} == {*STORAGE_VERSIONS}
    assert {name.partition("-")[0] for each in drawn for name in each} == {"server", "storage"}
    harmed = [draw_scenario(seed, "append", "bit_flips").storage_versions for seed in range(200)]
    assert min(min(versions) for each in harmed for versions in each.values()) == 1
