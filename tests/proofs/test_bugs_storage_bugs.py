"""Seeded bugs of the storage can be planted and leave nothing behind."""

from __future__ import annotations

from proofs.bugs.storage_bugs import STORAGE_BUGS
from tests.proofs.planting import check_planting


def test_the_bugs_of_the_storage_can_be_planted_and_are_removed_again() -> None:
    check_planting(STORAGE_BUGS)
