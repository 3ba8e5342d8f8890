"""The product in small worlds, every state of them; `make model-check` visits the large ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from proofs.model.cases import CHECKS, Case
from proofs.model.scope import Scope
from proofs.patches import Patch
from tests.shares import one_in
from waltz.store.recovery import Recovery

STATES_MIN = 2_000
"""Fewer would be no world worth the name."""

REPLACED = Case(
    "replace_replica",
    Scope(starts_with=2, servers=1, sessions=2, appends=1, cuts=0, spares=1, replacements=1),
    heal_every=20,
)
BACK = Case(
    "the only replica replaced, and back",
    Scope(
        starts_with=1,
        replicas=1,
        spares=1,
        servers=1,
        sessions=5,
        transaction_ids=2,
        appends=1,
        cuts=0,
        replacements=2,
    ),
    heal_every=20,
)
SMALL = (
    Case("takeover", Scope(starts_with=2, sessions=3, appends=1, cuts=0), heal_every=20),
    Case("rolled back", Scope(starts_with=3, servers=1, appends=1, rollbacks=1), heal_every=20),
    BACK,
    Case("lost writes", Scope(starts_with=2, appends=1, cuts=0, lost_writes=1), heal_every=20),
    pytest.param(REPLACED, marks=pytest.mark.long),
)
"""Replacements are in two of them: the one that is long takes as long as three others."""


@pytest.mark.parametrize("case", one_in(4, SMALL), ids=lambda case: case.name)
def test_small_worlds_are_explored_to_their_end_without_violation(case: Case) -> None:
    """I1 to I5, I9 to I12."""
    _, found = case.explore()
    assert (found.violation, found.is_complete) == (None, True)
    assert found.states > STATES_MIN


def test_what_is_checked_by_the_million_begins_well() -> None:
    assert len({case.name for case in CHECKS}) == len(CHECKS)
    for case in CHECKS:
        assert not case.patches
        _, found = case.explore(states_max=1_000)
        assert (case.name, found.violation) == (case.name, None)


def test_a_patch_is_taken_back() -> None:
    original = Recovery.step
    case = Case("broken", Scope(), patches=(Patch(Recovery, "step", failing),))
    with case.applied():
        assert Recovery.step is not original
    assert Recovery.step is original
    with pytest.raises(ZeroDivisionError):
        case.explore()
    assert Recovery.step is original


def failing(_: Any) -> Callable[..., None]:
    def step(*_: Any) -> None:
        raise ZeroDivisionError

    return step
