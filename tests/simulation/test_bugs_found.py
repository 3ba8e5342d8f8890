"""Every seeded bug is found by a run that is clean without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from proofs.__main__ import main
from proofs.bugs.registry import BUGS, PARTS
from proofs.hunting import Hunts, hunt
from tests.shares import one_in

SEEDS_MAX = 60
"""From the seed on that once found a bug: many times what most of them take."""

NAMES = [each for bugs in PARTS for each in one_in(len(bugs), [bug.name for bug in bugs])]
"""The first of each part is not long."""

HUNTS = Path(__file__).parent / "hunts.json"


def test_all_bugs_have_been_hunted_and_found() -> None:
    results = Hunts.load(HUNTS).results
    assert [*results] == sorted(BUGS)
    assert all(hunted.found for hunted in results.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_simulator_finds(name: str) -> None:
    bug = BUGS[name]
    seed, workload, plan = bug.caught
    assert hunt(bug, seed, [(workload, plan)], SEEDS_MAX) is not None


def test_the_command_hunts_a_bug(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "hunts.json"
    name = "locks of undecided appends are not seen"
    arguments = ["--bugs", str(path), "--bug", name, "--hunts", "1"]
    assert main(arguments) == 0
    assert f"{name}: 1 of 1 hunts, median" in capsys.readouterr().out
    arguments[3] = "a partition that comes back keeps its clients"
    assert main([*arguments, "--anywhere", "--seeds", "1"]) == 1
    assert name in path.read_text()
    path.write_text("nothing")
    with pytest.raises(SystemExit):
        main(arguments)
