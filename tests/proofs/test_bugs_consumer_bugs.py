"""Seeded bugs of named consumers can be planted and leave nothing behind."""

from __future__ import annotations

from proofs.bugs.consumer_bugs import CONSUMER_BUGS
from tests.proofs.planting import check_planting


def test_the_bugs_of_consumers_can_be_planted_and_are_removed_again() -> None:
    check_planting(CONSUMER_BUGS)
