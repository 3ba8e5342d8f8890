"""Attesters killed with SIGKILL: what is signed is whole, and the next attester goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SECONDS_MAX = 1800
"""Hundreds of kills take minutes, and several times as long beside other work."""


@pytest.mark.timeout(SECONDS_MAX)
@pytest.mark.parametrize("kills", [12, pytest.param(400, marks=pytest.mark.long)])
def test_what_killed_attesters_have_signed_is_whole(tmp_path: Path, kills: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.attest.killed", str(tmp_path / "a"), str(kills), "7"],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX - 60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"kills={kills}" in done.stdout
