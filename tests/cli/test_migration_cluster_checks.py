"""Which partitions lack replicas, and what a peer is, by value."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.cli.original_site import metadata_of, peers_of
from waltz.cli.migration.cluster_checks import (
    is_original_storage,
    missing_replicas,
    server_kind,
    stops_appends,
    storage_kind,
)
from waltz.cli.storage_questions import StorageReport
from waltz.types import PartitionId, ReplicaId

THIRD = ReplicaId("vm:47330")
WELL = metadata_of("7-two-servers")


@pytest.mark.parametrize(
    ("tree", "missing"),
    [
        ("3-server-up", {}),
        ("4-after-clients", {}),
        ("5-storage3-down", {0: (THIRD,), 1: (THIRD,)}),
        ("6-storage3-back", {}),
        ("8-server1-dead", {}),
    ],
)
def test_the_original_s_trees_say_which_replicas_take_part(
    tree: str, missing: dict[PartitionId, tuple[ReplicaId, ...]]
) -> None:
    assert missing_replicas(metadata_of(tree), None) == missing


def test_a_partition_without_a_session_lacks_all_its_replicas() -> None:
    never = replace(WELL, partitions={PartitionId(1): WELL.partitions[PartitionId(1)]})
    assert missing_replicas(never, None) == {0: ("vm:47310", "vm:47320", "vm:47330")}


def test_a_node_that_serves_only_one_partition_is_missing_in_the_other() -> None:
    facts = peers_of(WELL).facts
    storages = {
        **facts.storages,
        THIRD: replace(facts.storages[THIRD], usable={PartitionId(0): True}),
    }
    assert missing_replicas(WELL, replace(facts, storages=storages)) == {1: (THIRD,)}


def test_of_three_replicas_one_may_be_away_and_of_two_none() -> None:
    assert stops_appends(WELL, THIRD) == []
    kept = {node: held for node, held in WELL.placement.partitions.items() if node != "vm:47310"}
    two = replace(WELL, placement=replace(WELL.placement, partitions=kept))
    assert stops_appends(two, THIRD) == [0, 1]


def test_peers_are_told_apart_by_what_they_say() -> None:
    assert server_kind(4).startswith("Java Waltz: version 4")
    assert server_kind(5).startswith("Waltz for Python")
    for text, is_original in (
        ('{"gauges": {}}', True), ('{"stage": "serving"}', False), ("no JSON", None), (None, None),
    ):  # fmt: skip
        report = StorageReport(None, None, metrics_json=text)
        assert is_original_storage(report) is is_original
    assert storage_kind(StorageReport(None, None, metrics_json="[" * 100_000)).startswith(
        "not known"
    )
