"""Seeded bugs of the feed can be planted and leave nothing behind."""

from __future__ import annotations

from tests.sim.planting import check_planting
from waltz.sim.bugs.feed import FEED_BUGS


def test_the_bugs_of_the_feed_can_be_planted_and_are_removed_again() -> None:
    check_planting(FEED_BUGS)
