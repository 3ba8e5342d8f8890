"""Each broken rule is found: a check that cannot fail proves nothing."""

from __future__ import annotations

import pytest

from proofs.model.cases import Case
from proofs.model.mutations import LIMITS, MUTATIONS

STATES_MAX = 600_000

QUICK = {
    "an append is answered before it is synced",
    "undecided appends are told to have failed when their session ends",
    "a session takes appends before its metadata are written",
    "a truncation removes one record more",
    "a new replica votes",
    "a majority of the assigned replicas decides, not of the last session's",
    "replicas that do not answer are taken for empty",
    "replicas that lost their disk are taken for empty",
    "a disk replaced by an empty one votes",
}
"""Found within a second; the others are long."""

CASES = [
    pytest.param(case, id=case.name, marks=[pytest.mark.long] * (case.name not in QUICK))
    for case in (*MUTATIONS, *LIMITS)
]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", CASES)
def test_it_is_found(case: Case) -> None:
    _, found = case.explore(states_max=STATES_MAX)
    assert found.violation is not None
    assert found.violation.invariant in {*case.invariants, "assertion"}


def test_each_changes_something_and_has_a_name_of_its_own() -> None:
    names = [case.name for case in (*MUTATIONS, *LIMITS)]
    assert len({*names}) == len(names)
    assert {*names} > QUICK
    assert all(case.patches or case.rules != Case("", case.scope).rules for case in MUTATIONS)
    assert not any(case.patches for case in LIMITS)
