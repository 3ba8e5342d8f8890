"""Seeded bugs of the server can be planted and leave nothing behind."""

from __future__ import annotations

from proofs.bugs.server_bugs import SERVER_BUGS
from tests.proofs.planting import check_planting


def test_the_bugs_of_the_server_can_be_planted_and_are_removed_again() -> None:
    check_planting(SERVER_BUGS)
