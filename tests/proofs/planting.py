"""What holds for every seeded bug."""

from __future__ import annotations

from collections.abc import Sequence

from proofs.bugs.bug import Bug
from waltz.sim.applications.workloads import WORKLOADS
from waltz.sim.faults.plans import PLANS


def check_planting(bugs: Sequence[Bug]) -> None:
    """Each can be planted, is removed again, and is hunted in ordinary scenes."""
    assert bugs
    for bug in bugs:
        originals = [patch.present for patch in bug.patches]
        assert originals, bug.name
        with bug.planted():
            planted = [patch.present for patch in bug.patches]
        assert all(a is not b for a, b in zip(planted, originals, strict=True)), bug.name
        assert [patch.present for patch in bug.patches] == originals
        assert {*bug.workloads} <= {*WORKLOADS}
        assert {*bug.plans} <= {*PLANS}
        assert bug.caught[1:] in bug.scenes(), bug.name
