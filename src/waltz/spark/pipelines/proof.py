"""Proves derived tables: folds the log in another way than the run, and compares everything.

Spark reads, decodes and computes expressions row by row; everything after that, which a run leaves
to Spark's aggregates and SQLite's joins, is done here in plain Python: each task folds its rows
(`fold.py`), the driver merges the states of tasks. The comparison is with one moment of the
database: every row of every table, the digests, the marks, and what was put aside.
"""

from __future__ import annotations

import json
import pickle
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from waltz import Histories
from waltz.errors import CorruptionError
from waltz.spark.codes import DIFFERENT, INVALID_TABLES, UNDECODABLE
from waltz.spark.offsets import TransactionRange
from waltz.spark.pipelines.definition import PipelineDefinition
from waltz.spark.pipelines.definition_change import expect_same
from waltz.spark.pipelines.extent import Extent, StatedExtent, different_blocks, extent_of
from waltz.spark.pipelines.fold import UNDECODABLE as UNDECODABLE_TABLE
from waltz.spark.pipelines.fold import (
    ColumnDifference,
    RowPlace,
    State,
    StoredValue,
    TableDifference,
    WrongRow,
    differs,
    explained,
    merged,
    started,
    stored,
)
from waltz.spark.pipelines.frames import CORRUPT, DIGEST, decoded, judged_layouts, kept, read_log
from waltz.spark.pipelines.open_tables import open_tables
from waltz.spark.pipelines.staging import scratch_directory
from waltz.spark.pipelines.table_store import BLOCK_TRANSACTIONS, Layout
from waltz.spark.pipelines.tables import TableDefinition, TablesDefinition
from waltz.spark.pipelines.target import DerivedTables
from waltz.spark.progress import is_beyond
from waltz.spark.tasks import LogAccess
from waltz.types import PartitionId, TransactionId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_TRANSACTIONS: Final = 299_993
"""Transactions that are folded at once: a prime, so that batches end elsewhere than a run's."""

ROWS_EXPLAINED_MAX: Final = 10
"""Rows of one table whose transactions are looked through one by one; others are counted."""

ROWS_KEPT_MAX: Final = 10_000
"""Wrong rows of one table that are kept until the first of them are explained."""

BLOCKS_OF: Final = -1
ASIDE_OF: Final = -2
"""The table number of fold rows that stand for transactions put aside."""

PARTIAL: Final = "item int, key string, content binary"
"""The result of a task: the number of the table, the key of the row, and a pickled state."""

HISTORY: Final = "key string, transaction_id bigint, partition int, position int, content binary"


@dataclass(frozen=True, slots=True)
class ProofReport:
    """The extent of a comparison, and every difference that was found.

    more  the number of further rows that differ, by the name of their table.
    """

    transactions: int
    undecodable: int
    differences: tuple[TableDifference, ...] = ()
    more: Mapping[str, int] = field(default_factory=dict)


def verify(spark: SparkSession, access: LogAccess, definition: PipelineDefinition) -> ProofReport:
    """Fold the log as far as the tables go, and compare all of the database with the result.

    Raises ConfigurationError: the definition is wrong, or the tables are another's; NotFoundError:
    there are no tables, or the log is shorter than what was taken in; CorruptionError: a
    transaction cannot be decoded and is not to be put aside, or the database is damaged.
    """
    histories, ends = _log_ends(access)
    assert definition.tables is not None
    with (
        open_tables(definition, create=False) as store,
        store.snapshot(),
        _scratch(definition.target) as scratch,
    ):
        store.expect(histories.cluster_key)
        made_with = store.definition()
        assert made_with is not None
        expect_same(made_with, definition.tables.fingerprint(), store.place)
        store.expect_history(histories)
        proof = _Proof(spark, definition, definition.tables, scratch)
        layouts = judged_layouts(spark, definition.tables)
        claims = _claims(store, layouts)
        if is_beyond(claims.marks, ends):  # a run has taken in more since the log was asked
            _, ends = _log_ends(access)
        extent = extent_of(claims, ends, proof.digest_of)
        return proof.compare(store, layouts, extent)


def _log_ends(access: LogAccess) -> tuple[Histories, dict[PartitionId, TransactionId]]:
    with access.opened() as log:
        marks = log.high_water_marks(range(log.partition_count))
        return log.histories, {each: TransactionId(mark + 1) for each, mark in marks.items()}


