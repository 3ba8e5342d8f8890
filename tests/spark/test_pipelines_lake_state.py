"""The database's account of lake tables: batches are planned, then done."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from uuid import UUID

import pytest

from tests.spark.tables_by_value import batch, ranged
from waltz.errors import CorruptionError
from waltz.spark.pipelines.lake_state import LakeState, Plan, StateTable

NAME = "waltz_delta"


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as opened:
        yield opened


def test_a_batch_is_planned_then_done_and_counts_once(database: sqlite3.Connection) -> None:
    state = StateTable(database, NAME)
    state.begin(7)
    assert state.read("here") == LakeState(0, None, 7)
    ranges = [ranged(0, 5), ranged(3, 4, partition=2)]
    for number, history in enumerate((None, UUID(int=2))):
        state.note_plan(replace(batch([], ranges), history=history))
        found = state.read("here")
        assert found == LakeState(number, Plan(ranges, history), 7)
        assert found.plan is not None
        assert found.plan.ends == {0: 5, 2: 4}
        state.note_done()
        assert state.read("here") == LakeState(number + 1, None, 7)


def test_a_row_that_is_missing_or_there_twice_is_refused(database: sqlite3.Connection) -> None:
    state = StateTable(database, NAME)
    with pytest.raises(CorruptionError, match=r"^WALTZ-2015 here: waltz_delta has 0 rows.*rebuild"):
        state.read("here")
    state.begin(7)
    database.execute(f"INSERT INTO {NAME} SELECT * FROM {NAME}")
    with pytest.raises(CorruptionError, match=r"^WALTZ-2015 here: waltz_delta has 2 rows.*rebuild"):
        state.read("here")
