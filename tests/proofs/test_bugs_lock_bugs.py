"""Seeded bugs of the lock table can be planted and leave nothing behind."""

from __future__ import annotations

from proofs.bugs.lock_bugs import LOCK_BUGS
from tests.proofs.planting import check_planting


def test_the_bugs_of_the_lock_table_can_be_planted_and_are_removed_again() -> None:
    check_planting(LOCK_BUGS)
