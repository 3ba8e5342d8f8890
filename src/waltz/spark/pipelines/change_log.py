"""The changes of tables in SQLite: triggers write them into tables next to those that change.

So a change is in the database in the transaction that makes it, whichever program does. A commit of
a pipeline has a number, the ranges that it took in, and all changes since the commit before it. The
tables of a change log are made by a run whose definition asks for them, and are bounded.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final
from uuid import UUID, uuid4

from waltz.errors import ConfigurationError
from waltz.spark.codes import INVALID_TABLES
from waltz.spark.offsets import TransactionRange
from waltz.spark.pipelines.row_changes import (
    CommittedChanges,
    InTurn,
    Marks,
    Position,
    Row,
    RowChange,
    expect_same_table,
    not_a_place,
    present,
)
from waltz.spark.pipelines.tables import TableDefinition, columns_of
from waltz.spark.pipelines.target import TidiedTable
from waltz.types import PartitionId, TransactionId

LOG: Final = """
CREATE TABLE waltz_change_log (kept INTEGER NOT NULL, number INTEGER NOT NULL) STRICT;
CREATE TABLE waltz_changed_tables (
    name TEXT PRIMARY KEY, id TEXT NOT NULL, since INTEGER NOT NULL) STRICT;
CREATE TABLE waltz_commits (
    number INTEGER PRIMARY KEY, committed_at INTEGER NOT NULL, ranges TEXT NOT NULL) STRICT;
