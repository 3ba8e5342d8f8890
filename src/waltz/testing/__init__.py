"""Waltz for the tests of applications: a cluster in memory, and the simulator for one's own code.

`InMemoryCluster` is for ordinary tests, with threads and the client of every day; it starts in well
under a second. `simulate` runs an application's callbacks and contexts on virtual time against
every fault there is, decided by a seed. `fixtures` has both for pytest. Servers and storage nodes
are the product's own in either. See docs/testing-your-application.md.
"""

from __future__ import annotations

from waltz.testing.application_simulation import (
    FAULT_PLANS,
    SimulatedApplication,
    SimulationFailedError,
    SimulationOutcome,
    simulate,
)
from waltz.testing.cluster_faults import Faults
from waltz.testing.memory_cluster import InMemoryCluster

__all__ = [
    "FAULT_PLANS",
    "Faults",
    "InMemoryCluster",
    "SimulatedApplication",
    "SimulationFailedError",
    "SimulationOutcome",
    "simulate",
]
