"""Seeded bugs of those who follow the coordinator can be planted and leave nothing behind."""

from __future__ import annotations

from proofs.bugs.coordinator_bugs import COORDINATOR_BUGS
from tests.proofs.planting import check_planting


def test_the_bugs_of_the_coordinator_can_be_planted_and_are_removed_again() -> None:
    check_planting(COORDINATOR_BUGS)