INSERT INTO waltz_change_log VALUES (0, 0)
"""
"""The bound and the number of the last commit; the tables whose changes are kept, each from the
commit after `since` on; the commits, with milliseconds since 1970."""

Ranges = list[tuple[PartitionId, TransactionId, TransactionId]]
"""The ranges of a commit: partitions with their first transaction, and the one after the last."""

_KNOWN: Final = "SELECT name FROM main.sqlite_schema WHERE type = ? AND name = ?"


class ChangeLog:
    """The change log of the database that a connection is of. All methods raise sqlite3.Error;
    those that write are called within a transaction."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    @property
    def is_kept(self) -> bool:
        return self._has("table", "waltz_change_log")

    def begin(self, definitions: Iterable[TableDefinition], kept: int) -> None:
        """Keep the changes of these tables from now on, at most `kept` of each and as many commits;
        those that are kept already go on."""
        if not self.is_kept:
            for statement in LOG.strip().split(";\n"):
                self._database.execute(statement)
        self._database.execute("UPDATE waltz_change_log SET kept = ?", (kept,))
        for each in definitions:
            # An earlier release may have replaced the table, and with it the triggers.
            is_followed = all(self._has("trigger", name) for name in _triggers(each.name))
            if self.table_id(each.name) is None or not is_followed:
                self.end([each.name])
                self._follow(each)

    def end(self, names: Collection[str] | None = None) -> None:
        """Keep the changes of these tables no longer, of all if None."""
        if not self.is_kept:
            return
        known = [name for (name,) in self._rows("SELECT name FROM waltz_changed_tables")]
        for name in known if names is None else names:
            for trigger in _triggers(name):
                self._database.execute(f"DROP TRIGGER IF EXISTS {_quoted(trigger)}")
            self._database.execute(f"DROP TABLE IF EXISTS {_changes(name)}")
            self._database.execute("DELETE FROM waltz_changed_tables WHERE name = ?", (name,))
        if names is None:
            for table in ("waltz_commits", "waltz_changed_tables", "waltz_change_log"):
                self._database.execute(f"DROP TABLE {table}")

    def commit(self, ranges: Iterable[TransactionRange]) -> None:
        """Note a commit that took in `ranges`, and let go of what exceeds the bound: the changes of
        the oldest commits, never some of the last one."""
        if not self.is_kept:
            return
        ((kept, last),) = self._rows("SELECT kept, number FROM waltz_change_log")
        number = last + 1
        text = json.dumps([(each.partition_id, each.first, each.end) for each in ranges])
        row = (number, time.time_ns() // 1_000_000, text)
        self._database.execute("INSERT INTO waltz_commits VALUES (?, ?, ?)", row)
        self._database.execute("UPDATE waltz_change_log SET number = ?", (number,))
        for name, since in self._rows("SELECT name, since FROM waltz_changed_tables"):
            # The rows of a change log are numbered without gaps, and go from the oldest on.
            over = self._rows(
                f"SELECT number FROM {_changes(name)}"
                f" WHERE rowid = (SELECT max(rowid) - ? FROM {_changes(name)})",
                (kept,),
            )
            until = max(number - kept, min(over[0][0], number - 1) if over else 0)
            if until > since:
                self._forget(name, until)
        self._forget_commits()

    def tidy(self, until_ms: int, *, delete: bool) -> list[TidiedTable]:
        """Find, and `delete`, the changes of the commits before the first one that is younger than
        `until_ms`, milliseconds since 1970: a clock may have been behind for a later one."""
        younger = "SELECT min(number) - 1 FROM waltz_commits WHERE committed_at > ?"
        asked = f"SELECT coalesce(({younger}), max(number)) FROM waltz_commits"
        ((until,),) = self._rows(asked, (until_ms,))
        found = []
        for name, since in self._rows("SELECT name, since FROM waltz_changed_tables ORDER BY name"):
            counted = f"SELECT count(*) FROM {_changes(name)} WHERE number <= ?"
            ((count,),) = self._rows(counted, (until or 0,))
            found.append(TidiedTable(name, (), 0, count))
            if delete and until is not None and until > since:
                self._forget(name, until)
        if delete:
            self._forget_commits()
        return found

    def table_id(self, name: str) -> UUID | None:
        """Return the ID of a table whose changes are kept; None: they are not."""
        found = self._rows("SELECT id FROM waltz_changed_tables WHERE name = ?", (name,))
        return UUID(found[0][0]) if found else None

    def expected_id(self, place: str, name: str) -> UUID:
        """Return the ID of a table. Raises ConfigurationError: its changes are not kept."""
        if not self.is_kept:
            raise ConfigurationError(
                f"{INVALID_TABLES} {place} keeps no changes; run the pipeline, with"
                " `changes: 1000000` in the definition"
            )
        table_id = self.table_id(name)
        if table_id is None:
            raise ConfigurationError(
                f"{INVALID_TABLES} {place}: table {name} was made anew, and its changes are kept"
                " from the next run on; run the pipeline"
            )
        return table_id

    def changes(
        self, place: str, definition: TableDefinition, now: Position, after: Position | None
    ) -> Iterator[CommittedChanges]:
        """Yield what each commit after a position has changed, in order; None: the whole table, as
        one commit of inserts. The table's changes are kept, and it is at `now`. Call it within a
        transaction that lasts as long. Raises ChangesMissingError."""
        names = ", ".join(map(_quoted, columns_of(definition)))
        if after is None:
            rows = self._database.execute(f"SELECT {names} FROM {_quoted(definition.name)}")
            turn = InTurn(RowChange("insert", None, row) for row in rows)
            yield CommittedChanges(now, turn)
            turn.end()
            return
        expect_same_table(place, after, now.table_id)
        reached = dict(after.marks)
        for number, ranges in self._commits_after(place, definition.name, now.marks, after.marks):
            reached |= {each: end for each, _, end in ranges}
            turn = InTurn(self._changes_of(definition, number))
            yield CommittedChanges(Position(now.table_id, present(reached)), turn)
            turn.end()

    def _commits_after(
        self, place: str, name: str, now: Marks, wanted: Marks
    ) -> list[tuple[int, Ranges]]:
        """Return the commits after the one that ended at the marks wanted, in order, with what each
        took in. Raises ChangesMissingError."""
        ((since,),) = self._rows("SELECT since FROM waltz_changed_tables WHERE name = ?", (name,))
        found: list[tuple[int, Ranges]] = []
        marks = dict(now)
        for number, text in self._rows(
            "SELECT number, ranges FROM waltz_commits WHERE number > ? ORDER BY number DESC",
            (since,),
        ):
            if marks == wanted:
                break
            ranges: Ranges = json.loads(text)
            found.append((number, ranges))
            marks = present(marks | {each: first for each, first, _ in ranges})
        if marks != wanted:
            raise not_a_place(place, wanted, now, is_tidied=_is_before(wanted, marks))
        return found[::-1]

    def _changes_of(self, definition: TableDefinition, number: int) -> Iterator[RowChange]:
        width = len(columns_of(definition))
        for _, kind, *values in self._database.execute(
            f"SELECT * FROM {_changes(definition.name)} WHERE number = ? ORDER BY rowid", (number,)
        ):
            before, after = tuple(values[:width]), tuple(values[width:])
            yield RowChange(
                kind,
                None if kind == "insert" else before,
                None if kind == "delete" else after,
            )

    def _follow(self, definition: TableDefinition) -> None:
        """Begin the changes of a table."""
        name, columns = definition.name, columns_of(definition)
        types = {each[1]: each[2] for each in self._rows(f"PRAGMA table_info({_quoted(name)})")}
        made = ", ".join(
            f"{_quoted(f'{side}_{each}')} {types[each]}"
            for side in ("before", "after")
            for each in columns
        )
        changes = _changes(name)
        old, new = (", ".join(f"{side}.{_quoted(each)}" for each in columns) for side in _SIDES)
        none = ", ".join("NULL" for _ in columns)
        next_number = "(SELECT number + 1 FROM waltz_change_log)"
        keys = [name for name, _ in definition.keys]
        same_key, same = (
            " AND ".join(f"OLD.{_quoted(each)} IS NEW.{_quoted(each)}" for each in names)
            for names in (keys, columns)
        )

        def put(kind: str, before: str, after: str) -> str:
            return f"INSERT INTO {changes} VALUES ({next_number}, '{kind}', {before}, {after});"

        inserted, updated, moved, deleted = map(_quoted, _triggers(name))
        for statement in (
            f"CREATE TABLE {changes} (number INTEGER NOT NULL, kind TEXT NOT NULL, {made}) STRICT",
            f"CREATE INDEX {_quoted(f'waltz_commits_of_{name}')} ON {changes} (number)",
        ):
            self._database.execute(statement)
        # No pipeline moves or deletes rows; other programs may.
        for trigger, event, actions in (
            (inserted, "INSERT ON {}", put("insert", none, new)),
            (updated, f"UPDATE ON {{}} WHEN {same_key} AND NOT ({same})", put("update", old, new)),
            (
                moved,
                f"UPDATE ON {{}} WHEN NOT ({same_key})",
                put("delete", old, none) + put("insert", none, new),
            ),
            (deleted, "DELETE ON {}", put("delete", old, none)),
        ):
            after = event.format(_quoted(name))
            self._database.execute(f"CREATE TRIGGER {trigger} AFTER {after} BEGIN {actions} END")
        self._database.execute(
            "INSERT INTO waltz_changed_tables SELECT ?, ?, number FROM waltz_change_log",
            (name, str(uuid4())),
        )

    def _forget(self, name: str, until: int) -> None:
        self._database.execute(f"DELETE FROM {_changes(name)} WHERE number <= ?", (until,))
        update = "UPDATE waltz_changed_tables SET since = ? WHERE name = ?"
        self._database.execute(update, (until, name))

    def _forget_commits(self) -> None:
        """Forget the commits of which no table has changes any more."""
        self._database.execute(
            "DELETE FROM waltz_commits"
            " WHERE number <= (SELECT min(since) FROM waltz_changed_tables)"
        )

    def _has(self, kind: str, name: str) -> bool:
        return bool(self._rows(_KNOWN, (kind, name)))

    def _rows(self, query: str, values: tuple[Any, ...] = ()) -> list[Row]:
        return self._database.execute(query, values).fetchall()


_SIDES: Final = ("OLD", "NEW")


def _is_before(wanted: Marks, oldest: Marks) -> bool:
    return all(mark <= oldest.get(each, 0) for each, mark in wanted.items())


def _triggers(name: str) -> tuple[str, str, str, str]:
    kinds = ("inserted", "updated", "moved", "deleted")
    first, second, third, fourth = (f"waltz_{kind}_in_{name}" for kind in kinds)
    return first, second, third, fourth


def _changes(name: str) -> str:
    return _quoted(f"waltz_changes_of_{name}")


def _quoted(name: str) -> str:
    return f'"{name}"'
