"""Seeded bugs of the store can be planted and leave nothing behind."""

from __future__ import annotations

from proofs.bugs.store_bugs import STORE_BUGS
from tests.proofs.planting import check_planting


def test_the_bugs_of_the_store_can_be_planted_and_are_removed_again() -> None:
    check_planting(STORE_BUGS)
