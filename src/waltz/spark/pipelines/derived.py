"""Keeps tables that are derived from the log: takes in what is new, and proves them equal to it.

How far the log has been taken in stands in the database of the tables and changes with them, so a
run needs no checkpoint. The log is read in batches; Spark decodes and groups one, the driver joins
what little is left of it with the tables.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from waltz.errors import ConfigurationError, CorruptionError
from waltz.spark.codes import DIFFERENT, INVALID_DEFINITION, UNDECODABLE
from waltz.spark.offsets import select_partitions
from waltz.spark.pipelines.definition import PipelineDefinition
from waltz.spark.pipelines.table_store import (
    BLOCK_TRANSACTIONS,
    Batch,
    BlockFacts,
    Column,
    Layout,
    Rows,
    TableStore,
    first_different_block,
)
from waltz.spark.pipelines.tables import ELEMENT, PLACES, TableDefinition, TablesDefinition
from waltz.spark.progress import NextIds, PartitionLag, Progress, admit, available
from waltz.spark.tasks import LogAccess
from waltz.types import PartitionId, TransactionId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

CORRUPT: Final = "waltz_corrupt"
"""The column that has the text of data which are not what the definition says."""

UNDECODABLE_MAX: Final = 10_000
"""So many undecodable transactions of one batch are put aside; more are a wrong definition."""


@dataclass(frozen=True, slots=True)
class TablesReport:
    """What a run has done or seen. `differences` are sentences; none means equal."""

    transactions: int
    batches: int = 0
    undecodable: int = 0
    differences: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Log:
    """The log as this pipeline reads it: the marks of the moment it began, in batches."""

    spark: SparkSession
    definition: PipelineDefinition
    cluster_key: UUID
    ends: NextIds

    @property
    def tables(self) -> TablesDefinition:
        assert self.definition.tables is not None
        return self.definition.tables

    def batches(self, start: NextIds) -> Iterator[tuple[Progress, Progress]]:
        """Yield where each batch begins and ends."""
        progress = Progress(self.cluster_key, start)
        ends = available(progress, self.ends, fail_on_data_loss=True)
        while any(progress.next_id(each) < end for each, end in ends.items()):
            reached = admit(progress, ends, self.definition.batch_transactions)
            after = Progress(self.cluster_key, {**progress.next_ids, **reached})
            yield progress, after
            progress = after

    def decoded(self, start: Progress, end: Progress) -> DataFrame:
        """Return the transactions between, with their fields."""
        from pyspark.sql import functions as f

        wanted = self.definition
        ranges = start.ranges_to(end)
        reader = (
            self.spark.read.format("waltz")
            .option("cluster", wanted.cluster)
            .option("partitions", ",".join(str(each.partition_id) for each in ranges))
            .option(
                "startingOffsets", json.dumps({each.partition_id: each.first for each in ranges})
            )
            .option("endingOffsets", json.dumps({each.partition_id: each.end for each in ranges}))
            .option("minPartitions", self.spark.sparkContext.defaultParallelism)
        )
        if wanted.archive is not None:
            reader = reader.option("archive", str(wanted.archive))
        for option, path in (
            ("tlsCa", wanted.tls.authorities),
            ("tlsCert", wanted.tls.certificate),
            ("tlsKey", wanted.tls.key),
        ):
            if path:
                reader = reader.option(option, path)
        return decoded(reader.load(), self.tables).withColumn(
            "waltz_block", f.expr(f"transaction_id div {BLOCK_TRANSACTIONS}")
        )

    def layouts(self) -> list[Layout]:
        """Return the tables with the types that Spark finds. Raises ConfigurationError."""
        from waltz.spark.schema import log_schema

        nothing = decoded(self.spark.createDataFrame([], log_schema()), self.tables)
        return [_layout(nothing, each) for each in self.tables.tables]

    def batch(self, start: Progress, end: Progress, layouts: Sequence[Layout]) -> Batch:
        """Return what the transactions between come to.

        Raises CorruptionError: one of them cannot be decoded; what Spark raises.
        """
        frame = self.decoded(start, end).persist()
        try:
            blocks = _blocks(frame)
            count = sum(each.row_count for each in start.ranges_to(end))
            seen = sum(each.transactions for each in blocks)
            if seen != count:
                raise CorruptionError(f"{DIFFERENT} read {seen} transactions of {count}")
            undecodable, good = self._undecodable(frame)
            rows = [Rows(each, _collected(grouped(good, each.definition))) for each in layouts]
        finally:
            frame.unpersist()
        return Batch(start.ranges_to(end), blocks, rows, undecodable)

    def _undecodable(self, frame: DataFrame) -> tuple[list[Any], DataFrame]:
        """Return what cannot be decoded, and a frame of the rest."""
        from pyspark.sql import functions as f

        if CORRUPT not in frame.columns:
            return [], frame
        broken = frame.where(f.col(CORRUPT).isNotNull())
        columns = broken.select("partition", "transaction_id", "header", "data")
        found = [
            (row[0], row[1], row[2], None if row[3] is None else bytes(row[3]))
            for row in columns.orderBy("partition", "transaction_id")
            .limit(UNDECODABLE_MAX + 1)
            .collect()
        ]
        if found and (not self.tables.decoding.quarantine or len(found) > UNDECODABLE_MAX):
            partition_id, transaction_id, _, data = found[0]
            more = f", and {len(found) - 1} more" if len(found) > 1 else ""
            raise CorruptionError(
                f"{UNDECODABLE} partition {partition_id}, transaction {transaction_id}{more}: the"
                f" data are {data!r:.80}; expected JSON with the fields of the definition. Mend"
                " `decode`, or say `undecodable: quarantine` there"
            )
        return found, frame.where(f.col(CORRUPT).isNull())


def take_in(spark: SparkSession, access: LogAccess, definition: PipelineDefinition) -> TablesReport:
    """Take in what the log has beyond the tables, which are made if need be.

    Raises ConfigurationError: the definition is wrong, or the tables are another's; NotFoundError:
    the log is shorter than what was taken in; VersionConflictError: another run was faster;
    CorruptionError: data that cannot be decoded, a database that fails.
    """
    log = _open(spark, access, definition)
    with TableStore(definition.target, create=True) as store:
        return _fill(log, store, log.layouts())


def rebuild(spark: SparkSession, access: LogAccess, definition: PipelineDefinition) -> TablesReport:
    """Make the tables anew from the whole log and put them in the old ones' place at once.

    Raises NotFoundError: there are none to be replaced; otherwise as `take_in`.
    """
    log = _open(spark, access, definition)
    with TableStore(definition.target, create=False) as store, _scratch(store.path) as fresh:
        store.expect(log.cluster_key)
        report = _fill(log, fresh, log.layouts())
        store.replace_by(fresh)
    return report


def verify(spark: SparkSession, access: LogAccess, definition: PipelineDefinition) -> TablesReport:
    """Make the tables anew as far as they go, and compare all of them with the ones there are.

    Raises as `take_in`.
    """
    log = _open(spark, access, definition)
    with TableStore(definition.target, create=False) as store, _scratch(store.path) as fresh:
        store.expect(log.cluster_key, log.tables.fingerprint())
        marks = store.marks()
        available(Progress(log.cluster_key, marks), log.ends, fail_on_data_loss=True)
        layouts = log.layouts()
        report = _fill(_Log(spark, definition, log.cluster_key, marks), fresh, layouts)
        return TablesReport(
            report.transactions,
            report.batches,
            report.undecodable,
            _compared(store, fresh, layouts),
        )


def lag(access: LogAccess, definition: PipelineDefinition) -> list[PartitionLag]:
    """Return how far the tables are, per partition. Raises as `take_in`."""
    cluster_key, ends = _ends(access, definition)
    with TableStore(definition.target, create=False) as store:
        store.expect(cluster_key)
        marks = store.marks()
    available(Progress(cluster_key, marks), ends, fail_on_data_loss=True)
    return [PartitionLag(each, marks.get(each, 0), end) for each, end in ends.items()]


def _open(spark: SparkSession, access: LogAccess, definition: PipelineDefinition) -> _Log:
    cluster_key, ends = _ends(access, definition)
    return _Log(spark, definition, cluster_key, ends)


def _ends(access: LogAccess, definition: PipelineDefinition) -> tuple[UUID, NextIds]:
    with access.opened() as log:
        selected = select_partitions(definition.partitions, log.partition_count)
        return log.cluster_key, {
            each: TransactionId(log.high_water_mark(each) + 1) for each in selected
        }


def _fill(log: _Log, store: TableStore, layouts: Sequence[Layout]) -> TablesReport:
    store.prepare(log.cluster_key, log.tables.fingerprint(), layouts)
    transactions, batches, undecodable = 0, 0, 0
    for start, end in log.batches(store.marks()):
        batch = log.batch(start, end, layouts)
        store.add(batch)
        transactions += sum(each.row_count for each in batch.ranges)
        undecodable += len(batch.undecodable)
        batches += 1
    return TablesReport(transactions, batches, undecodable)


@contextmanager
def _scratch(beside: Path) -> Iterator[TableStore]:
    """Yield a database that is gone after the block, on the same disk as the one it is for."""
    with (
        tempfile.TemporaryDirectory(prefix=f".{beside.name}.", dir=beside.parent) as directory,
        TableStore(Path(directory) / "tables.db", create=True) as store,
    ):
        yield store


def _compared(store: TableStore, fresh: TableStore, layouts: Sequence[Layout]) -> tuple[str, ...]:
    different = []
    block = first_different_block(store.blocks(), fresh.blocks())
    if block is not None:
        partition_id, number = block
        first = number * BLOCK_TRANSACTIONS
        different.append(
            f"{DIFFERENT} partition {partition_id}, transactions {first} to"
            f" {first + BLOCK_TRANSACTIONS - 1}: the log is not what it was when they were taken in"
        )
    for each in layouts:
        found = store.first_difference(fresh, each)
        if found is not None:
            different.append(_difference(each.definition, *found))
    return tuple(different)


def _difference(definition: TableDefinition, side: str, row: Mapping[str, Any]) -> str:
    key = ", ".join(f"{name} = {row[name]!r}" for name, _ in definition.keys)
    values = ", ".join(f"{each.name} = {row[each.name]!r}" for each in definition.measures)
    has = "has what the log does not come to" if side == "here" else "lacks what the log comes to"
    return (
        f"{DIFFERENT} table {definition.name} {has}: {key}: {values}; made of transactions from"
        f" partition {row['first_partition']}, transaction {row['first_transaction_id']} on"
    )


def decoded(log: DataFrame, tables: TablesDefinition) -> DataFrame:
    """Return the columns of the log and the fields of the data.

    Raises ConfigurationError: a field has no type that Spark knows.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    fields = tables.decoding.fields
    if not fields:
        return log
    schema = StructType(
        [StructField(name, _spark_type(name, kind)) for name, kind in fields]
        + [StructField(CORRUPT, StringType())]
    )
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    text = f.coalesce(f.col("data").cast("string"), f.lit(""))
    found = log.withColumn("waltz_body", f.from_json(text, schema, options))
    # Spark does not complain of an empty text, nor of one that is not a JSON object.
    broken = f.when(f.expr(f"waltz_body.{CORRUPT}").isNotNull() | (f.trim(text) == ""), text)
    return found.select(
        *log.columns,
        *(f.col(f"waltz_body.{name}").alias(name) for name, _ in fields),
        broken.alias(CORRUPT),
    )


