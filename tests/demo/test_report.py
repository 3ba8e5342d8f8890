"""The report: one file, complete in itself, from whatever part of the year there is."""

from __future__ import annotations

import re
from pathlib import Path

from demo.cluster import Member
from demo.report import Proof, write_report
from demo.story import Moment
from demo.submission import Submission
from demo.verify import Tables
from tests.demo.test_verify import make_tables, write


def report(directory: Path, killed_at: float | None = None) -> str:
    path = directory / "report.html"
    write_report(
        path,
        Tables(directory),
        proofs=[Proof("Nothing is <lost>", "all are read again", "7 transactions agree")],
        moments=[Moment(1.5, "kill", "storage-2 killed"), Moment(2.0, "restart", "it is back")],
        members=[Member("storage-2", "storage", "127.0.0.1:7201", 1)],
        submission=Submission(
            seconds=2.0,
            counts={"applied": 7, "conflicts": 3},
            rates=[(1.0, 120.0), (2.0, 80.0)],
            storage="storage-2",
            killed_at=killed_at,
        ),
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
    assert "<h1>7 flights through one log</h1>" in text
    assert "<dt>refused by a lock, tried again</dt><dd>3</dd>" in text
    assert "<td>United Air Lines Inc.</td><td>4</td><td>0.0%</td><td>1</td><td>2</td>" in text
    # The carrier with more flights comes first.
    assert text.index("United Air Lines") < text.index("Envoy Air")


def test_the_report_tells_the_verdict_the_proofs_and_the_story(tmp_path: Path) -> None:
    make_tables(tmp_path)
    text = report(tmp_path, killed_at=1.5)
    assert "Everything agrees</b><p>7 transactions agree.</p>" in text
    assert "<b>Nothing is &lt;lost&gt;</b><p>all are read again</p>" in text
    assert '<li class="alarm"><time>1.5 s</time>Storage-2 killed</li>' in text
    assert "<li><time>2.0 s</time>It is back</li>" in text
    assert "<td>storage-2</td><td>storage</td><td>127.0.0.1:7201</td><td>1</td>" in text
    assert "Waltz" in text


def test_groups_in_which_nobody_flew_are_left_out_of_the_lines(tmp_path: Path) -> None:
    make_tables(tmp_path)
    nothing = {"flights": 1, "cancelled": 1, "diverted": 0, "distance": 1}
    missing = {"departure_delay": None, "arrival_delay": None}
    hours = Tables(tmp_path).rows("by_hour")
    write(tmp_path, "by_hour", [*hours, {"hour": 1} | nothing | missing])
    carriers = Tables(tmp_path).rows("by_carrier")
    write(tmp_path, "by_carrier", [*carriers, {"carrier": "??"} | nothing | missing])
    assert "<td>??</td><td>1</td><td>100.0%</td><td></td>" in report(tmp_path)
