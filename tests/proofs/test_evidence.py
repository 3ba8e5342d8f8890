"""Counts add up over runs and files, and the page is made of them alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from proofs.evidence import Evidence, main
from proofs.hunting import Hunted, Hunts
from waltz.errors import ConfigurationError
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.scenario import draw_scenario
from waltz.sim.simulation import RunOutcome

CLEAN = RunOutcome(
    draw_scenario(7, "append", "power_cut"),
    violations=(),
    digest="",
    transactions=40,
    faults=Counter(Crash=3, Pause=1),
    effects=Counter({"bytes held": 100}),
    virtual_seconds=1_000.0,
    writable_seconds=2.5,
    converged_seconds=0.5,
    callbacks=1,
    trace=RunTrace(),
)
BROKEN = replace(
    CLEAN,
    scenario=draw_scenario(8, "bank", "pauses"),
    violations=("I7 money: a|b\nmore", "I1"),
    faults=Counter(Pause=2),
    writable_seconds=1.0,
    converged_seconds=4.0,
)


def gathered() -> Evidence:
    worlds = {"blank": {"states": 1_000, "transitions": 3_000, "healed": 10}}
    evidence = Evidence(worlds=worlds | {"cut": {"states": 500, "transitions": 600, "healed": 5}})
    for outcome in (CLEAN, BROKEN, CLEAN):
        evidence.add(outcome)
    return evidence


def test_counts_add_up() -> None:
    evidence = gathered()
    assert evidence.seeds == {"power_cut/append": 2, "pauses/bank": 1}
    assert evidence.failed == {"pauses/bank": 1}
    assert evidence.transactions == {"append": 80, "bank": 40}
    assert evidence.faults == {"Crash": 6, "Pause": 4}
    assert evidence.effects == {"bytes held": 300}
    assert evidence.virtual_seconds == 3_000.0
    assert (evidence.writable_seconds_max, evidence.converged_seconds_max) == (2.5, 4.0)
    assert evidence.findings == [
        {
            "seed": 8,
            "workload": "bank",
            "faults": "pauses",
            "length": 1,
            "violation": "I7 money: a|b",
        }
    ]


def test_what_was_saved_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "evidence.json"
    assert Evidence.load(path) == Evidence()
    gathered().save(path)
    evidence = Evidence.load(path)
    assert evidence == gathered()
    evidence.add(CLEAN)
    assert evidence.seeds.total() == 4


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"seeds": 1}'])
def test_what_is_no_evidence_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "evidence.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match="no evidence"):
        Evidence.load(path)


def test_what_several_processes_counted_adds_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [Evidence(), Evidence(worlds=gathered().worlds)]
    for number, outcome in enumerate((CLEAN, BROKEN, CLEAN)):
        parts[number % 2].add(outcome)
    paths = [tmp_path / "one.json", tmp_path / "other.json"]
    for path, part in zip(paths, parts, strict=True):
        part.save(path)
    assert main([str(path) for path in paths]) == 0
    assert capsys.readouterr().out == gathered().page()


def test_the_page_says_what_was_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "evidence.json"
    gathered().save(path)
    assert main([str(path)]) == 0
    page = capsys.readouterr().out
    assert page.startswith("# Evidence\n")
    for line in (
        "- 3 runs of a whole cluster",
        "- 1 of them with a violation",
        "- 120 transactions",
        "| power_cut | 2 | 0 |",
        "| pauses | 1 | 1 |",
        "| append | 80 |",
        "| Crash | 6 |",
        "| blank | 1,000 | 3,000 | 10 |",
        "| together | 1,500 | 3,600 | 15 |",
        "| 8 | bank | pauses | I7 money: a\\|b |",
    ):
        assert f"{line}\n" in page
    with pytest.raises(SystemExit):
        main([])


def test_the_page_has_the_hunts_for_seeded_bugs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hunts.json"
    Hunts({"x": Hunted("I1 durability", "append under none", [3, 1, 2])}).save(path)
    assert main([str(tmp_path / "none.json"), "--hunts", str(path)]) == 0
    page = capsys.readouterr().out
    assert "1 of 1 mistakes in the list were found when planted." in page
    assert "| x | I1 durability | 3 | 3 | 2 |  |\n" in page


def test_the_page_among_the_documents_is_printed_and_not_typed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = Path(__file__).parent.parent.parent
    hunts = root / "tests" / "simulation" / "hunts.json"
    assert main([str(root / "docs" / "evidence.json"), "--hunts", str(hunts)]) == 0
    assert (root / "docs" / "evidence.md").read_text() == capsys.readouterr().out
