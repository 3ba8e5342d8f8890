"""Which changes of storage nodes are made and which are refused, by value."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from waltz.cluster.partition_metadata import PartitionMetadata, ReplicaState
from waltz.cluster.storage_placement import (
    StoragePlacement,
    add_storage_node,
    assign_replicas,
    auto_assign,
    check_majority,
    remove_storage_node,
    replace_replicas,
    unassign_replicas,
)
from waltz.errors import ConfigurationError
from waltz.types import Address, Generation, PartitionId, ReplicaId, SessionId, TransactionId

A, B, C, D = (ReplicaId(f"{name}:6000") for name in "abcd")
ALL = tuple(map(PartitionId, range(3)))

EMPTY = StoragePlacement(3, {}, {}, {})
FULL = StoragePlacement(
    3, {A: ALL, B: ALL, C: ALL, D: ()}, {A: 1, B: 2, C: 3, D: 3}, dict.fromkeys((A, B, C, D), 6001)
)


def refused(change: Callable[[], StoragePlacement], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        change()


def test_a_storage_node_is_added_with_no_partitions() -> None:
    """CM-19"""
    added = add_storage_node(EMPTY, Address("a", 6000), group=7, admin_port=6001)
    assert added == StoragePlacement(3, {A: ()}, {A: 7}, {A: 6001})
    refused(
        lambda: add_storage_node(added, Address("a", 6000), group=7, admin_port=6001),
        "a:6000 is one of the cluster already",
    )


def test_what_an_addition_cut_short_has_left_does_not_stand_in_its_way() -> None:
    """CM-25"""
    left = StoragePlacement(3, {}, {A: 1}, {A: 1})
    added = add_storage_node(left, Address("a", 6000), group=7, admin_port=6001)
    assert added == StoragePlacement(3, {A: ()}, {A: 7}, {A: 6001})


def test_a_storage_node_is_removed_once_it_holds_nothing() -> None:
    """CM-20"""
    removed = remove_storage_node(FULL, D)
    assert removed == StoragePlacement(
        3, {A: ALL, B: ALL, C: ALL}, {A: 1, B: 2, C: 3}, dict.fromkeys((A, B, C), 6001)
    )
    refused(lambda: remove_storage_node(removed, D), "no storage node d:6000; the cluster has a:")
    refused(lambda: remove_storage_node(FULL, A), "holds partitions 0, 1, 2; unassign them first")
    refused(lambda: remove_storage_node(EMPTY, A), "the cluster has none")


def test_what_a_removal_cut_short_has_left_can_be_removed() -> None:
    """CM-25"""
    assert remove_storage_node(StoragePlacement(3, {}, {A: 1}, {A: 1}), A) == EMPTY


def test_partitions_are_assigned_in_order() -> None:
    """CM-21"""
    one = assign_replicas(FULL, D, [PartitionId(2)])
    assert one.partitions[D] == (2,)
    assert assign_replicas(one, D, [PartitionId(1), PartitionId(0)]).partitions[D] == (0, 1, 2)
    refused(lambda: assign_replicas(one, D, ALL), "holds partitions 2 already")
    refused(lambda: assign_replicas(EMPTY, D, ALL), "no storage node d:6000")
    beyond = [PartitionId(3), PartitionId(-1)]
    refused(lambda: assign_replicas(FULL, D, beyond), "no partition 3, -1; expected 0 to 2")


def test_partitions_are_unassigned_while_their_group_has_another_copy() -> None:
    """CM-22"""
    both = assign_replicas(FULL, D, [PartitionId(1)])
    assert unassign_replicas(both, C, [PartitionId(1)]).partitions[C] == (0, 2)
    refused(lambda: unassign_replicas(both, C, ALL), "last copy of partition 0 in group 3")
    refused(lambda: unassign_replicas(FULL, D, ALL), "does not hold partitions 0, 1, 2")
    refused(lambda: unassign_replicas(EMPTY, D, ALL), "no storage node d:6000")


def test_a_group_may_shrink_if_that_is_meant_but_no_partition_is_lost() -> None:
    """ST-40: removing a replica."""
    two = unassign_replicas(FULL, C, ALL, shrinks_group=True)
    assert two.partitions == {A: ALL, B: ALL, C: (), D: ()}
    one = unassign_replicas(two, B, ALL, shrinks_group=True)
    refused(lambda: unassign_replicas(one, A, ALL, shrinks_group=True), "the only copy of part")


def test_seven_partitions_are_dealt_out_over_three_nodes() -> None:
    """CM-23"""
    empty = StoragePlacement(7, dict.fromkeys((A, B, C, D), ()), {A: 1, B: 1, C: 1, D: 2}, {})
    dealt = auto_assign(empty, 1).partitions
    assert dealt == {A: (0, 3, 6), B: (1, 4), C: (2, 5), D: ()}
    refused(lambda: auto_assign(empty, 3), "group 3 has no storage nodes")
    refused(lambda: auto_assign(FULL, 3), "has partitions assigned already, to c:6000")


def test_a_node_is_replaced_by_another_of_its_group() -> None:
    """ST-40"""
    replaced = replace_replicas(FULL, C, D)
    assert replaced.partitions == {A: ALL, B: ALL, C: (), D: ALL}
    one = replace_replicas(FULL, C, D, [PartitionId(1)])
    assert one.partitions == {
        A: ALL,
        B: ALL,
        C: tuple(p for p in ALL if p != 1),
        D: (PartitionId(1),),
    }
    assert replace_replicas(one, C, D).partitions == replaced.partitions, "the rest later"
    refused(lambda: replace_replicas(one, C, D, [PartitionId(1)]), "does not hold partitions 1")
    refused(lambda: replace_replicas(FULL, B, D), "of group 2, d:6000 of group 3")
    refused(lambda: replace_replicas(FULL, A, B), "both hold partitions 0, 1, 2")
    refused(lambda: replace_replicas(EMPTY, A, B), "no storage node a:6000")


def test_what_is_left_of_a_partition_s_replicas_has_to_be_able_to_go_on() -> None:
    """CM-22, TL-09: the quorum is over the partition's own replicas."""
    current, left = ReplicaState(SessionId(4), None), ReplicaState(SessionId(3), TransactionId(9))
    metadata = PartitionMetadata(Generation(1), SessionId(4), {A: current, B: current, C: left})
    assert metadata.current_replicas == (A, B)

    def without(*nodes: ReplicaId) -> StoragePlacement:
        partitions = {node: () if node in nodes else held for node, held in FULL.partitions.items()}
        return StoragePlacement(3, partitions, FULL.groups, FULL.admin_ports)

    for gone in ((), (C,), (A, C), (B, C)):
        check_majority(without(*gone), ALL[0], metadata)
    for gone in ((A,), (B,), (A, B)):
        with pytest.raises(ConfigurationError, match=r"no majority. Bring back c:6000"):
            check_majority(without(*gone), ALL[0], metadata)
    check_majority(without(A, B), ALL[0], None)
