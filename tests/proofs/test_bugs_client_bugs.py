"""Seeded bugs of the client can be planted and leave nothing behind."""

from __future__ import annotations

from proofs.bugs.client_bugs import CLIENT_BUGS
from tests.proofs.planting import check_planting


def test_the_bugs_of_the_client_can_be_planted_and_are_removed_again() -> None:
    check_planting(CLIENT_BUGS)
