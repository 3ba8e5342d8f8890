"""What docs/start.md shows works as it stands there."""

from __future__ import annotations

import sqlite3
import sysconfig
from pathlib import Path

import pytest

from tests.site.following import INSTALL, UP, files, follow, steps, with_programs


@pytest.mark.processes
def test_the_page_of_five_minutes_is_true(tmp_path: Path) -> None:
    """PM-20, PM-40: ten deposits under one lock, submitted at once, each sees the one before; a
    restart of everything keeps everything."""
    went = follow(tmp_path, with_programs(Path(sysconfig.get_path("scripts"))))
    for shown, ran in zip(steps(), went, strict=True):
        assert shown.command == ran.command
        assert shown.says in (None, ran.says), shown.command
    status = next(step.says for step in went if step.command == "waltz status")
    assert status is not None
    assert "3 of 3" in status
    with sqlite3.connect(tmp_path / "accounts.db") as database:
        rows = database.execute("select * from account order by number").fetchall()
    assert rows == [(1, 50), (7, 2000)]


def test_the_steps_are_those_of_the_page() -> None:
    commands = [step.command for step in steps()]
    assert tuple(commands[:3]) == (*INSTALL, UP)
    assert commands.count(UP) == 2
    assert [*files()] == ["accounts.py"]
    assert [step.says for step in steps() if step.command == "python accounts.py"] == [
        "50 1000\n",
        "50 2000\n",
    ]
