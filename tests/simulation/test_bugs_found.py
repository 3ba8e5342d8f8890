"""Every seeded bug is found by a run that is clean without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from proofs.__main__ import main
from proofs.bugs.registry import BUGS, PARTS
from proofs.hunting import Hunts, hunt

SEEDS_MAX = 60
"""From the seed on that once found a bug: many times what most of them take."""

QUICK = (
    "an append is answered before it is synced",
    "one replica of three is enough to commit",
    "an outcome is told while earlier appends are undecided",
    "a lost connection is taken for not written",
    "what a connection has sent counts again once it is gone",
    "a server goes on telling the topology that it has encoded once",
    "the new slots of a lock table that grows have no marks",
    "what was applied of a batch before it was postponed is handed over again",
    "what is cached of one partition is found for another",
    "a client keeps the number of partitions that it started with",
    "a consumer tells what has arrived as applied",
    "a time from before a restart bounds what came after it",
    "outcomes are told during a hold",
    "a manifest is written before the objects that it names",
    "a refused session is asked for again and again",
    "a consumer above the fork follows on",
    "a server stores an append that it has denied",
)
"""One of each part that is found in little time; the others are long."""

NAMES = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.long)
    for bugs in PARTS
    for name in (bug.name for bug in bugs)
]

HUNTS = Path(__file__).parent / "hunts.json"


def test_all_bugs_have_been_hunted_and_found() -> None:
    results = Hunts.load(HUNTS).results
    assert [*results] == sorted(BUGS)
    assert all(hunted.found for hunted in results.values())


def test_one_bug_of_each_part_is_quick() -> None:
    assert [sum(bug.name in QUICK for bug in bugs) for bugs in PARTS] == [1] * len(PARTS)


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
