"""What `explain_transaction` tells during runs with faults and after them is so, and is narrow.

The judge is `sim/judges/explanation_watch.py`, which knows of every sync and of who has sent what.
"""

from __future__ import annotations

from collections import Counter

import pytest

from waltz.sim.faults.plans import PLANS
from waltz.sim.simulation import simulate

NARROW_SHARE_MIN = 0.95
"""Of the statements on when a copy became durable that say anything: at most 2 s wide."""


def explained(seed: int, transactions: int) -> Counter[str]:
    """Play runs, one plan after the other, until enough transactions were explained."""
    found: Counter[str] = Counter()
    plans = [*PLANS]
    while sum(found[f"committed: {each}"] for each in (True, False, None)) < transactions:
        outcome = simulate(seed, "explained", plans[seed % len(plans)])
        assert outcome.violations == (), (seed, outcome.scenario.plan, outcome.violations)
        found += outcome.explained
        seed += 1
    return found


@pytest.mark.parametrize("transactions", [100, pytest.param(1_000, marks=pytest.mark.long)])
def test_nothing_false_is_told_of_random_transactions_and_most_times_are_narrow(
    transactions: int,
) -> None:
    found = explained(20_000, transactions)
    assert found["time: narrow"] > NARROW_SHARE_MIN * (found["time: narrow"] + found["time: wide"])
    if transactions > 100:
        kinds = ("author: told", "refusal: exact", "refusal: estimate", "copy: missing")
        assert min(found[each] for each in kinds) > 0, found
