"""A copy of a table that knows nothing but the table's changes, and the truth it must come to."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.clusters import ROOT
from tests.spark.killed_tables import PER_BATCH, event
from tests.spark.tables_by_value import LAYOUT, folded
from waltz.spark.pipelines.delta_tables import DeltaTables
from waltz.spark.pipelines.iceberg_tables import IcebergTables
from waltz.spark.pipelines.row_changes import CommittedChanges, Position, RowChange
from waltz.spark.pipelines.table_store import TableStore
from waltz.spark.pipelines.tables import TableDefinition
from waltz.spark.pipelines.target import DerivedTables

BATCH_SECONDS = {"sqlite": 0.01, "delta": 0.1, "iceberg": 0.1}
"""The time that a batch takes, about; more or less only makes some kills alike."""

Row = tuple[Any, ...]
TruthAt = Callable[[Mapping[Any, int]], Iterable[Row]]
"""The rows of a table that has taken in the log to these marks."""


class Mirror:
    """The rows by their keys, and the position of the last commit."""

    def __init__(self, key_width: int, rows: Iterable[Row] = ()) -> None:
        self._width = key_width
        self.rows = {row[:key_width]: row for row in rows}
        self.position: Position | None = None

    def take(self, commit: CommittedChanges) -> None:
        """Apply the changes of a commit. Raises AssertionError: a change is not one of these rows,
        or a row is changed twice."""
        changed = set()
        for change in commit.changes:
            row = change.before if change.after is None else change.after
            assert row is not None
            key = row[: self._width]
            assert key not in changed, f"{key} is changed twice by one commit"
            changed.add(key)
            self._apply(key, change)
        self.position = commit.position

    def _apply(self, key: Row, change: RowChange) -> None:
        assert change.before == self.rows.get(key), "the row before is the one that was there"
        assert change.before != change.after, "a change changes something"
        kinds = {(True, False): "insert", (False, False): "update", (False, True): "delete"}
        assert change.kind == kinds[change.before is None, change.after is None]
        if change.after is None:
            del self.rows[key]
        else:
            assert change.after[: self._width] == key
            self.rows[key] = change.after


def follow(
    mirror: Mirror, store: DerivedTables, definition: TableDefinition, truth_at: TruthAt
) -> int:
    """Apply what the mirror does not have yet; return the number of commits.

    Raises AssertionError: after some commit the mirror is not the truth.
    """
    count = 0
    for commit in store.changes(definition, mirror.position):
        mirror.take(commit)
        width = len(definition.keys)
        wanted = {row[:width]: row for row in truth_at(commit.position.marks)}
        assert mirror.rows == wanted, commit.position
        count += 1
    return count


def expect_exact_changes(
    store: DerivedTables, definition: TableDefinition, truth_at: TruthAt
) -> int:
    """Follow a table from its beginning, and from each commit on; return the number of commits.

    Raises AssertionError: after some commit the copy is not the truth.
    """
    width = len(definition.keys)
    whole = Mirror(width)
    follow(whole, store, definition, truth_at)
    assert whole.position is not None
    start = Position(whole.position.table_id, {})
    starts = [start, *(each.position for each in store.changes(definition, start))]
    assert starts[-1] == whole.position
    for number, place in enumerate(starts):
        mirror = Mirror(width, truth_at(place.marks))
        mirror.position = place
        assert follow(mirror, store, definition, truth_at) == len(starts) - 1 - number
        assert mirror.position == starts[-1]
    return len(starts) - 1


def followed_under_kills(kind: type[TableStore], path: Path, kills: int, batches: int) -> None:
    """Kill a process that takes in batches, and after each death follow its table.

    Raises AssertionError: a change is missing, or there twice.
    """
    lake = {DeltaTables: "delta", IcebergTables: "iceberg"}
    name = next((name for each, name in lake.items() if issubclass(kind, each)), "sqlite")
    command = (sys.executable, "-m", "tests.spark.killed_tables", name, str(path), str(batches))
    definition = LAYOUT.definition
    chance = random.Random(5)
    mirror, count = Mirror(len(definition.keys)), 0

    def truth_at(reached: Mapping[Any, int]) -> list[Row]:
        return folded([event(each) for each in range(reached.get(0, 0))])

    for _ in range(kills):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(chance.randrange(1, 3)):
                process.stdout.readline()
            time.sleep(chance.uniform(0.0, BATCH_SECONDS[name]))  # anywhere within a batch
            process.send_signal(signal.SIGKILL)
        with kind(path, create=False) as store:
            count += follow(mirror, store, definition, truth_at)
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    with kind(path, create=False) as store:
        count += follow(mirror, store, definition, truth_at)
        assert mirror.position is not None
        assert mirror.position.marks == {0: batches * PER_BATCH}
        start = replace(mirror.position, marks={})
        ends = [each.position.marks for each in store.changes(definition, start)]
    assert ends == [{0: (each + 1) * PER_BATCH} for each in range(batches)]
    assert 1 < count <= batches, "the first is the whole table, and each later one a commit"
