"""The rule of the majority, against what it is for."""

from __future__ import annotations

from itertools import combinations

import pytest

from waltz.majority import majority


@pytest.mark.parametrize("count", range(1, 8))
def test_any_two_majorities_have_a_replica_in_common_and_no_fewer_would_do(count: int) -> None:
    replicas = range(count)

    def always_meet(size: int) -> bool:
        groups = [set(group) for group in combinations(replicas, size)]
        return all(one & other for one in groups for other in groups)

    assert always_meet(majority(count))
    assert not always_meet(majority(count) - 1)


def test_without_replicas_there_is_no_majority() -> None:
    assert majority(0) > 0
