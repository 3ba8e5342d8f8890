"""The performance gate: what passes, what fails, and what cannot be judged."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bench.gate import (
    ACCEPTED,
    FIGURE,
    Verdict,
    figures_of,
    judge,
    quick_workloads,
    unsteadiness,
)
from tests.bench.results import CALIBRATION, result
from waltz.bench.results import Round

PROCESSOR = FIGURE.format(workload="submit-locks")
STEADY = [CALIBRATION, CALIBRATION]


def test_figures_are_speeds_in_multiples_of_the_calibration() -> None:
    found = figures_of(
        [result(Round(10, 1.0, processor={"all of it": 0.001}), name="submit-locks")]
    )
    assert found == pytest.approx({PROCESSOR: 0.01})


@pytest.mark.parametrize(
    ("figure", "fails"), [(1.5, False), (1.0, False), (0.71, False), (0.69, True), (0.1, True)]
)
def test_what_is_below_70_percent_of_the_accepted_fails(figure: float, fails: bool) -> None:
    (verdict,) = judge({PROCESSOR: figure}, {PROCESSOR: 1.0}, STEADY, 0.5)
    assert verdict.fails is fails
    assert verdict.line().endswith("FAILS" if fails else "ok")


def test_an_unsteady_machine_does_not_judge_and_says_so() -> None:
    slower = replace(CALIBRATION, pack_seconds=2 * CALIBRATION.pack_seconds)
    assert unsteadiness([CALIBRATION, slower]) == 2.0
    (verdict,) = judge({PROCESSOR: 0.5}, {PROCESSOR: 1.0}, [CALIBRATION, slower], 0.5)
    assert not verdict.fails
    assert "NOT JUDGED" in verdict.line()


def test_a_crowded_machine_does_not_judge_either() -> None:
    (crowded,) = judge({PROCESSOR: 0.5}, {PROCESSOR: 1.0}, STEADY, 3.0)
    assert not crowded.fails
    assert "NOT JUDGED" in crowded.line()


def test_an_unsteady_machine_passes_what_does_not_fall_short() -> None:
    verdict = Verdict(PROCESSOR, 0.9, 1.0, unsteadiness=5.0)
    assert verdict.line().endswith("ok")


def test_what_falls_short_by_more_than_the_machine_changed_fails_all_the_same() -> None:
    assert Verdict(PROCESSOR, 0.1, 1.0, unsteadiness=5.0).fails
    assert not Verdict(PROCESSOR, 0.2, 1.0, unsteadiness=5.0).fails


def test_what_was_accepted_must_be_measured_and_what_was_not_is_told() -> None:
    with pytest.raises(ValueError, match="accepted and not measured: gone"):
        judge({PROCESSOR: 1.0}, {"gone": 1.0}, STEADY, 0.5)
    (verdict,) = judge({PROCESSOR: 1.0}, {}, STEADY, 0.5)
    assert not verdict.fails
    assert "nothing accepted yet" in verdict.line()


def test_all_quick_workloads_run_on_one_cluster() -> None:
    assert {each.partitions for each in quick_workloads()} == {4}


def test_the_accepted_figures_are_those_that_are_measured() -> None:
    accepted = json.loads(ACCEPTED.read_text())
    assert accepted
    assert accepted.keys() == {FIGURE.format(workload=each.name) for each in quick_workloads()}
    assert all(figure > 0 for figure in accepted.values())
