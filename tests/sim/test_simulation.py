"""A run and its outcome: repeatable, judged, and loud when something breaks."""

from __future__ import annotations

import gc
import logging

from waltz.sim.simulation import simulate


def test_a_clean_run_has_an_outcome_without_violations() -> None:
    outcome = simulate(1, "append", "storage_crash")
    assert outcome.violations == ()
    assert (outcome.seed, outcome.workload, outcome.faults) == (1, "append", "storage_crash")
    assert outcome.transactions > 0
    assert outcome.faults_count > 0
    assert outcome.virtual_seconds > 0.0


def test_one_seed_is_one_run_whatever_ran_before() -> None:
    digests = [simulate(seed, "append", "power_cut").digest for seed in (3, 4, 3)]
    assert digests[0] == digests[2] != digests[1]


def test_log_lines_are_for_people_and_change_nothing() -> None:
    silent, loud = simulate(5, "append", "none"), simulate(5, "append", "none", with_log=True)
    assert silent.digest == loud.digest
    assert any(
        "# server-0 waltz.server.shell server_started" in line for line in loud.trace.lines()
    )
    assert not any(" # " in line for line in silent.trace.lines())


def test_a_run_leaves_the_world_as_it_was() -> None:
    logger = logging.getLogger("waltz")
    before = (gc.isenabled(), logger.level, logger.handlers[:], logging.root.manager.disable)
    simulate(2, with_log=True)
    simulate(2)
    assert before == (
        gc.isenabled(), logger.level, logger.handlers[:], logging.root.manager.disable
    )  # fmt: skip


def test_a_run_without_end_is_a_violation_that_says_what_is_open() -> None:
    (violation, *_) = simulate(1, "append", "none", virtual_seconds_max=0.5).violations
    assert "not done after 0.5 virtual seconds" in violation
    assert "still open: context " in violation
