"""`waltz doctor` without a file: the machine alone, for people and for programs."""

from __future__ import annotations

import json

from tests.clusters import run_waltz


def test_the_machine_is_checked_without_anything_else() -> None:
    ran = run_waltz("doctor", "--json")
    findings = json.loads(ran.stdout)
    assert {each["check"] for each in findings} == {"python", "library", "open-files", "clock"}
    assert (ran.returncode, ran.stderr) == (3 if unknown(findings) else 0, "")


def unknown(findings: list[dict[str, object]]) -> list[object]:
    return [each for each in findings if each["is_well"] is None]


def test_people_are_shown_cause_and_remedy_of_what_is_not_well() -> None:
    ran = run_waltz("doctor", "--coordinator", "127.0.0.1:1")
    lines = ran.stdout.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("WRONG")]
    assert "coordinator 127.0.0.1:1" in lines[at]
    assert lines[at + 1].startswith("        cause: ")
    assert lines[at + 2].startswith("        remedy: ")
    assert ran.returncode == 1
