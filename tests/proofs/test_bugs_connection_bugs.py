"""Seeded bugs of logical connections can be planted and leave nothing behind."""

from __future__ import annotations

from proofs.bugs.connection_bugs import CONNECTION_BUGS
from tests.proofs.planting import check_planting


def test_the_bugs_of_connections_can_be_planted_and_are_removed_again() -> None:
    check_planting(CONNECTION_BUGS)
