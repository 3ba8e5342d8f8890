"""The database of derived tables: SQLite, so that other programs can read it while it grows.

New rows and the position in the log change in one database transaction, so a run may be killed at
any moment and every transaction counts exactly once. Owns the statements that join old rows with
new ones; knows nothing of Spark.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self
from uuid import UUID

from waltz import Histories
from waltz.errors import ConfigurationError, CorruptionError, NotFoundError, VersionConflictError
from waltz.spark.codes import (
    CLUSTER_CHANGED,
    DEFINITION_CHANGED,
    DIFFERENT,
    INVALID_TABLES,
    TABLES_CONFLICT,
)
from waltz.spark.followed_history import expect_history
from waltz.spark.offsets import TransactionRange
from waltz.spark.pipelines.change_log import ChangeLog
from waltz.spark.pipelines.row_changes import CommittedChanges, Position, identity, present
from waltz.spark.pipelines.tables import PLACES, Function, TableDefinition
from waltz.spark.pipelines.target import TableWritten, TidiedTable
from waltz.types import PartitionId, TransactionId

FORMAT: Final = 1
BUSY_SECONDS: Final = 10.0
"""Seconds that a run waits for another one to commit."""

META: Final = """
CREATE TABLE waltz_source (
    format INTEGER NOT NULL, cluster TEXT NOT NULL, definition TEXT NOT NULL) STRICT;
CREATE TABLE waltz_marks (
    partition INTEGER PRIMARY KEY, next_transaction_id INTEGER NOT NULL) STRICT;
CREATE TABLE waltz_blocks (
    partition INTEGER NOT NULL, block INTEGER NOT NULL, transactions INTEGER NOT NULL,
    digest TEXT NOT NULL, PRIMARY KEY (partition, block)) STRICT;
CREATE TABLE waltz_undecodable (
    partition INTEGER NOT NULL, transaction_id INTEGER NOT NULL, header INTEGER NOT NULL,
    data BLOB, PRIMARY KEY (partition, transaction_id)) STRICT;
