"""Prometheus's own tool for rules, installed from Debian where it is missing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.databases import installed


def promtool(*arguments: str | Path) -> str:
    """Run it, and return what it says; a failure fails the test with that."""
    program = _program() or installed("prometheus", _program)
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout


def _program() -> Path | None:
    found = shutil.which("promtool")
    return None if found is None else Path(found)