def _claims(store: DerivedTables, layouts: Sequence[Layout]) -> StatedExtent:
    mentioned: dict[int, int] = {}
    for table in (*(each.definition.name for each in layouts), UNDECODABLE_TABLE):
        for partition, last in store.last_mentioned(table):
            mentioned[partition] = max(mentioned.get(partition, 0), last + 1)
    return StatedExtent(dict(store.marks()), store.blocks(), mentioned)


@contextmanager
def _scratch(beside: Path) -> Iterator[sqlite3.Connection]:
    """Yield a database that is deleted after the block, for data that does not fit into memory.

    Raises CorruptionError: it takes no more, since the disk is full.
    """
    with scratch_directory(beside) as directory:
        database = sqlite3.connect(directory / "fold.db", isolation_level=None)
        try:
            database.execute("PRAGMA journal_mode = OFF")
            database.execute("PRAGMA synchronous = OFF")
            database.execute(
                "CREATE TABLE fold (item INTEGER, key TEXT, content BLOB, PRIMARY KEY (item, key))"
                " WITHOUT ROWID"
            )
            database.execute(
                "CREATE TABLE history (key TEXT, transaction_id INTEGER, partition INTEGER,"
                " position INTEGER, content BLOB,"
                " PRIMARY KEY (key, transaction_id, partition, position)) WITHOUT ROWID"
            )
            yield database
        except sqlite3.Error as error:
            raise CorruptionError(
                f"{INVALID_TABLES} the database of the verify in {beside.parent}: {error}"
            ) from error
        finally:
            database.close()


def batches(
    ends: Mapping[PartitionId, TransactionId], size: int
) -> Iterator[list[TransactionRange]]:
    """Yield the transactions before `ends` in batches, one partition after the other."""
    batch: list[TransactionRange] = []
    room = size
    for partition_id, end in sorted(ends.items()):
        first = TransactionId(0)
        while first < end:
            stop = TransactionId(min(end, first + room))
            batch.append(TransactionRange(partition_id, first, stop))
            room -= stop - first
            first = stop
            if not room:
                yield batch
                batch, room = [], size
    if batch:
        yield batch


