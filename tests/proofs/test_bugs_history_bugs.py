"""Seeded bugs of histories can be planted and leave nothing behind."""

from __future__ import annotations

from proofs.bugs.history_bugs import HISTORY_BUGS
from tests.proofs.planting import check_planting


def test_the_bugs_of_histories_can_be_planted_and_are_removed_again() -> None:
    check_planting(HISTORY_BUGS)
