"""Chaos on real processes, short enough for every day."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.storm import storm
from tests.live.faults import Deed

pytestmark = pytest.mark.processes

SECONDS_MAX = 280.0


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.chaos", *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def test_every_context_ends_once_whatever_becomes_of_its_connections(tmp_path: Path) -> None:
    """LC-48, LC-49, LC-54, LC-71, LC-72: nothing twice, no wrong verdict, and every question what
    became of an append has its answer."""
    path = tmp_path / "result.json"
    done = run("--schedules", "8", "--seed", "1", "--lanes", "2", "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(path.read_text())
    assert result["violations"] == 0
    assert result["schedules"] == 8
    assert {*result["befallen"]} == {deed.name for deed in Deed}
    assert result["contexts"] == sum(result["verdicts"].values())
    assert result["verdicts"]["COMMITTED"] > 0
    assert result["outcomes"] > 0


def test_a_schedule_can_be_looked_at() -> None:
    done = run("--seed", "1", "--only", "5", "--show")
    assert json.loads(done.stdout)["number"] == 5


@pytest.mark.long
def test_a_hundred_clients_of_a_server_that_is_away_try_no_more_often_than_they_may(
    tmp_path: Path,
) -> None:
    """LC-64: and all come back."""
    found = asyncio.run(
        storm(tmp_path / "run", down_seconds=4.0, restore_seconds=0.5, reconnect_seconds_max=2.0)
    )
    assert found.clients <= sum(found.attempts) <= found.attempts_max