def _spark_type(name: str, text: str) -> DataType:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import DataType

    try:
        return DataType.fromDDL(text)
    except PySparkException as error:
        raise ConfigurationError(
            f"{INVALID_DEFINITION} decode: field {name} is {text!r}; expected a type of Spark such"
            " as bigint, string, timestamp or array<string>"
        ) from error


def grouped(frame: DataFrame, table: TableDefinition) -> DataFrame:
    """Return `table` of the transactions in `frame`. Raises what Spark raises of expressions."""
    from pyspark.sql import functions as f

    if table.each is not None:
        frame = frame.withColumn(ELEMENT, f.explode(f.expr(table.each)))
    if table.where is not None:
        frame = frame.where(table.where)
    place = f.struct("transaction_id", "partition")
    measures = []
    for each in table.measures:
        if each.function in ("first", "last"):
            choose = f.min_by if each.function == "first" else f.max_by
            measures.append(choose(f.expr(each.expression), place).alias(each.name))
        else:
            measures.append(f.expr(f"{each.function}({each.expression})").alias(each.name))
    found = frame.groupBy(*(f.expr(text).alias(name) for name, text in table.keys)).agg(
        *measures, f.min(place).alias("waltz_first"), f.max(place).alias("waltz_last")
    )
    places = (f"waltz_{name.split('_')[0]}.{name.split('_', 1)[1]}" for name in PLACES)
    names = [*(name for name, _ in table.keys), *(each.name for each in table.measures)]
    return found.select(
        *names, *(f.col(path).alias(name) for path, name in zip(places, PLACES, strict=True))
    )


