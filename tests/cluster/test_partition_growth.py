"""What a growth of the number of partitions is refused for, and where new partitions go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz.cluster.partition_growth import (
    PartitionCounts,
    check_growth,
    grown_placement,
    to_take,
)
from waltz.cluster.storage_placement import StoragePlacement, auto_assign
from waltz.errors import ConfigurationError
from waltz.limits import PARTITIONS_MAX
from waltz.types import PartitionId, ReplicaId


def placement(
    count: int, groups: dict[str, int | None], held: dict[str, tuple[int, ...]]
) -> StoragePlacement:
    return StoragePlacement(
        count,
        {ReplicaId(node): tuple(map(PartitionId, held.get(node, ()))) for node in groups},
        {ReplicaId(node): group for node, group in groups.items() if group is not None},
        {ReplicaId(node): 1 for node in groups},
    )


@pytest.mark.parametrize(
    ("cluster", "store", "to", "refusal"),
    [
        (2, 2, 5, None),
        (2, 2, 2, None),
        (2, 5, 5, None),
        (5, 5, 5, None),
        (2, 2, 1, "the cluster has 2 partitions, and that number never gets smaller"),
        (2, 5, 6, "5 in all, and that was cut short: finish it first, with --to 5"),
        (2, 5, 3, "finish it first, with --to 5"),
        (2, 5, 2, "finish it first, with --to 5"),
        (5, 2, 7, "the cluster parameters have 5 partitions and the store parameters 2"),
        (2, 2, PARTITIONS_MAX + 1, f"at most {PARTITIONS_MAX}"),
    ],
)
def test_a_growth_is_refused_with_the_reason(
    cluster: int, store: int, to: int, refusal: str | None
) -> None:
    counts = PartitionCounts(cluster, store, cluster)
    assert counts.is_half_added == (cluster < store)
    if refusal is None:
        check_growth(counts, to)
        return
    with pytest.raises(ConfigurationError, match=refusal):
        check_growth(counts, to)


def test_every_group_that_holds_something_gets_one_copy_of_each_new_partition() -> None:
    before = placement(
        2,
        {"a": 1, "b": 1, "c": 2, "idle": 2, "unused": 3},
        {"a": (0,), "b": (1,), "c": (0, 1)},
    )
    after = grown_placement(before, 2, 5)
    assert after.partition_count == 5
    assert after.partitions == {
        "a": (0, 2, 4),
        "b": (1, 3),
        "c": (0, 1, 2, 3, 4),
        "idle": (),
        "unused": (),
    }
    assert to_take(after, 2, 5) == {"a": (2, 4), "b": (3,), "c": (2, 3, 4)}
    assert (after.groups, after.admin_ports) == (before.groups, before.admin_ports)


def test_what_a_group_holds_already_stays_where_it_is() -> None:
    before = placement(5, {"a": 1, "b": 1}, {"a": (0,), "b": (1, 3)})
    assert grown_placement(before, 2, 5).partitions == {"a": (0, 2, 4), "b": (1, 3)}


def test_where_nobody_holds_anything_nobody_gets_anything() -> None:
    before = placement(2, {"a": 1, "b": None}, {})
    assert grown_placement(before, 2, 5).partitions == {"a": (), "b": ()}
    assert grown_placement(placement(2, {}, {}), 2, 5).partitions == {}


def test_a_node_with_partitions_and_without_a_group_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="storage node a has no group"):
        grown_placement(placement(2, {"a": None}, {"a": (0, 1)}), 2, 5)


@given(st.integers(1, 12), st.integers(0, 12), st.integers(0, 12), st.lists(st.integers(1, 3)))
def test_grown_is_what_auto_assign_would_have_dealt_out_in_one_go(
    before: int, first: int, second: int, groups: list[int]
) -> None:
    """The oracle; in two growths or in one, resumed or not."""
    named = {f"n{number}": group for number, group in enumerate(groups)}

    def dealt(count: int) -> StoragePlacement:
        found = placement(count, dict(named), {})
        for group in sorted(set(groups)):
            found = auto_assign(found, group)
        return found

    grown = grown_placement(dealt(before), before, before + first)
    grown = grown_placement(grown, before + first, before + first + second)
    expected = dealt(before + first + second)
    # With more nodes than partitions some held nothing, and are left alone.
    if all(dealt(before).partitions.values()):
        assert grown.partitions == expected.partitions
    assert grown_placement(grown, before, before + first + second) == grown
    for group in set(groups):
        nodes = [ReplicaId(name) for name, each in named.items() if each == group]
        copies = sorted(number for node in nodes for number in grown.partitions[node])
        assert copies == list(range(before + first + second))
