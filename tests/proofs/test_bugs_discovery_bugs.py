"""Seeded bugs of discovery can be planted and leave nothing behind."""

from __future__ import annotations

from proofs.bugs.discovery_bugs import DISCOVERY_BUGS
from tests.proofs.planting import check_planting


def test_the_bugs_of_discovery_can_be_planted_and_are_removed_again() -> None:
    check_planting(DISCOVERY_BUGS)
