"""Hunts: counted from their first seed, given up in time, kept in a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from proofs.bugs.bug import Bug, Scene
from proofs.bugs.registry import BUGS
from proofs.hunting import Hunted, Hunts, hunt, hunt_all, signs_at
from waltz.errors import ConfigurationError

QUICK = replace(
    BUGS["locks of undecided appends are not seen"], workloads=("lock_contention",), plans=("none",)
)
HARMLESS = replace(QUICK, name="nothing is wrong", patches=())


def test_a_hunt_ends_with_a_run_that_is_clean_without_the_bug() -> None:
    found = hunt(QUICK, 0, QUICK.scenes())
    assert found is not None
    assert found.scene == Scene(found.seeds - 1, "lock_contention", "none")
    assert found.signs
    assert not signs_at(found.scene)
    with QUICK.planted():
        assert signs_at(found.scene) == found.signs


def test_a_hunt_is_given_up() -> None:
    assert hunt(HARMLESS, 0, HARMLESS.scenes(), 2) is None


def test_hunts_are_kept_and_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "hunts.json"
    said: list[str] = []
    assert not hunt_all([QUICK, HARMLESS], path, said.append, hunts=1, seeds_max=8)
    before = path.read_text()
    assert not hunt_all([QUICK, HARMLESS], path, said.append, hunts=1, seeds_max=8)
    assert path.read_text() == before
    assert said[:2] == said[2:]
    assert said[1] == "nothing is wrong: 0 of 1 hunts, median not found seeds"
    lines = Hunts.load(path).lines()
    assert lines[2].startswith("1 of 2 mistakes in the list")
    assert "| nothing is wrong | I7 locks | 1 | 0 | not found |  |" in lines


def test_the_median_counts_hunts_that_were_given_up() -> None:
    hunts = Hunts({"x": Hunted("I1", "append under none", [1, None, 5], [None, None, 1])})
    assert hunts.lines()[-1] == "| x | I1 | 3 | 2 | 5 | not found |"


@pytest.mark.parametrize("text", ["", "[]", '{"x": {}}', '{"x": 1}'])
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "hunts.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError):
        Hunts.load(path)


def test_scenes_are_all_workloads_under_all_plans() -> None:
    bug: Bug = replace(QUICK, workloads=("append", "bank"), plans=("none", "swizzle"))
    assert len({*bug.scenes()}) == 4