"""

HISTORY_TABLE: Final = "CREATE TABLE IF NOT EXISTS waltz_history (history TEXT NOT NULL) STRICT"
"""Empty while the first history of a log is followed; databases of earlier releases lack it."""

REMEDY: Final = (
    "The tables are as they were. Rebuild them from the log of now with `waltz pipeline rebuild`"
)

BLOCK_TRANSACTIONS: Final = 10_000
"""Transactions per digest: the IDs of a block share their quotient by this number."""

_DIGESTS: Final = 1 << 64

_JOINS: Final[dict[Function, str]] = {
    "count": "{old} + {new}",
    "count_if": "{old} + {new}",
    "sum": "coalesce({old} + {new}, {old}, {new})",
    "min": "min(coalesce({old}, {new}), coalesce({new}, {old}))",
    "max": "max(coalesce({old}, {new}), coalesce({new}, {old}))",
    "first": "CASE WHEN {earlier} THEN {new} ELSE {old} END",
    "last": "CASE WHEN {later} THEN {new} ELSE {old} END",
}
"""The new value of a measure whose row exists already."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table and SQLite's type for it."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Layout:
    """A table and all its columns: keys, measures, places."""

    definition: TableDefinition
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a batch in one table; `values` in the order of the columns."""

    layout: Layout
    values: Sequence[tuple[Any, ...]]


class TableRows(Protocol):
    """The rows of a batch in one table, known or yet to be computed."""

    @property
    def layout(self) -> Layout: ...

    @property
    def values(self) -> Sequence[tuple[Any, ...]]: ...


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """A batch's part of one block: the number of transactions, and the sum of their hashes."""

    partition_id: PartitionId
    block: int
    transactions: int
    digest: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Transactions that become part of the tables at once."""

    ranges: Sequence[TransactionRange]
    blocks: Sequence[BlockFacts]
    tables: Sequence[TableRows]
    undecodable: Sequence[tuple[int, int, int, bytes | None]] = ()
    history: UUID | None = None
    """The history of the log to which the transactions belong; None: the first one."""
    confirm: Callable[[], None] = lambda: None
    """A last look at the log, once the rows are computed and before they count. Raises
    HistoryChangedError."""


@dataclass(frozen=True, slots=True)
class Joining:
    """Tables that become part of a target.

    names        tables that come, in the place of those that have their names.
    dropped      tables that go.
    before       the definition that the target has.
    after        the definition that the target has then.
    is_compared  the tables that come are made of the log, which must be that of the target.
    is_whole     no table of the target stays, so that what the new decoding puts aside counts.
    """

    names: Sequence[str]
    dropped: Sequence[str]
    before: str
    after: str
    is_compared: bool
    is_whole: bool


class TableStore:
    """The tables in one file; a context manager."""

    def __init__(self, path: Path, *, create: bool, changes: int | None = None) -> None:
        """Open the file, in which `prepare` lets at most this number of changes of each table be
        kept; None: no changes. Raises NotFoundError: there is none, and it is not to be made."""
        if not create and not path.exists():
            raise NotFoundError(f"{INVALID_TABLES} there is no database {path}; run the pipeline")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._changes_kept = changes
        self._prepared: str | None = None
        self._connect()

    def _connect(self) -> None:
        with self._errors_named():
            self._database = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            with self._errors_named():
                # Readers proceed while a run commits, and what is committed is on the disk.
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute("PRAGMA synchronous = FULL")
        except CorruptionError:
            self._database.close()
            raise

    @property
    def place(self) -> str:
        """The database, as a message names it."""
        return str(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def prepare(self, cluster_key: UUID, fingerprint: str, layouts: Iterable[Layout]) -> None:
        """Make the file the database of these tables of this cluster, or make sure that it is.

        Raises ConfigurationError: it is another's.
        """
        known = list(layouts)
        with self._transaction() as database:
            if not self._exists("waltz_source"):
                if self._exists():
                    raise ConfigurationError(
                        f"{INVALID_TABLES} {self.place} is a database that no pipeline made; name"
                        " another target"
                    )
                for statement in META.strip().split(";\n"):
                    database.execute(statement)
                row = (FORMAT, str(cluster_key), fingerprint)
                database.execute("INSERT INTO waltz_source VALUES (?, ?, ?)", row)
                for each in known:
                    create_table(database, each)
            self._expect(cluster_key, fingerprint)
            self._begin(database)
            if self._changes_kept is None:
                ChangeLog(database).end()
            else:
                definitions = [each.definition for each in known]
                ChangeLog(database).begin(definitions, self._changes_kept)
        self._prepared = fingerprint

    def _begin(self, database: sqlite3.Connection) -> None:
        """Note within the transaction of `prepare` what other kinds of targets must have from their
        beginning; the tables of SQLite need nothing more."""

    def definition(self) -> str | None:
        """Return the definition that the tables were made with; None: they are not made yet."""
        with self._errors_named():
            if not self._exists("waltz_source"):
                return None
            ((found,),) = self._rows("SELECT definition FROM waltz_source")
            return str(found)

    def buckets(self) -> int | None:
        """Return None: tables in SQLite have no buckets."""
        return None

    def settle(self) -> None:
        """Do nothing: SQLite takes tables whole."""

    def adopt(self, fresh: Self, joining: Joining) -> bool:
        """Put the tables of `fresh` among these, and note the new definition, all or nothing.
        Return False: these have more or less of the log than those by now.

        Raises ConfigurationError: the decoding puts other transactions aside; CorruptionError: the
        log was another one; VersionConflictError: another run was faster.
        """
        with self._errors_named():
            self._database.execute("ATTACH ? AS fresh", (str(fresh.path),))
        try:
            with self._transaction() as database:
                if not self._is_joinable(fresh, joining):
                    return False
                # Tables that are made anew are followed from the next `prepare` on.
                ChangeLog(database).end([*joining.names, *joining.dropped])
                for name in (*joining.names, *joining.dropped):
                    database.execute(f"DROP TABLE IF EXISTS main.{quoted(name)}")
                for name in joining.names:
                    made = (
                        "SELECT sql FROM fresh.sqlite_schema WHERE tbl_name = ? AND sql IS NOT NULL"
                        " ORDER BY rowid"
                    )
                    for (statement,) in database.execute(made, (name,)).fetchall():
                        database.execute(statement)
                    table = quoted(name)
                    database.execute(f"INSERT INTO main.{table} SELECT * FROM fresh.{table}")
                self._note_joined(database, fresh, joining)
        finally:
            self._database.execute("DETACH fresh")
        return True

    def note_definition(self, before: str, after: str) -> None:
        """Note the text of the same definition. Raises VersionConflictError: it is not `before`."""
        with self._transaction() as database:
            self._expect_definition(before)
            database.execute("UPDATE waltz_source SET definition = ?", (after,))

    def _is_joinable(self, fresh: TableStore, joining: Joining) -> bool:
        """Return whether `fresh` has as much of the log as these tables. Raises as `adopt`."""
        self._expect_definition(joining.before)
        if not joining.is_compared:
            return True
        if fresh.marks() != self.marks():
            return False
        ours, theirs = self.blocks(), fresh.blocks()
        if ours != theirs:
            partition, block = min(ours.items() ^ theirs.items())[0]
            first = block * BLOCK_TRANSACTIONS
            raise CorruptionError(
                f"{DIFFERENT} partition {partition}, transactions {first} to"
                f" {first + BLOCK_TRANSACTIONS - 1}: the log, or the archive, does not have what"
                f" {self.place} was made of; run `waltz pipeline verify` with the definition as it"
                " was"
            )
        self._expect_aside(fresh, is_whole=joining.is_whole)
        return True

    def _expect_aside(self, fresh: TableStore, *, is_whole: bool) -> None:
        """Check that `fresh` puts aside what these tables do, or, if it has all tables, no more."""
        before, now = ({row[:2] for row in each.undecodable_beyond({})} for each in (self, fresh))
        faults = [(now - before, "cannot be decoded any more, and is part of the tables")]
        if not is_whole:
            faults.append((before - now, "can be decoded now, and was put aside before"))
        for places, fault in faults:
            if places:
                partition, transaction_id = min(places)
                raise ConfigurationError(
                    f"{DEFINITION_CHANGED} {self.place}: with `decode` as it is now partition"
                    f" {partition}, transaction {transaction_id}, {fault}. Correct `decode`, or run"
                    " `waltz pipeline rebuild`, which derives all tables by it whatever it puts"
                    " aside"
                )

    def _note_joined(
        self, database: sqlite3.Connection, fresh: TableStore, joining: Joining
    ) -> None:
        """Note all that comes with the tables of `fresh`. Raises sqlite3.Error."""
        database.execute("UPDATE waltz_source SET definition = ?", (joining.after,))
        if joining.is_whole:
            database.execute("DELETE FROM waltz_undecodable")
            database.executemany(
                "INSERT INTO waltz_undecodable VALUES (?, ?, ?, ?)", fresh.undecodable_beyond({})
            )

    def _expect_definition(self, wanted: str) -> None:
        if self.definition() != wanted:
            raise VersionConflictError(
                f"{TABLES_CONFLICT} {self.place} was replaced meanwhile, or has another definition"
                " now; run again"
            )

    def expect(self, cluster_key: UUID, fingerprint: str | None = None) -> None:
        """Check the database's origin. Raises ConfigurationError: no such database, or another
        cluster's or definition's."""
        with self._errors_named():
            if not self._exists("waltz_source"):
                raise ConfigurationError(
                    f"{INVALID_TABLES} {self.place} has no derived tables; run the pipeline"
                )
            self._expect(cluster_key, fingerprint)

    def history(self) -> UUID | None:
        """Return the history of the log that was taken in last; None: the first one. Raises
        ConfigurationError: the table has something else."""
        if not self._exists("waltz_history"):
            return None  # made by an earlier release
        found = self._rows("SELECT * FROM waltz_history")
        try:
            return UUID(found[0][0]) if found else None
        except ValueError:
            raise ConfigurationError(
                f"{INVALID_TABLES} {self.place} names the history {found[0][0]!r:.80}; expected a"
                " UUID: run `waltz pipeline rebuild`"
            ) from None

    def expect_history(self, histories: Histories) -> None:
        """Check that the log has what was taken in. Raises HistoryChangedError: it was restored,
        and has others in the place of some."""
        who = f"the database {self.place}"
        expect_history(histories, self.history(), self.marks(), who=who, remedy=REMEDY)

    def marks(self) -> dict[PartitionId, TransactionId]:
        """Return the next transaction to take in of each partition."""
        return dict(self._rows("SELECT * FROM waltz_marks ORDER BY partition"))

    def planned(self) -> Mapping[PartitionId, TransactionId]:
        """Return the ends of the batch that a run has begun and not finished: none in SQLite, which
        takes a batch whole."""
        return {}

    def blocks(self) -> dict[tuple[int, int], tuple[int, str]]:
        """Return transactions and digest of each block, by partition and block."""
        found = self._rows("SELECT * FROM waltz_blocks ORDER BY partition, block")
        return {(partition, block): (count, digest) for partition, block, count, digest in found}

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let everything that is read in the block be of one moment, whatever runs commit."""
        with self._errors_named():
            self._database.execute("BEGIN")
            try:
                yield
            finally:
                self._database.execute("ROLLBACK")

    def rows(self, layout: Layout) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a table, in the order of its columns."""
        with self._errors_named():
            yield from table_rows(self._database, layout)

    def last_mentioned(self, table: str) -> list[tuple[int, int]]:
        """Return partitions with their last transaction that the rows of a table mention."""
        partition, last = (
            ("partition", "transaction_id")
            if table == "waltz_undecodable"
            else ("last_partition", "last_transaction_id")
        )
        with self._errors_named():
            return self._rows(f"SELECT {partition}, max({last}) FROM {quoted(table)} GROUP BY 1")

    def undecodable(self, partition: int, first: int, end: int) -> list[tuple[Any, ...]]:
        """Return the transactions put aside of a range, in order."""
        with self._errors_named():
            return self._database.execute(
                "SELECT * FROM waltz_undecodable WHERE partition = ? AND transaction_id >= ?"
                " AND transaction_id < ? ORDER BY transaction_id",
                (partition, first, end),
            ).fetchall()

    def undecodable_beyond(self, ends: Mapping[PartitionId, int]) -> Iterator[tuple[Any, ...]]:
        """Yield the transactions put aside that are outside of all partitions to `ends`."""
        with self._errors_named():
            for row in self._database.execute(
                "SELECT * FROM waltz_undecodable ORDER BY partition, transaction_id"
            ):
                if not 0 <= row[1] < ends.get(row[0], 0):
                    yield row

    def add(self, batch: Batch) -> dict[str, TableWritten]:
        """Join `batch` with the present rows, all or nothing. Return what was written to each.

        Raises VersionConflictError: another run has taken in the same transactions meanwhile;
        CorruptionError: the database does not take it (a sum beyond 64 bits, a full disk).
        """
        # Other runs do not wait for what Spark has yet to compute.
        tables = [Rows(each.layout, each.values) for each in batch.tables]
        batch.confirm()
        with self._transaction() as database:
            self._expect_start(batch.ranges)
            for rows in tables:
                join_rows(database, rows)
            self._add_facts(database, batch)
            ChangeLog(database).commit(batch.ranges)
        return {each.layout.definition.name: TableWritten(len(each.values)) for each in tables}

    def changes(
        self, definition: TableDefinition, after: Position | None
    ) -> Iterator[CommittedChanges]:
        """Yield what each commit after a position has changed in a table, in order; None: the whole
        table, as one commit of inserts.

        Raises ChangesMissingError; ConfigurationError: the changes of this table are not kept.
        """
        # With a connection of its own: a reader may leave off, or ask twice at a time.
        with TableStore(self.path, create=False) as reader, reader.snapshot():
            log = ChangeLog(reader._database)
            table_id = log.expected_id(self.place, definition.name)
            place = f"{self.place}, table {definition.name},"
            now = Position(identity(table_id, reader.history()), present(reader.marks()))
            yield from log.changes(place, definition, now, after)

    def tidy(self, retention_hours: int, *, delete: bool) -> list[TidiedTable]:
        """Find, and `delete`, the changes that are older than the last hours. Return them per
        table."""
        until = time.time_ns() // 1_000_000 - retention_hours * 3_600_000
        with self._transaction() as database:
            log = ChangeLog(database)
            return log.tidy(until, delete=delete) if log.is_kept else []

    def _expect_start(self, ranges: Iterable[TransactionRange]) -> None:
        """Check that `ranges` begin at the marks, and that the definition is still that of
        `prepare`. Raises VersionConflictError."""
        if self._prepared is not None:
            self._expect_definition(self._prepared)
        marks = self.marks()
        for each in ranges:
            if marks.get(each.partition_id, 0) != each.first:
                raise VersionConflictError(
                    f"{TABLES_CONFLICT} {self.place} has partition {each.partition_id} to"
                    f" {marks.get(each.partition_id, 0) - 1}, not to {each.first - 1}: another"
                    " run has added to it; run again"
                )

    def _add_facts(self, database: sqlite3.Connection, batch: Batch) -> None:
        """Note all of a batch except the rows of its tables. Raises sqlite3.Error."""
        self._follow(database, batch.history)
        self._add_blocks(database, batch.blocks)
        database.executemany("INSERT INTO waltz_undecodable VALUES (?, ?, ?, ?)", batch.undecodable)
        database.executemany(
            "INSERT OR REPLACE INTO waltz_marks VALUES (?, ?)",
            [(each.partition_id, each.end) for each in batch.ranges],
        )

    def _follow(self, database: sqlite3.Connection, history: UUID | None) -> None:
        """Note, in the transaction that takes in what is new, of which history that is."""
        if history == self.history():
            return
        database.execute(HISTORY_TABLE)
        database.execute("DELETE FROM waltz_history")
        if history is not None:
            database.execute("INSERT INTO waltz_history VALUES (?)", (str(history),))

    def replace_by(self, other: TableStore) -> None:
        """Put the tables of `other` in the place of these, at once for every reader."""
        with self._errors_named():
            self._database.execute("ATTACH ? AS fresh", (str(other.path),))
        try:
            with self._transaction() as database:
                for (name,) in self._rows(_TABLES.format("main")):
                    database.execute(f"DROP TABLE {quoted(name)}")
                made = "SELECT sql FROM fresh.sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid"
                for (statement,) in self._rows(made):
                    database.execute(statement)
                for (name,) in self._rows(_TABLES.format("fresh")):
                    table = quoted(name)
                    database.execute(f"INSERT INTO main.{table} SELECT * FROM fresh.{table}")
        finally:
            self._database.execute("DETACH fresh")

    def _add_blocks(self, database: sqlite3.Connection, blocks: Iterable[BlockFacts]) -> None:
        for each in blocks:
            place = each.partition_id, each.block
            known = database.execute(
                "SELECT transactions, digest FROM waltz_blocks WHERE partition = ? AND block = ?",
                place,
            ).fetchone()
            count, digest = known or (0, "0")
            database.execute(
                "INSERT OR REPLACE INTO waltz_blocks VALUES (?, ?, ?, ?)",
                (
                    *place,
                    count + each.transactions,
                    f"{(int(digest, 16) + each.digest) % _DIGESTS:x}",
                ),
            )

    def _expect(self, cluster_key: UUID, fingerprint: str | None) -> None:
        ((form, cluster, definition),) = self._rows("SELECT * FROM waltz_source")
        if form != FORMAT:
            raise ConfigurationError(
                f"{INVALID_TABLES} {self.place} has format {form}; this release reads {FORMAT}"
            )
        if cluster != str(cluster_key):
            raise ConfigurationError(
                f"{CLUSTER_CHANGED} {self.place} is of cluster {cluster}; the address leads to"
                f" {cluster_key}. Give that cluster's address, or tables in another place"
            )
        if fingerprint is not None and definition != fingerprint:
            raise ConfigurationError(
                f"{DEFINITION_CHANGED} {self.place} was made with another definition of its tables;"
                " run `waltz pipeline rebuild`"
            )

    def _exists(self, name: str | None = None) -> bool:
        """Return whether there is a table of that name, or any."""
        found = [each for (each,) in self._rows(_TABLES.format("main"))]
        return bool(found) if name is None else name in found

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        return self._database.execute(query).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._errors_named():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:  # a full disk has ended it already
                    self._database.execute("ROLLBACK")
                raise

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise CorruptionError(f"{INVALID_TABLES} {self.place}: {error}") from error


_TABLES: Final = "SELECT name FROM {}.sqlite_schema WHERE type = 'table' ORDER BY rowid"


def create_table(database: sqlite3.Connection, layout: Layout) -> None:
    """Make a table without rows. Raises sqlite3.Error."""
    name = layout.definition.name
    columns = ", ".join(f"{quoted(each.name)} {each.type}" for each in layout.columns)
    database.execute(f"CREATE TABLE {quoted(name)} ({columns}) STRICT")
    database.execute(
        f"CREATE UNIQUE INDEX {quoted('waltz_keys_of_' + name)}"
        f" ON {quoted(name)} ({_identity(layout.definition)})"
    )


def join_rows(database: sqlite3.Connection, rows: Rows) -> None:
    """Join the rows of a batch with those of their table. Raises sqlite3.Error: a sum beyond 64
    bits."""
    definition, table = rows.layout.definition, quoted(rows.layout.definition.name)
    taken = ", ".join(
        [
            *(
                f"{quoted(each.name)} = {_joined(table, each.name, each.function)}"
                for each in definition.measures
            ),
            *(
                f"{name} = {_joined(table, name, 'last' if name in PLACES[2:] else 'first')}"
                for name in PLACES
            ),
        ]
    )
    names = ", ".join(quoted(each.name) for each in rows.layout.columns)
    places = ", ".join("?" for _ in rows.layout.columns)
    database.executemany(
        f"INSERT INTO {table} ({names}) VALUES ({places})"
        f" ON CONFLICT ({_identity(definition)}) DO UPDATE SET {taken}",
        rows.values,
    )


def table_rows(database: sqlite3.Connection, layout: Layout) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table, in the order of its columns. Raises sqlite3.Error."""
    names = ", ".join(quoted(each.name) for each in layout.columns)
    yield from database.execute(f"SELECT {names} FROM {quoted(layout.definition.name)}")


def _identity(definition: TableDefinition) -> str:
    """Return the expression that identifies rows: SQLite takes two NULLs for different, and a key
    may be one."""
    return ", ".join(f"ifnull({quoted(name)}, x'')" for name, _ in definition.keys)


def _joined(table: str, name: str, function: Function) -> str:
    def compared(sign: str, end: str) -> str:
        new, old = (
            f"({side}.{end}_transaction_id, {side}.{end}_partition)" for side in ("excluded", table)
        )
        return f"{new} {sign} {old}"

    return _JOINS[function].format(
        old=f"{table}.{quoted(name)}",
        new=f"excluded.{quoted(name)}",
        earlier=compared("<", "first"),
        later=compared(">", "last"),
    )


def quoted(name: str) -> str:
    """Return a name as it stands in a statement."""
    return f'"{name}"'
