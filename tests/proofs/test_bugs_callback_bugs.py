"""Seeded bugs of applying can be planted and leave nothing behind."""

from __future__ import annotations

from proofs.bugs.callback_bugs import CALLBACK_BUGS
from tests.proofs.planting import check_planting


def test_the_bugs_of_applying_can_be_planted_and_are_removed_again() -> None:
    check_planting(CALLBACK_BUGS)
