"""Restores and clones killed with SIGKILL at any moment: no node ever starts on a part of a log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SECONDS_MAX = 1800
"""Hundreds of kills take minutes, and several times as long beside other work."""


@pytest.mark.timeout(SECONDS_MAX)
@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("restore", 10),
        pytest.param("restore", 500, marks=pytest.mark.long),
        pytest.param("clone", 30, marks=pytest.mark.long),
    ],
)
@pytest.mark.processes
def test_what_killed_restores_leave_is_whole_or_of_no_use(
    tmp_path: Path, kind: str, kills: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.restore.killed", kind, str(tmp_path), str(kills), "7"],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX - 60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"kills={kills} " in done.stdout
