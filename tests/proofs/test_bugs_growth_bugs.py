"""Seeded bugs of adding partitions can be planted and leave nothing behind."""

from __future__ import annotations

from proofs.bugs.growth_bugs import GROWTH_BUGS
from tests.proofs.planting import check_planting


def test_the_bugs_of_growth_can_be_planted_and_are_removed_again() -> None:
    check_planting(GROWTH_BUGS)
