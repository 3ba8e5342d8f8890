"""A run and its outcome: repeatable, judged, and loud when something breaks."""

from __future__ import annotations

import gc
import logging
from dataclasses import replace

import pytest

from waltz.sim.faults.kinds import count_of
from waltz.sim.scenario import draw_scenario
from waltz.sim.simulation import play, simulate


def test_a_clean_run_has_an_outcome_without_violations() -> None:
    outcome = simulate(1, "append", "storage_crash")
    assert outcome.violations == ()
    assert outcome.scenario == draw_scenario(1, "append", "storage_crash")
    assert outcome.transactions >= outcome.scenario.transactions
    assert outcome.faults.total() == sum(map(count_of, outcome.scenario.faults))
    assert 0.0 < outcome.writable_seconds < outcome.virtual_seconds


def test_one_seed_is_one_run_whatever_ran_before() -> None:
    digests = [simulate(seed, "append", "power_cut").digest for seed in (3, 4, 3)]
    assert digests[0] == digests[2] != digests[1]


def test_a_scenario_may_have_other_faults_than_its_plan_drew() -> None:
    scenario = replace(draw_scenario(3, "append", "power_cut"), faults=())
    outcome = play(scenario)
    assert outcome.violations == ()
    assert outcome.faults.total() == 0


def test_longer_runs_have_more_of_everything() -> None:
    outcome = simulate(2, "append", "storage_crash", length=5)
    assert outcome.violations == ()
    assert outcome.transactions > 40
    assert outcome.faults.total() >= 5


def test_log_lines_are_for_people_and_change_nothing() -> None:
    scenario = draw_scenario(5, "append", "none")
    silent, loud = play(scenario), play(scenario, with_log=True)
    assert silent.digest == loud.digest
    assert any(
        "# server-0 waltz.server.server_shell server_started" in line for line in loud.trace.lines()
    )
    assert not any(" # " in line for line in silent.trace.lines())


def test_a_run_leaves_the_world_as_it_was() -> None:
    logger = logging.getLogger("waltz")
    before = (gc.isenabled(), logger.level, logger.handlers[:], logging.root.manager.disable)
    play(draw_scenario(2, "append", "none"), with_log=True)
    simulate(2)
    assert before == (
        gc.isenabled(), logger.level, logger.handlers[:], logging.root.manager.disable
    )  # fmt: skip


def test_a_run_without_end_is_a_violation_that_says_what_is_open() -> None:
    scenario = draw_scenario(1, "append", "none")
    (violation, *_) = play(scenario, virtual_seconds_max=2.5).violations
    assert "not done after 2.5 virtual seconds" in violation
    assert "still open: context " in violation


def test_time_without_service_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    """I12."""
    monkeypatch.setattr("waltz.sim.simulation.WRITABLE_SECONDS_MAX", 0.0)
    assert any("I12 convergence" in violation for violation in simulate(1).violations)
