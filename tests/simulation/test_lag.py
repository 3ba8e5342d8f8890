"""Lag as operators are told it, with the commits of the whole run as the truth: servers that start
again, partitions that move, consumers that are gone, wall clocks that are set, and an idle log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.shares import one_in
from waltz.sim.faults.kinds import ClockDrift
from waltz.sim.scenario import Scenario, draw_scenario
from waltz.sim.simulation import play

SEEDS = range(10, 14)
PLANS = ("moving_partitions", "server_crash", "client_crash", "clock_trouble")


def told(scenarios: Sequence[Scenario]) -> Counter[str]:
    found: Counter[str] = Counter()
    for scenario in scenarios:
        outcome = play(scenario)
        assert outcome.violations == (), scenario
        found += outcome.lags_told
    return found


def without_drift(scenario: Scenario) -> Scenario:
    """Return it with clocks that are set and never too fast: so times can be compared."""
    kept = tuple(each for each in scenario.faults if not isinstance(each, ClockDrift))
    return replace(scenario, faults=kept)


def test_without_faults_every_lag_is_told_within_a_second() -> None:
    found = told([draw_scenario(seed, "consumers", "none") for seed in SEEDS])
    assert {*found} <= {"narrow", "away"}, "of one that is away an upper bound is known"
    assert found["narrow"] > 0


@pytest.mark.parametrize("plan", one_in(4, PLANS))
def test_under_faults_no_lag_is_false_and_most_are_told_within_a_second(plan: str) -> None:
    found = told([without_drift(draw_scenario(seed, "consumers", plan)) for seed in SEEDS])
    assert found["narrow"] > 0.5 * (found.total() - found["away"]) > 0
