"""Which node an address means, and what the cluster still counts on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import click
import pytest

from tests.cli.storage_nodes import PARAMS
from waltz.cli.storage_target import (
    StorageTarget,
    Surroundings,
    check_given_up,
    check_spared,
    data_address,
    find_target,
)
from waltz.cluster.partition_metadata import PartitionMetadata, ReplicaState
from waltz.cluster.storage_placement import StoragePlacement
from waltz.errors import ConfigurationError
from waltz.types import Address, Generation, PartitionId, ReplicaId, SessionId, TransactionId

A, B, C = (ReplicaId(f"{name}:6000") for name in "abc")
PORTS = dict.fromkeys((A, B, C), 6001)
ZERO, ONE = PartitionId(0), PartitionId(1)
NODE_A = StorageTarget(A, Address("a", 6000), Address("a", 6001))


def test_both_of_a_node_s_addresses_mean_it() -> None:
    assert find_target(Address("a", 6000), PORTS) == NODE_A
    assert find_target(Address("a", 6001), PORTS) == NODE_A
    assert str(NODE_A) == "storage node a:6000"


def test_a_node_that_nobody_knows_is_told_by_its_admin_port() -> None:
    """CM-29: it is filled before the cluster knows it."""
    stranger = find_target(Address("d", 6001), PORTS)
    assert stranger == StorageTarget(None, None, Address("d", 6001))
    assert str(stranger) == "storage node d:6001"
    with pytest.raises(click.UsageError, match="give its data port"):
        data_address(stranger)
    assert data_address(find_target(Address("d", 6001), PORTS, 6000)) == Address("d", 6000)
    assert data_address(NODE_A) == Address("a", 6000)


def around(*, held: Mapping[ReplicaId, tuple[PartitionId, ...]], current: str) -> Surroundings:
    """Partition 0 has a session that the nodes named by `current` take part in."""
    states = {
        node: ReplicaState(SessionId(4), None)
        if node[0] in current
        else ReplicaState(SessionId(3), TransactionId(9))
        for node in (A, B, C)
    }
    metadata = PartitionMetadata(Generation(1), SessionId(4), states)
    return Surroundings(PARAMS, StoragePlacement(3, held, {}, PORTS), {ZERO: metadata})


def test_what_is_assigned_or_counted_on_is_not_given_up() -> None:
    """TL-22, TL-25"""
    both = {A: (ZERO, ONE)}
    with pytest.raises(ConfigurationError, match="partitions 0-1 are assigned to storage node a"):
        check_given_up(around(held=both, current=""), NODE_A, (ZERO, ONE))
    with pytest.raises(
        ConfigurationError, match=r"still takes part in the store sessions of .* 0;"
    ):
        check_given_up(around(held={A: ()}, current="a"), NODE_A, (ZERO, ONE))
    check_given_up(around(held={A: ()}, current="bc"), NODE_A, (ZERO, ONE))
    check_given_up(around(held=both, current="a"), find_target(Address("d", 1), PORTS), (ZERO, ONE))


def spared(*, held: str, current: str, lost: str = "", asked: PartitionId = ZERO) -> None:
    """Check that A may be taken away from partition 0, which the nodes named by `held` hold."""
    nodes = {node: (ZERO,) for node in (A, B, C) if node[0] in held}
    found = around(held=nodes, current=current)
    gone = frozenset(node for node in (A, B, C) if node[0] in lost)
    check_spared(found.placement, NODE_A, (asked,), found.sessions, {ZERO: gone})


def test_a_node_that_a_majority_needs_is_not_taken_offline() -> None:
    """TL-23: over the partition's own replicas."""
    with pytest.raises(ConfigurationError, match="1 of 3 replicas of partition 0 take part"):
        spared(held="abc", current="ab")
    with pytest.raises(ConfigurationError, match="0 of 1 replicas"):
        spared(held="a", current="abc")
    spared(held="abc", current="abc")
    with pytest.raises(ConfigurationError, match=r"without storage node .* 1 of 3 replicas"):
        spared(held="abc", current="abc", lost="c")
    spared(held="abc", current="b")
    spared(held="abc", current="ab", asked=ONE)


def test_a_node_that_the_last_session_counts_on_gives_nothing_up_while_the_next_one_opens() -> None:
    """CM-29: the next session has no replicas yet, and recovers from those of the last one."""
    found = around(held={A: ()}, current="a")
    begun = replace(found.sessions[ZERO], session_id=SessionId(5))
    assert begun.current_replicas == ()
    with pytest.raises(ConfigurationError, match="still takes part in the store sessions"):
        check_given_up(replace(found, sessions={ZERO: begun}), NODE_A, (ZERO,))


def test_a_partition_that_the_cluster_does_not_have_is_refused() -> None:
    found = around(held={}, current="")
    found.check_partitions((ZERO, PartitionId(2)))
    with pytest.raises(ConfigurationError, match="no partition 3, 7; expected 0 to 2"):
        found.check_partitions((ZERO, PartitionId(3), PartitionId(7)))