def _layout(nothing: DataFrame, table: TableDefinition) -> Layout:
    from pyspark.errors import AnalysisException

    try:
        schema = grouped(nothing, table).schema
    except AnalysisException as error:
        text = str(error).partition("\n")[0]
        raise ConfigurationError(f"{INVALID_DEFINITION} table {table.name}: {text}") from error
    sums = {each.name for each in table.measures if each.function == "sum"}
    return Layout(
        table,
        tuple(
            Column(each.name, _sqlite_type(table, each.name, each.dataType, each.name in sums))
            for each in schema
        ),
    )


def _sqlite_type(table: TableDefinition, name: str, found: DataType, is_sum: bool) -> str:
    from pyspark.sql import types as t

    is_key = name in dict(table.keys)
    for kinds, sqlite in (
        ((t.BooleanType, t.IntegralType), "INTEGER"),
        ((t.StringType, t.DateType, t.TimestampType), "TEXT"),
        ((t.DoubleType, t.FloatType), None if is_sum or is_key else "REAL"),
        ((t.BinaryType,), None if is_key else "BLOB"),
    ):
        if isinstance(found, kinds) and sqlite is not None:
            return sqlite
    raise ConfigurationError(
        f"{INVALID_DEFINITION} table {table.name}: {name} is {found.simpleString()}; expected"
        " numbers, texts, dates or times, and whole numbers in sums, which are exact in any order:"
        " cast it, as in `sum(cast(amount * 100 as bigint))`"
    )


def _collected(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Return the rows with values that SQLite has: times as Spark writes them, whole numbers."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    plain = [
        f.col(each.name).cast("string")
        if isinstance(each.dataType, (t.DateType, t.TimestampType))
        else f.col(each.name)
        for each in frame.schema
    ]
    columns = frame.select(*plain).toArrow().to_pydict().values()
    return list(zip(*columns, strict=True))


def _blocks(frame: DataFrame) -> list[BlockFacts]:
    from pyspark.sql import functions as f

    fingerprint = f.xxhash64("partition", "transaction_id", "request_id", "header", "data")
    found = frame.groupBy("partition", "waltz_block").agg(
        f.count("*"), f.sum(fingerprint.cast("decimal(20,0)"))
    )
    return [
        BlockFacts(PartitionId(partition), block, count, int(digest))
        for partition, block, count, digest in found.collect()
    ]
