"""Storage nodes are asked in the end of a run when their copies became durable."""

from __future__ import annotations

from waltz.sim.applications.historian import JOURNAL_QUESTIONS
from waltz.sim.simulation import simulate


def test_storage_nodes_are_asked_about_some_transactions_of_each_partition() -> None:
    outcome = simulate(3, "append", "none")
    assert outcome.violations == ()
    shape = outcome.scenario.shape
    asked_max = JOURNAL_QUESTIONS * shape.partition_count * shape.storage_count
    assert 0 < outcome.times_told.total() <= asked_max
