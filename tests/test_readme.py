"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clusters import ROOT, running_cluster

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.processes
def test_the_accounts_program_loses_no_deposit(tmp_path: Path) -> None:
    """PM-20, PM-40: ten deposits under one lock, submitted at once, each sees the one before."""
    program = next(block for block in blocks("python") if "class Deposit" in block)
    with running_cluster(tmp_path / "cluster") as cluster:
        program = program.replace("127.0.0.1:7100", cluster.coordinator)
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    with sqlite3.connect(tmp_path / "accounts.db") as database:
        assert database.execute("select * from account").fetchall() == [(7, 1000)]


def test_the_commands_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^\$ make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
