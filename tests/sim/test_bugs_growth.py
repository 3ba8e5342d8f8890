"""Seeded bugs of adding partitions can be planted and leave nothing behind."""

from __future__ import annotations

from tests.sim.planting import check_planting
from waltz.sim.bugs.growth import GROWTH_BUGS


def test_the_bugs_of_growth_can_be_planted_and_are_removed_again() -> None:
    check_planting(GROWTH_BUGS)
