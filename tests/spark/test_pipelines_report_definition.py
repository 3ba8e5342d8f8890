"""Definitions of reports: read whole, and a mistake in one is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from waltz.errors import ConfigurationError
from waltz.spark.pipelines.report_definition import ReportDefinition, Section, parse_report

REPORT = """\
target: r.html
title: Accounts
text: All of them.
sections:
- {title: All, query: SELECT 1}
- {title: Some, query: SELECT 2, show: bars, text: Not all.}
"""


def test_a_report_has_sections() -> None:
    assert parse_report(yaml.safe_load(REPORT), Path("/etc")) == ReportDefinition(
        Path("/etc/r.html"),
        "Accounts",
        (Section("All", "SELECT 1"), Section("Some", "SELECT 2", "bars", "Not all.")),
        "All of them.",
    )


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (REPORT, "7", "report is 7; expected keys"),
        ("title: Accounts", "name: Accounts", "report has the unknown key 'name'"),
        ("target: r.html\n", "", "report: target is missing"),
        (REPORT, "{target: a, title: b, sections: []}", r"report: sections is \[\]; expected a l"),
        (", query: SELECT 2", "", "report: section 2: query is missing"),
        ("show: bars", "show: cakes", "report: section 2: show is 'cakes'; expected one of table"),
    ],
)
def test_a_mistake_is_named(old: str, new: str, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^WALTZ-1007 {fault}"):
        parse_report(yaml.safe_load(REPORT.replace(old, new)), Path("/etc"))
