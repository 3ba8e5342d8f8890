"""The whole job on a small part of the year, as a user runs it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from demo.__main__ import main

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 240
PHASES = (
    *("cluster", "flights", "kill", "restart", "applied"),
    *("session", "stream", "delays", "tables", "verify", "audit", "compare", "report"),
)


def demo(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "demo", "--directory", str(directory), *arguments],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.spark
@pytest.mark.processes
def test_everything_agrees_at_the_end(tmp_path: Path) -> None:
    process = demo(tmp_path / "output", "--limit", "1500", "--seed", "3")
    output, _ = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0, output
    lines = output.splitlines()
    assert lines[-1] == "demo: OK, 1,500 transactions agree on all sides"
    phases = list(dict.fromkeys(re.findall(r"^ *[0-9.]+ s  (\w+)", output, re.MULTILINE)))
    assert sorted(phases) == sorted(PHASES)
    page = (tmp_path / "output" / "report.html").read_text()
    assert "Everything agrees</b><p>1,500 transactions, " in page
    assert page.endswith("</html>\n")


@pytest.mark.processes
@pytest.mark.spark
@pytest.mark.long
def test_a_run_that_does_not_agree_has_no_report(tmp_path: Path) -> None:
    """The database is changed behind the log's back before the last comparison."""
    process = demo(tmp_path / "output", "--limit", "300")
    assert process.stdout is not None
    for line in process.stdout:
        if " delays " in line:
            with closing(sqlite3.connect(tmp_path / "output" / "flights.db")) as database, database:
                database.execute("UPDATE flight SET distance = 1 WHERE number = 7")
    assert process.wait() == 1
    assert not (tmp_path / "output" / "report.html").exists()


@pytest.mark.processes
def test_ctrl_c_stops_everything(tmp_path: Path) -> None:
    process = demo(tmp_path / "output")
    log = tmp_path / "output" / "logs" / "submit-3.log"
    while not log.exists():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 130
    assert "stopped" in output
    assert [each for each in command_lines() if str(tmp_path) in each] == []


def command_lines() -> Iterator[str]:
    """Those of all processes of this machine."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            yield path.read_text(errors="replace")


@pytest.mark.parametrize("limit", ["0", "336777"])
def test_a_limit_out_of_range_is_refused(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(sys, "argv", ["demo", "--directory", "unused", "--limit", limit])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
