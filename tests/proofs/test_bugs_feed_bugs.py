"""Seeded bugs of the feed can be planted and leave nothing behind."""

from __future__ import annotations

from proofs.bugs.feed_bugs import FEED_BUGS
from tests.proofs.planting import check_planting


def test_the_bugs_of_the_feed_can_be_planted_and_are_removed_again() -> None:
    check_planting(FEED_BUGS)
