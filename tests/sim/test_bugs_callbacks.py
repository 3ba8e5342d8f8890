"""Seeded bugs of applying can be planted and leave nothing behind."""

from __future__ import annotations

from tests.sim.planting import check_planting
from waltz.sim.bugs.callbacks import CALLBACK_BUGS


def test_the_bugs_of_applying_can_be_planted_and_are_removed_again() -> None:
    check_planting(CALLBACK_BUGS)
