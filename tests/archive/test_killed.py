"""Archivers killed with SIGKILL at any moment: orphans at most are left, and nothing is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SECONDS_MAX = 1800
"""Hundreds of kills take minutes, and several times as long beside other work."""


@pytest.mark.timeout(SECONDS_MAX)
@pytest.mark.parametrize("kills", [20, pytest.param(500, marks=pytest.mark.long)])
def test_what_killed_archivers_leave_is_whole(tmp_path: Path, kills: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.archive.killed", str(tmp_path / "a"), str(kills), "7"],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX - 60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "manifests=" in done.stdout
