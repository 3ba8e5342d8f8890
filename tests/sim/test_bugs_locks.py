"""Seeded bugs of the lock table can be planted and leave nothing behind."""

from __future__ import annotations

from tests.sim.planting import check_planting
from waltz.sim.bugs.locks import LOCK_BUGS


def test_the_bugs_of_the_lock_table_can_be_planted_and_are_removed_again() -> None:
    check_planting(LOCK_BUGS)
