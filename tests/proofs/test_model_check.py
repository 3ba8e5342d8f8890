"""`make model-check` says what it visited, and how to get to what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from proofs import model_check
from proofs.evidence import Evidence
from proofs.model.cases import Case
from proofs.model.mutations import LIMITS, MUTATIONS
from proofs.model.scope import Scope

CLEAN = Case("clean", Scope(servers=1, sessions=1, appends=1, cuts=0), heal_every=1)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str, cases: tuple[Case, ...]) -> int:
    monkeypatch.setattr(model_check, "CHECKS", cases)
    monkeypatch.setattr(model_check, "MUTATIONS", MUTATIONS[:1])
    monkeypatch.setattr(model_check, "LIMITS", LIMITS[:1])
    return model_check.main(arguments)


def test_clean_worlds_and_found_mutations_are_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, cases=(CLEAN, CLEAN)) == 0
    clean, _, total, *searched, end = capsys.readouterr().out.splitlines()
    assert clean.startswith("clean: no violation; ")
    assert total.startswith("2 worlds, 0 with a violation: ")
    assert searched[0].startswith(MUTATIONS[0].name + ": 7 steps to I1: ")
    assert end == "1 mutations and 1 known limits, 0 not found"


def test_a_mutation_that_is_missed_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(model_check, "MUTATION_STATES_MAX", 10)
    assert run(monkeypatch, cases=(CLEAN,)) == 1
    assert "2 not found" in capsys.readouterr().out


def test_a_violation_is_told_as_a_story(capsys: pytest.CaptureFixture[str]) -> None:
    assert model_check.main(["--case", "one replica of three is enough to commit"]) == 1
    first, *story, total = capsys.readouterr().out.splitlines()
    assert first.startswith("one replica of three is enough to commit: 2 steps to I1: ")
    assert [line.split(" -> ")[0] for line in story] == [
        "    server 1 (session 0) takes 1 append",
        "    append of r1 as 0 from server 1 (session 0) arrives at A",
    ]
    assert total.startswith("1 worlds, 1 with a violation: ")


def test_a_world_may_be_cut_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--states", "20", cases=(CLEAN,)) == 0
    assert "clean: no violation so far; " in capsys.readouterr().out


def test_what_was_seen_to_its_end_is_evidence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "evidence.json"
    assert run(monkeypatch, "--states", "20", "--evidence", str(path), cases=(CLEAN,)) == 0
    assert Evidence.load(path).worlds == {}
    assert run(monkeypatch, "--evidence", str(path), cases=(CLEAN,)) == 0
    worlds = Evidence.load(path).worlds
    assert f" {worlds['clean']['states']:,} states, " in capsys.readouterr().out
    assert worlds["clean"]["states"] == worlds["clean"]["healed"] > 20


def test_an_unknown_case_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        model_check.main(["--case", "nothing of the kind"])
    assert "invalid choice" in capsys.readouterr().err
