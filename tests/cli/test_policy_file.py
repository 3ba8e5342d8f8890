"""The commands that ask a policy file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.clusters import ROOT
from waltz.cli.policy_file import check, diff, run_cases, who_can
from waltz.errors import ConfigurationError

PAGE = (ROOT / "docs/operating/policy.md").read_text()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The policy of the page, where the page's commands look for it."""
    monkeypatch.chdir(tmp_path)
    found = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    path = tmp_path / "policy.yaml"
    path.write_text(found[1])
    text = found[1].replace("partitions: 0-7", "partitions: 0-6")
    text = text.replace("[read], partitions: all", "[read], partitions: all}\n"
                        "  spark: {verbs: [append], partitions: 0-3")  # fmt: skip
    (tmp_path / "next.yaml").write_text(text.replace('"CN=spark": [', '"CN=spark": [spark, '))
    return path


def printed(command: object, *arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(command, arguments)  # type: ignore[arg-type]
    assert result.exit_code == code, (result.output, result.exception)
    return str(result.output)


def test_the_page_shows_what_the_commands_print(file: Path) -> None:
    assert printed(check, file.name) in PAGE
    assert printed(diff, file.name, "next.yaml") in PAGE
    assert printed(who_can, "append", file.name, "--partition", "3") in PAGE
    assert printed(run_cases, file.name) in PAGE


def test_a_case_that_is_answered_otherwise_ends_with_1(file: Path) -> None:
    file.write_text(file.read_text().replace("expect: deny", "expect: allow"))
    shown = printed(run_cases, file.name, code=1)
    assert "policy.yaml, line 17: not as expected: no role of CN=spark has append" in shown
    found = json.loads(printed(run_cases, file.name, "--json", code=1))
    assert (found["cases"], [each["line"] for each in found["wrong"]]) == (2, [17])


def test_a_file_without_cases_does_not_pass(file: Path) -> None:
    file.write_text(file.read_text().partition("cases:")[0])
    result = CliRunner().invoke(run_cases, [file.name])
    assert isinstance(result.exception, ConfigurationError)
    assert "has no cases" in str(result.exception)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(check, [str(tmp_path / "x")])
    assert isinstance(result.exception, ConfigurationError)
    assert "cannot read" in str(result.exception)


def test_answers_are_json_if_asked(file: Path) -> None:
    assert json.loads(printed(check, file.name, "--json"))["grants"] == 4
    change = json.loads(printed(diff, file.name, "next.yaml", "--json"))
    assert {"principal": "spiffe://prod/orders", "verb": "read", "gained": False,
            "partitions": [[7, 7]], "headers": [[-(2**31), 2**31 - 1]]} in change  # fmt: skip
    names = [
        each["principal"] for each in json.loads(printed(who_can, "server", file.name, "--json"))
    ]
    assert names == ["CN=ops-*", "CN=waltz-*"]


def test_nobody_and_nothing_are_said(file: Path) -> None:
    file.write_text(file.read_text().replace('break_glass: ["CN=ops-*"]', ""))
    assert printed(who_can, "cut", file.name) == "nobody\n"
    assert printed(diff, file.name, file.name) == "both allow the same\n"


def test_a_mode_that_differs_is_a_difference(file: Path) -> None:
    text = file.read_text()
    Path("next.yaml").write_text(text.replace("mode: observe", "mode: deny"))
    assert printed(diff, file.name, "next.yaml") == "~ mode observe -> deny\n"
    assert json.loads(printed(diff, "next.yaml", file.name, "--json")) == [
        {"mode_before": "deny", "mode_after": "observe"}
    ]


def test_a_quota_that_differs_is_shown_with_both_values(file: Path) -> None:
    text = file.read_text()
    before = "verbs: [read], partitions: all"
    assert before in text
    Path("next.yaml").write_text(
        text.replace(before, f"{before}, quota: {{read_bytes: 100MiB/s, connections: 20}}")
    )
    assert printed(diff, file.name, "next.yaml") == (
        "~ CN=spark read_bytes none -> 100MiB/s\n~ CN=spark connections none -> 20\n"
    )
    assert json.loads(printed(diff, "next.yaml", file.name, "--json")) == [
        {"principal": "CN=spark", "limit": "read_bytes", "before": 100 << 20, "after": None},
        {"principal": "CN=spark", "limit": "connections", "before": 20, "after": None},
    ]
