"""Whole clusters on virtual time: fresh seeds, every seed that ever failed, and the simulator's own
proof that it repeats itself and finds what it must find.

Rows: PM-04 (dense IDs), ST-01 to ST-09, SN-14; invariants I1 to I10, I12.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from itertools import cycle, product
from pathlib import Path

import pytest

from proofs import __main__ as command
from proofs.__main__ import main
from tests.clusters import ROOT
from tests.shares import one_in
from waltz.sim.applications.workloads import WORKLOADS
from waltz.sim.faults.plans import PLANS
from waltz.sim.scenario import Scenario, draw_scenario
from waltz.sim.simulation import RunOutcome, play, simulate

BUG_SEEDS_MAX = 200

FRESH_SEEDS = 2
"""Per workload and fault plan; the long tests have all of them, the others the first."""

SCENES = [
    pytest.param(workload, plan, FRESH_SEEDS, marks=pytest.mark.long)
    for workload, plan in product(WORKLOADS, PLANS)
] + [(workload, plan, 1) for workload, plan in zip(cycle(WORKLOADS), PLANS, strict=False)]
"""Each plan has one workload that is not long, and each workload has several plans."""

FRESH_SEED = FRESH_SEEDS * datetime.now(UTC).date().toordinal()
"""Others every day, so that every day looks where no day before has; within a day the same, so
that a failure is there again when it is looked at."""

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.json"))

REGRESSIONS = [
    line.split(" -- ")[0].split()
    for line in (Path(__file__).parent / "regressions.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


def check(outcome: RunOutcome) -> None:
    scenario = outcome.scenario
    replay = (
        f"replay: python -m proofs --seed {scenario.seed} --workload {scenario.workload}"
        f" --faults {scenario.plan}"
    )
    assert not outcome.violations, "\n".join([*outcome.violations, replay])


@pytest.mark.parametrize(("workload", "plan", "seeds"), SCENES)
def test_fresh_seeds_keep_every_promise(workload: str, plan: str, seeds: int) -> None:
    for seed in range(FRESH_SEED, FRESH_SEED + seeds):
        check(simulate(seed, workload, plan))


@pytest.mark.parametrize("scene", one_in(3, REGRESSIONS), ids="-".join)
def test_seeds_that_once_failed_keep_every_promise(scene: tuple[str, str, str]) -> None:
    seed, workload, plan = scene
    check(simulate(int(seed), workload, plan))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenarios_that_once_failed_keep_every_promise(path: Path) -> None:
    check(play(Scenario.from_json(path.read_text())))


def run_apart(hash_seed: str, *arguments: str) -> str:
    """Return what a process of its own prints."""
    return subprocess.run(
        [sys.executable, "-m", "proofs", *arguments],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_one_seed_is_one_run_even_under_another_hash_seed() -> None:
    arguments = ["--seed", "7", "--workload", "append", "--faults", "storage_crash", "--trace"]
    assert run_apart("1", *arguments) == run_apart("2", *arguments)


@pytest.mark.parametrize("seeds", one_in(2, [range(1, 7), range(7, 41)]), ids=len)
def test_seeds_of_all_kinds_have_the_same_digests_twice(seeds: range) -> None:
    arguments = ["--seed", str(seeds.start), "--seeds", str(len(seeds))]
    assert run_apart("3", *arguments) == run_apart("4", *arguments)


SCENE = ["--workload", "append", "--faults", "power_cut"]
BUG = "an append is answered before it is synced"


def test_the_command_says_how_to_replay_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "1", *SCENE]) == 0
    assert "1 seeds, 0 failed" in capsys.readouterr().out
    arguments = [*SCENE, "--bug", BUG, "--seeds", str(BUG_SEEDS_MAX), "--failures", "1"]
    assert main(arguments) == 1
    output = capsys.readouterr().out
    (replay,) = (line for line in output.splitlines() if line.startswith("replay: "))
    assert main(shlex.split(replay.removeprefix("replay: python -m proofs "))) == 1


def test_the_command_shrinks_a_failure_to_a_plan_that_still_fails(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = [*SCENE, "--bug", BUG, "--seeds", str(BUG_SEEDS_MAX)]
    assert main([*arguments, "--failures", "1", "--shrink"]) == 1
    output = capsys.readouterr().out
    text = output[output.index("\n{") : output.rindex("\n}") + 2]
    scenario = Scenario.from_json(text)
    drawn = draw_scenario(scenario.seed, scenario.workload, scenario.plan)
    assert scenario.transactions <= drawn.transactions
    path = tmp_path / "plan.json"
    path.write_text(text)
    assert main(["--plan", str(path), "--bug", BUG]) == 1
    assert f"replay: python -m proofs --plan {path} --bug '{BUG}'" in capsys.readouterr().out


def test_the_command_adds_what_it_ran_to_the_evidence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "evidence.json"
    for count in (1, 2):
        assert main([*SCENE, "--evidence", str(path)]) == 0
        assert f'"power_cut/append": {count}' in path.read_text()
    assert main(["--seed", "1", "--seeds", "2", "--faults", "none", "--length", "2"]) == 0
    assert "2 seeds, 0 failed" in capsys.readouterr().out


def test_a_long_run_says_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "PROGRESS_SECONDS", 0.0)
    assert main([*SCENE, "--seeds", "2"]) == 0
    said = capsys.readouterr()
    assert said.err == "1 of 2 seeds, 0 failed\n2 of 2 seeds, 0 failed\n"
    assert "of 2 seeds" not in said.out, "what is printed is the same however long it takes"


def run_proofs(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process without threads, which may fork."""
    return subprocess.run(
        [sys.executable, "-m", "proofs", *SCENE, *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_processes_share_the_work_and_tell_the_same() -> None:
    alone, shared = (run_proofs("--seeds", "3", "--processes", each) for each in ("1", "2"))
    assert (alone.returncode, shared.returncode) == (0, 0), alone.stderr + shared.stderr
    assert alone.stdout == shared.stdout
    assert run_proofs("--bug", BUG, "--processes", "2").returncode == 1
    with pytest.raises(SystemExit):
        main([*SCENE, "--trace", "--processes", "2"])


@pytest.mark.parametrize(
    "arguments", [["--faults", "earthquake"], ["--workload", "x"], ["--plan", "/none"]]
)
def test_the_command_refuses_what_there_is_not(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