@dataclass
class _Proof:
    spark: SparkSession
    definition: PipelineDefinition
    tables: TablesDefinition
    scratch: sqlite3.Connection

    def _frame(self, ranges: Sequence[TransactionRange]) -> DataFrame:
        return decoded(read_log(self.spark, self.definition, ranges), self.tables)

    def digest_of(self, wanted: TransactionRange) -> str:
        """Return the digest of some transactions of one block, as the log has them."""
        rows = _collected(_blocks_of(self._frame([wanted])))
        return f"{sum(digest for _, _, (_, digest) in rows) % (1 << 64):x}"

    def compare(
        self, store: DerivedTables, layouts: Sequence[Layout], extent: Extent
    ) -> ProofReport:
        """Fold as far as `extent` goes; return the differences."""
        folded: dict[tuple[int, int], tuple[int, int]] = {}
        aside = _Aside(store, extent.ends)
        for ranges in batches(extent.ends, BATCH_TRANSACTIONS):
            self._fold(ranges, folded, aside)
        digests = {each: (count, f"{digest:x}") for each, (count, digest) in folded.items()}
        blocks = list(different_blocks(store.blocks(), digests))
        places = {(each.key["partition"], each.key["block"]) for each in blocks}
        differences: list[TableDifference] = [*extent.differences, *blocks]
        more = {}
        for index, layout in enumerate(layouts):
            wrong, count = self._wrong_rows(store, index, layout)
            differences += self._explained(index, layout, wrong, extent, places)
            if count > len(wrong):
                more[layout.definition.name] = count - len(wrong)
        differences += aside.finish()
        transactions = sum(extent.ends.values())
        return ProofReport(transactions, aside.count, tuple(differences), more)

    def _fold(
        self,
        ranges: Sequence[TransactionRange],
        folded: dict[tuple[int, int], tuple[int, int]],
        aside: _Aside,
    ) -> None:
        """Add a batch to what was folded. Raises CorruptionError: a gap, undecodable data."""
        with kept(self.spark, self._frame(ranges)) as frame:
            seen = 0
            for _, key, (count, digest) in _collected(_blocks_of(frame)):
                partition, block = json.loads(key)
                before = folded.get((partition, block), (0, 0))
                folded[partition, block] = (before[0] + count, (before[1] + digest) % (1 << 64))
                seen += count
            put_aside: list[tuple[Any, ...]] = []
            good = frame
            if CORRUPT in frame.columns:
                put_aside = sorted(row for _, _, row in _collected(_aside_of(frame)))
                good = frame.where(f"{CORRUPT} IS NULL")
            for index, table in enumerate(self.tables.tables):
                part = _table_of(good, table).mapInArrow(_Folding(index, table), PARTIAL)
                with _transaction(self.scratch):
                    for item, key, state in _collected(part):
                        self._merge(item, key, state)
        if seen != sum(each.row_count for each in ranges):
            raise CorruptionError(
                f"{DIFFERENT} read {seen} transactions of {sum(e.row_count for e in ranges)}"
            )
        if put_aside and not self.tables.decoding.quarantine:
            partition, transaction_id, header, data = put_aside[0]
            raise CorruptionError(
                f"{UNDECODABLE} partition {partition}, transaction {transaction_id}, header"
                f" {header}: the data is {data!r:.80}; no run could have taken it"
                " in with this definition"
            )
        aside.compare(ranges, put_aside)

    def _merge(self, item: int, key: str, content: State) -> None:
        functions = [each.function for each in self.tables.tables[item].measures]
        row = self.scratch.execute(
            "SELECT content FROM fold WHERE item = ? AND key = ?", (item, key)
        ).fetchone()
        if row is not None:
            content = merged(functions, _unpickled(row[0]), content)
        self.scratch.execute(
            "INSERT OR REPLACE INTO fold VALUES (?, ?, ?)", (item, key, pickle.dumps(content))
        )

    def _wrong_rows(
        self, store: DerivedTables, index: int, layout: Layout
    ) -> tuple[list[WrongRow], int]:
        """Return the first wrong rows of a table, and how many there are."""
        wrong: list[WrongRow] = []
        count = 0

        def found(row: WrongRow) -> None:
            nonlocal count
            count += 1
            wrong.append(row)
            if len(wrong) > ROWS_KEPT_MAX:
                wrong.sort(key=lambda each: each.place)
                del wrong[ROWS_EXPLAINED_MAX:]

        width = len(layout.definition.keys)
        with _transaction(self.scratch):
            for values in store.rows(layout):
                key, rest = values[:width], values[width:]
                text = key_text(key)
                row = self.scratch.execute(
                    "DELETE FROM fold WHERE item = ? AND key = ? RETURNING content", (index, text)
                ).fetchone()
                expected = None if row is None else _unpickled(row[0])
                if expected is None or differs(expected, rest):
                    found(WrongRow(key, expected, rest))
        for text, content in self.scratch.execute(
            "SELECT key, content FROM fold WHERE item = ?", (index,)
        ):
            found(WrongRow(tuple(json.loads(text)), _unpickled(content), None))
        wrong.sort(key=lambda each: each.place)
        return wrong[:ROWS_EXPLAINED_MAX], count

    def _explained(
        self,
        index: int,
        layout: Layout,
        wrong: Sequence[WrongRow],
        extent: Extent,
        blocks: Collection[tuple[StoredValue, StoredValue]],
    ) -> Iterator[TableDifference]:
        """Yield, for each wrong row, its difference and the transaction from which on it
        differs."""
        parted = {
            key_text(each.key): each
            for each in wrong
            if each.expected is not None and each.found is not None
        }
        self.scratch.execute("DELETE FROM history")
        if parted:
            self._read_history(index, parted, extent)
        table = layout.definition
        for row in wrong:
            yield explained(
                row,
                table.name,
                [name for name, _ in table.keys],
                {each.name: each.function for each in table.measures},
                self._history(row.key),
                [
                    place
                    for place, _ in groupby(
                        self._history(row.key), key=lambda each: RowPlace(*each[0][:2])
                    )
                    if blocks
                    and (place.partition, place.transaction_id // BLOCK_TRANSACTIONS) in blocks
                ],
            )

    def _history(self, key: Sequence[StoredValue]) -> Iterator[tuple[RowPlace, tuple[Any, ...]]]:
        """Yield the rows that make up a row of the table, in the order of their places."""
        for *place, content in self.scratch.execute(
            "SELECT transaction_id, partition, position, content FROM history"
            " WHERE key = ? ORDER BY transaction_id, partition, position",
            (key_text(key),),
        ):
            yield RowPlace(*place), _unpickled(content)

    def _read_history(self, index: int, rows: Mapping[str, WrongRow], extent: Extent) -> None:
        """Put the history of some rows of a table into the scratch database, between their ends."""
        states = [each.expected for each in rows.values() if each.expected is not None]
        first = min(each.first.transaction_id for each in states)
        last = max(each.last.transaction_id for each in states)
        table = self.tables.tables[index]
        for ranges in batches(extent.ends, BATCH_TRANSACTIONS):
            cut = [
                TransactionRange(
                    each.partition_id,
                    TransactionId(max(each.first, first)),
                    TransactionId(min(each.end, last + 1)),
                )
                for each in ranges
            ]
            wanted = [each for each in cut if each.first < each.end]
            if not wanted:
                continue
            frame = self._frame(wanted)
            if CORRUPT in frame.columns:
                frame = frame.where(f"{CORRUPT} IS NULL")
            found = _table_of(frame, table).mapInArrow(_Finding(table, frozenset(rows)), HISTORY)
            with _transaction(self.scratch):
                self.scratch.executemany(
                    "INSERT INTO history VALUES (?, ?, ?, ?, ?)",
                    zip(*(each.to_pylist() for each in found.toArrow().columns), strict=True),
                )


def _table_of(frame: DataFrame, table: TableDefinition) -> DataFrame:
    """Return a row per transaction or element: its place, its keys and the arguments of
    measures."""
    position = "0"
    if table.each is not None:
        frame = frame.selectExpr("*", f"posexplode({table.each}) AS (waltz_position, element)")
        position = "waltz_position"
    if table.where is not None:
        frame = frame.where(table.where)
    return frame.selectExpr(
        "transaction_id AS waltz_t",
        "partition AS waltz_p",
        f"{position} AS waltz_n",
        *(f"{text} AS waltz_k{number}" for number, (_, text) in enumerate(table.keys)),
        *(
            f"{'1' if each.expression == '*' else each.expression} AS waltz_v{number}"
            for number, each in enumerate(table.measures)
        ),
    )


def key_text(key: Sequence[StoredValue]) -> str:
    """Return a text that only the same key has."""
    return json.dumps(key)


@dataclass(frozen=True)
class _Rows:
    """Rows as `_table_of` returns them: key, place and values."""

    table: TableDefinition

    def of(self, batch: Any) -> Iterator[tuple[str, RowPlace, tuple[Any, ...]]]:
        columns = [_in_utc(column).to_pylist() for column in batch.columns]
        width = 3 + len(self.table.keys)
        texts: dict[tuple[Any, ...], str] = {}
        values = zip(*columns[width:], strict=True) if columns[width:] else ((),) * len(batch)
        for place, key, rest in zip(
            zip(*columns[:3], strict=True), zip(*columns[3:width], strict=True), values, strict=True
        ):
            text = texts.get(key)
            if text is None:
                text = texts[key] = key_text([stored(each) for each in key])
            yield text, RowPlace(*place), rest


def _in_utc(column: Any) -> Any:
    """Return a column with its times in UTC: Python compares times of one zone by what a clock
    shows there, which is the same twice when it is put back."""
    if not pa.types.is_timestamp(column.type):
        return column
    return column.cast(pa.timestamp(column.type.unit, tz="UTC"))


@dataclass(frozen=True)
class _Folding:
    """A task: folds the rows of one table that it gets."""

    item: int
    table: TableDefinition

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        functions = [each.function for each in self.table.measures]
        rows: dict[str, State] = {}
        for batch in batches:
            for key, place, values in _Rows(self.table).of(batch):
                new = started(functions, values, place)
                old = rows.get(key)
                rows[key] = new if old is None else merged(functions, old, new)
        yield _partial(self.item, rows)


@dataclass(frozen=True)
class _Finding:
    """A task: finds the rows that make up some keys of one table."""

    table: TableDefinition
    keys: frozenset[str]

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            found = [
                (key, *place, pickle.dumps(values))
                for key, place, values in _Rows(self.table).of(batch)
                if key in self.keys
            ]
            yield pa.RecordBatch.from_pylist(
                [dict(zip(_HISTORY_TYPES.names, each, strict=True)) for each in found],
                schema=_HISTORY_TYPES,
            )


_HISTORY_TYPES: Final = pa.schema(
    [
        ("key", pa.string()),
        ("transaction_id", pa.int64()),
        ("partition", pa.int32()),
        ("position", pa.int32()),
        ("content", pa.binary()),
    ]
)


def _collected(frame: DataFrame) -> Iterator[tuple[int, str, Any]]:
    """Yield the results of the tasks of a frame of `PARTIAL`: number, key and content."""
    for batch in frame.toArrow().to_batches():
        for item, key, content in zip(*(each.to_pylist() for each in batch.columns), strict=True):
            yield item, key, _unpickled(content)


def _unpickled(content: bytes) -> Any:
    return pickle.loads(content)  # noqa: S301 - from our own tasks and our own scratch database


def _partial(item: int, rows: Mapping[str, Any]) -> Any:
    return pa.RecordBatch.from_pydict(
        {
            "item": pa.array([item] * len(rows), pa.int32()),
            "key": pa.array(list(rows), pa.string()),
            "content": pa.array([pickle.dumps(each) for each in rows.values()], pa.binary()),
        }
    )


def _blocks_of(frame: DataFrame) -> DataFrame:
    """Return, per task and block, how many transactions there are and the sum of their digests."""
    columns = ("partition", f"transaction_id div {BLOCK_TRANSACTIONS} AS block", f"{DIGEST} AS d")
    return frame.selectExpr(*columns).mapInArrow(_add_up, PARTIAL)


def _add_up(batches: Iterable[Any]) -> Iterator[Any]:
    blocks: dict[str, tuple[int, int]] = {}
    for batch in batches:
        partitions, numbers, digests = (
            column.to_numpy(zero_copy_only=False) for column in batch.columns
        )
        for partition, number in set(zip(partitions.tolist(), numbers.tolist(), strict=True)):
            mine = digests[(partitions == partition) & (numbers == number)].astype(np.int64)
            key = json.dumps([partition, number])
            count, digest = blocks.get(key, (0, 0))
            more = int(mine.view(np.uint64).sum(dtype=np.uint64))
            blocks[key] = (count + len(mine), (digest + more) % (1 << 64))
    yield _partial(BLOCKS_OF, blocks)


def _aside_of(frame: DataFrame) -> DataFrame:
    broken = frame.where(f"{CORRUPT} IS NOT NULL")
    columns = broken.select("partition", "transaction_id", "header", "data")
    return columns.mapInArrow(_put_aside, PARTIAL)


def _put_aside(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        yield _partial(ASIDE_OF, {json.dumps(row[:2]): row for row in rows})


class _Aside:
    """Compares the transactions put aside, batch by batch."""

    def __init__(self, store: DerivedTables, ends: Mapping[PartitionId, TransactionId]) -> None:
        self._store = store
        self._ends = ends
        self._differences: list[TableDifference] = []
        self.count = 0

    def compare(
        self, ranges: Sequence[TransactionRange], expected: Sequence[tuple[Any, ...]]
    ) -> None:
        """Compare the rows of some transactions with those of the log, in order."""
        self.count += len(expected)
        wanted = {row[:2]: row[2:] for row in expected}
        for each in ranges:
            for row in self._store.undecodable(each.partition_id, each.first, each.end):
                self._differences += _row_aside(row[:2], wanted.pop(row[:2], None), row[2:])
        for place, rest in wanted.items():
            self._differences += _row_aside(place, rest, None)

    def finish(self) -> list[TableDifference]:
        """Return all differences, those of rows beyond all that was taken in among them."""
        for row in self._store.undecodable_beyond(self._ends):
            self._differences += _row_aside(row[:2], None, row[2:])
        return self._differences


def _row_aside(
    place: tuple[Any, ...], expected: tuple[Any, ...] | None, found: tuple[Any, ...] | None
) -> Iterator[TableDifference]:
    partition, transaction_id = place
    key = {"partition": partition, "transaction_id": transaction_id}
    columns: tuple[ColumnDifference, ...] = ()
    if expected is None:
        detail = "not undecodable in the log"
    elif found is None:
        detail = "missing; the transaction cannot be decoded"
    else:
        detail = ""
        columns = tuple(
            ColumnDifference(name, ours, theirs, partition, transaction_id)
            for name, ours, theirs in zip(("header", "data"), expected, found, strict=True)
            if ours != theirs
        )
        if not columns:
            return
    yield TableDifference(UNDECODABLE_TABLE, key, columns, partition, transaction_id, detail)


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN")
    try:
        yield
    finally:
        if database.in_transaction:  # a full disk has ended it already
            database.execute("COMMIT")
