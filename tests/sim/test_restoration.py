"""The cluster of a run is lost, restored from its archive, and serves clients again."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest

from waltz.sim.applications.restoration import APPENDED, Follower, Restoration
from waltz.sim.scenario import draw_scenario
from waltz.sim.simulation import _Run
from waltz.types import PartitionId


def restored(seed: int) -> tuple[Restoration, tuple[str, ...]]:
    run = _Run(draw_scenario(seed, "archived", "none"), 1_000.0)
    outcome = run.outcome()
    assert run.restoration is not None
    return run.restoration, outcome.violations


@pytest.mark.parametrize(("seed", "same_key", "loses"), [(99001000, True, False),
                                                         (99001001, False, True),
                                                         (99001002, True, True)])  # fmt: skip
def test_those_above_the_fork_are_refused_and_the_others_go_on(
    seed: int, same_key: bool, loses: bool
) -> None:
    restoration, violations = restored(seed)
    assert violations == ()
    assert (restoration.same_key, restoration.loses) == (same_key, loses)
    goes_on = same_key and not loses
    assert restoration.counts["gone on"] == (4 if goes_on else 2)
    assert restoration.counts["refused"] == (0 if goes_on else 2)
    assert (restoration.counts["transactions lost"] > 0) == loses
    appended = Counter(len(each) for each in restoration._after.values())
    assert [*appended] == [APPENDED * restoration.counts["gone on"]]


def test_a_follower_keeps_a_history_only_on_top_of_the_one_before() -> None:
    follower, p = Follower("a client"), PartitionId(0)
    first, second, third = (UUID(int=number) for number in range(3))
    follower.keep_client_history(p, first, None)
    follower.keep_client_history(p, third, second)
    assert follower.get_client_history(p) == first
    follower.keep_client_history(p, second, first)
    assert follower.get_client_history(p) == second
