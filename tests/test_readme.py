"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clusters import ROOT, run_waltz, running_cluster

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


SAID = ("0", '1\t0\t0\t{"account": 1, "new_balance": 50}', "3 of 3")
"""A part of what each command of the page prints, `waltz up` left out."""


def commands() -> list[list[str]]:
    """Return the arguments of the `waltz` commands of the page, but `waltz up`."""
    shown = re.findall(r"^\$ waltz (.*)$", README, re.MULTILINE)
    assert shown[0] == "up"
    return [shlex.split(each) for each in shown[1:]]


@pytest.mark.processes
def test_the_accounts_program_loses_no_deposit(tmp_path: Path) -> None:
    """PM-20, PM-40: ten deposits under one lock, submitted at once, each sees the one before. The
    page is followed in its order, in one directory, so its commands come first."""
    program = next(block for block in blocks("python") if "class Deposit" in block)
    with running_cluster(tmp_path / "waltz-data") as cluster:
        program = program.replace("127.0.0.1:7100", cluster.coordinator)
        for command, said in zip(commands(), SAID, strict=True):
            ran = run_waltz(*command, cwd=tmp_path)
            assert (ran.returncode, ran.stderr) == (0, ""), command
            assert said in ran.stdout
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    with sqlite3.connect(tmp_path / "accounts.db") as database:
        rows = database.execute("select * from account order by number").fetchall()
    assert rows == [(1, 50), (7, 1000)]


def test_the_commands_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^\$ make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
