"""The database's account of the tables of an open format: how many batches every table has, and
which batch a run has begun.

The tables commit one by one, so this row, not a table, says that a batch is whole.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from waltz.errors import CorruptionError
from waltz.spark.codes import INVALID_TABLES
from waltz.spark.offsets import TransactionRange
from waltz.spark.pipelines.table_store import Batch
from waltz.types import PartitionId, TransactionId

STATE: Final = """
CREATE TABLE {} (
    number INTEGER NOT NULL, ranges TEXT, history TEXT, buckets INTEGER NOT NULL) STRICT
"""
"""One row: the number of batches that every table has, the plan of the next one, if there is one,
and the number of buckets of each table, which never changes."""

_KNOWN: Final = "SELECT name FROM main.sqlite_schema WHERE type = 'table' AND name = ?"


@dataclass(frozen=True, slots=True)
class Plan:
    """A batch that a run has begun: its ranges, and the history of the log that they are of."""

    ranges: list[TransactionRange]
    history: UUID | None

    @property
    def ends(self) -> dict[PartitionId, TransactionId]:
        """The next transaction of each of its partitions once the batch is done."""
        return {each.partition_id: each.end for each in self.ranges}


@dataclass(frozen=True, slots=True)
class LakeState:
    """The row as it is now.

    number   the number of batches that every table has.
    plan     the next batch, which some tables may have already; None: no run is within a batch.
    buckets  the number of buckets of each table.
    """

    number: int
    plan: Plan | None
    buckets: int


class StateTable:
    """The table of that row in the database that a connection is of. All methods raise
    sqlite3.Error; those that write are called within a transaction."""

    def __init__(self, database: sqlite3.Connection, name: str) -> None:
        self._database = database
        self._name = name

    def begin(self, buckets: int) -> None:
        """Make the table: there is no batch yet."""
        self._database.execute(STATE.format(self._name))
        self._database.execute(f"INSERT INTO {self._name} VALUES (0, NULL, NULL, ?)", (buckets,))

    def read(self, place: str) -> LakeState:
        """Return the row; `place` is the database, as a message names it. Raises CorruptionError:
        there is none, or several."""
        found = []
        if self._database.execute(_KNOWN, (self._name,)).fetchone() is not None:
            asked = f"SELECT number, ranges, history, buckets FROM {self._name}"
            found = self._database.execute(asked).fetchall()
        if len(found) != 1:
            raise CorruptionError(
                f"{INVALID_TABLES} {place}: {self._name} has {len(found)} rows, expected 1;"
                " run `waltz pipeline rebuild`"
            )
        ((number, ranges, history, buckets),) = found
        if ranges is None:
            return LakeState(number, None, buckets)
        plan = [
            TransactionRange(PartitionId(partition), TransactionId(first), TransactionId(end))
            for partition, first, end in json.loads(ranges)
        ]
        return LakeState(number, Plan(plan, None if history is None else UUID(history)), buckets)

    def note_plan(self, batch: Batch) -> None:
        """Note that a run begins a batch."""
        ranges = [(each.partition_id, each.first, each.end) for each in batch.ranges]
        history = None if batch.history is None else str(batch.history)
        self._database.execute(
            f"UPDATE {self._name} SET ranges = ?, history = ?", (json.dumps(ranges), history)
        )

    def note_done(self) -> None:
        """Note that every table has the batch that was planned."""
        self._database.execute(
            f"UPDATE {self._name} SET number = number + 1, ranges = NULL, history = NULL"
        )
