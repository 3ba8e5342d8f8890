"""The report: one file, complete in itself, from whatever part of the year there is."""

from __future__ import annotations

import re
from pathlib import Path

from demo.report import write_report
from demo.verify import Tables
from tests.demo.test_verify import make_tables, write


def report(directory: Path, killed_at: float | None = None) -> str:
    path = directory / "report.html"
    write_report(
        path,
        Tables(directory),
        facts=[("transactions", "7"), ("killed <on> the way", "storage-2")],
        rates=[(1.0, 120.0), (2.0, 80.0)],
        killed_at=killed_at,
    )
    return path.read_text()


def test_the_report_needs_nothing_else(tmp_path: Path) -> None:
    make_tables(tmp_path)
    text = report(tmp_path, killed_at=1.5)
    assert text.count("<svg") == text.count("</svg>") == 5
    references = set(re.findall(r"(?:src|href)=\"([^#][^\"]*)\"", text))
    assert references == set()
    assert "<script" not in text


def test_the_report_shows_figures_and_carriers(tmp_path: Path) -> None:
    make_tables(tmp_path)
    text = report(tmp_path)
    assert "7 flights, written" in text
    assert "<dt>killed &lt;on&gt; the way</dt><dd>storage-2</dd>" in text
    assert "<td>United Air Lines Inc.</td><td>4</td><td>0.0%</td><td>1</td><td>2</td>" in text
    # The carrier with more flights comes first.
    assert text.index("United Air Lines") < text.index("Envoy Air")


def test_groups_in_which_nobody_flew_are_left_out_of_the_lines(tmp_path: Path) -> None:
    make_tables(tmp_path)
    nothing = {"flights": 1, "cancelled": 1, "diverted": 0, "distance": 1}
    missing = {"departure_delay": None, "arrival_delay": None}
    hours = Tables(tmp_path).rows("by_hour")
    write(tmp_path, "by_hour", [*hours, {"hour": 1} | nothing | missing])
    carriers = Tables(tmp_path).rows("by_carrier")
    write(tmp_path, "by_carrier", [*carriers, {"carrier": "??"} | nothing | missing])
    assert "<td>??</td><td>1</td><td>100.0%</td><td></td>" in report(tmp_path)
