"""Bounds turned down for a run: everywhere they are known, and back again afterwards."""

from __future__ import annotations

import sys
from random import Random

import pytest

from waltz.server.appends.lock_table import LockTable
from waltz.server.feeding import feed
from waltz.sim import simulation  # every module that a run loads
from waltz.sim.knobs import ARGUMENTS, KNOBS, default_of, draw_knobs, turned


def known() -> dict[str, set[object]]:
    """Return the values of each bound in all modules that know it."""
    assert simulation
    found: dict[str, set[object]] = {}
    for name in KNOBS:
        for path, module in sys.modules.items():
            is_asked = path.startswith("waltz.") and not path.startswith("waltz.wire.")
            if is_asked and hasattr(module, name):
                found.setdefault(name, set()).add(getattr(module, name))
    return found


def bounds() -> dict[str, object]:
    found: dict[str, object] = {**known()}
    for pairs in ARGUMENTS.values():
        for function, argument in pairs:
            found[f"{function.__qualname__}.{argument}"] = default_of(function, argument)
    return found


def test_every_other_value_is_in_force_within_and_over_afterwards() -> None:
    before = bounds()
    for place in range(max(map(len, KNOBS.values()))):
        knobs = {name: values[place % len(values)] for name, values in KNOBS.items()}
        with turned(knobs):
            assert known() == {name: {knobs[name]} for name in known()}
            for name, pairs in ARGUMENTS.items():
                assert all(default_of(*pair) == knobs[name] for pair in pairs)
        assert bounds() == before


def test_a_bound_is_turned_in_the_modules_that_have_imported_it() -> None:
    users = [name for name in KNOBS if hasattr(feed, name)]
    assert users
    with turned(dict.fromkeys(users, 1)):
        assert all(getattr(feed, name) == 1 for name in users)
    with turned({"LOCK_TABLE_SLOTS": 16}):
        assert default_of(LockTable.__init__, "slot_count") == 16


def test_an_error_within_leaves_nothing_turned() -> None:
    before = bounds()
    with pytest.raises(ZeroDivisionError), turned(dict.fromkeys(KNOBS, 1)):
        raise ZeroDivisionError
    assert bounds() == before


def test_runs_have_many_different_bounds_and_often_the_usual_ones() -> None:
    drawn = [draw_knobs(Random(seed)) for seed in range(400)]
    assert drawn == [draw_knobs(Random(seed)) for seed in range(400)]
    usual = sum(not knobs for knobs in drawn)
    assert 100 < usual < 300
    for name, values in KNOBS.items():
        assert {knobs[name] for knobs in drawn if name in knobs} == {*values}
