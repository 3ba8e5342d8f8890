"""Whole clusters on virtual time: fresh seeds, every seed that ever failed, and the simulator's own
proof that it repeats itself and finds what it must find.

Rows: PM-04 (dense IDs), ST-01 to ST-09, SN-14; invariants I1, I2, I4 to I7, I12.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from waltz.sim.__main__ import main
from waltz.sim.faults import PLANS
from waltz.sim.simulation import Outcome, simulate
from waltz.sim.workloads import WORKLOADS

SEEDS_PER_SCENE = 5
BUG_SEEDS_MAX = 200

REGRESSIONS = [
    line.split(" -- ")[0].split()
    for line in (Path(__file__).parent / "regressions.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


def check(outcome: Outcome) -> None:
    scene = f"--workload {outcome.workload} --faults {outcome.faults}"
    replay = f"replay: python -m waltz.sim --seed {outcome.seed} {scene}"
    assert not outcome.violations, "\n".join([*outcome.violations, replay])


@pytest.mark.parametrize("faults", PLANS)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_fresh_seeds_keep_every_promise(workload: str, faults: str) -> None:
    for seed in range(SEEDS_PER_SCENE):
        check(simulate(seed, workload, faults))


@pytest.mark.parametrize(("seed", "workload", "faults"), REGRESSIONS)
def test_seeds_that_once_failed_keep_every_promise(seed: str, workload: str, faults: str) -> None:
    check(simulate(int(seed), workload, faults))


def test_one_seed_is_one_run_even_under_another_hash_seed() -> None:
    arguments = ["--seed", "7", "--workload", "append", "--faults", "storage_crash", "--trace"]

    def run(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", "waltz.sim", *arguments]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert run("1") == run("2")


def test_acknowledging_before_the_sync_is_found() -> None:
    """A seeded bug: one power cut of all nodes must show that a vote did not mean synced."""
    for seed in range(BUG_SEEDS_MAX):
        outcome = simulate(seed, "append", "power_cut", syncs_late=True)
        if any(violation.startswith(("I1", "I2", "I4")) for violation in outcome.violations):
            return
    pytest.fail(f"not found within {BUG_SEEDS_MAX} seeds")


def test_the_command_says_how_to_replay_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    scene = ["--workload", "append", "--faults", "power_cut"]
    assert main(["--seed", "1", *scene]) == 0
    assert "1 seeds, 0 failed" in capsys.readouterr().out
    arguments = [*scene, "--bug", "syncs_late", "--seeds", str(BUG_SEEDS_MAX)]
    assert main(arguments) == 1
    output = capsys.readouterr().out
    (replay, *_) = (line for line in output.splitlines() if line.startswith("replay: "))
    assert main(replay.removeprefix("replay: python -m waltz.sim ").split()) == 1
