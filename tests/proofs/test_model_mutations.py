"""Each broken rule is found: a check that cannot fail proves nothing."""

from __future__ import annotations

import pytest

from proofs.model.cases import Case
from proofs.model.mutations import LIMITS, MUTATIONS
from tests.shares import one_in

STATES_MAX = 250_000


@pytest.mark.parametrize("case", one_in(5, [*MUTATIONS, *LIMITS]), ids=lambda case: case.name)
def test_it_is_found(case: Case) -> None:
    _, found = case.explore(states_max=STATES_MAX)
    assert found.violation is not None
    assert found.violation.invariant in {*case.invariants, "assertion"}


def test_each_changes_something_and_has_a_name_of_its_own() -> None:
    names = [case.name for case in (*MUTATIONS, *LIMITS)]
    assert len({*names}) == len(names)
    assert all(case.patches or case.rules != Case("", case.scope).rules for case in MUTATIONS)
    assert not any(case.patches for case in LIMITS)
