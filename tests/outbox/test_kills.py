"""Relays of real processes that are killed, with real databases and a real cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sql

from tests.outbox.judge import faults
from tests.outbox.kills import run

STRIKES = {"sqlite": 4, "postgresql": 3, "mysql": 3}
LONG_STRIKES = {"sqlite": 170, "postgresql": 165, "mysql": 165}


def test_committed_rows_get_into_the_log_once_although_relays_are_killed(
    database: sql.URL, tmp_path: Path
) -> None:
    strikes = STRIKES[database.get_backend_name()]
    counts = run(database, tmp_path, strikes, 7, print)
    assert sum(counts.values()) == strikes


@pytest.mark.long
@pytest.mark.timeout(1800)  # seven minutes beside other work
def test_committed_rows_get_into_the_log_once_under_hundreds_of_kills(
    database: sql.URL, tmp_path: Path
) -> None:
    strikes = LONG_STRIKES[database.get_backend_name()]
    counts = run(database, tmp_path, strikes, 8, print)
    assert sum(counts.values()) == strikes


COMMITTED = {("a", 1), ("a", 2), ("b", 1)}


def test_the_judge_sees_each_fault() -> None:
    assert faults([[("a", 1), ("a", 2)], [("b", 1)]], COMMITTED) == []
    assert faults([[("a", 1), ("a", 2)], [("b", 1), ("b", 1)]], COMMITTED)
    assert faults([[("a", 1), ("a", 2)], [("b", 1), ("b", 7)]], COMMITTED)
    assert faults([[("a", 1), ("a", 2)], []], COMMITTED)
    assert faults([[("a", 2), ("a", 1)], [("b", 1)]], COMMITTED)
    assert faults([[("a", 1)], [("b", 1), ("a", 2)]], COMMITTED)
