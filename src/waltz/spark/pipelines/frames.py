"""Frames of Spark from which tables are made: transactions decoded, and grouped to rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from waltz.envelope import MAGIC
from waltz.errors import ConfigurationError, CorruptionError
from waltz.spark.codes import INVALID_DEFINITION, INVALID_TABLES
from waltz.spark.offsets import TransactionRange
from waltz.spark.pipelines.definition import PipelineDefinition
from waltz.spark.pipelines.expressions import Judge
from waltz.spark.pipelines.schemas import BODY, CAUSE, Decoded
from waltz.spark.pipelines.table_store import Column, Layout
from waltz.spark.pipelines.tables import (
    ELEMENT,
    PLACES,
    Measure,
    TableDefinition,
    TablesDefinition,
    mistake,
)

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

CORRUPT: Final = "waltz_corrupt"
"""The column that has, for data that does not match the definition, the text of JSON, or why other
data cannot be decoded; null for all other transactions."""

POSITION: Final = "waltz_position"
"""The column that has an element's place in its array, from 0."""

_TEXT_BYTES: Final = "cast(conv(hex(substring(data, 6, 2)), 16, 10) AS int)"
_CHECKSUM: Final = f"conv(hex(substring(data, 8 + {_TEXT_BYTES}, 4)), 16, 10)"
WITHOUT_ENVELOPE: Final = (
    f"CASE WHEN substring(data, 1, 4) = X'{MAGIC.hex()}'"
    f" AND length(data) >= 11 + {_TEXT_BYTES}"
    f" AND crc32(substring(data, 1, 7 + {_TEXT_BYTES})) = cast({_CHECKSUM} AS bigint)"
    f" THEN substring(data, 12 + {_TEXT_BYTES}) ELSE data END"
)
"""The data without its envelope, if it has one: as `waltz.envelope.payload` takes it off."""

DIGEST: Final = "xxhash64(partition, transaction_id, request_id, header, data)"
"""The contribution of a transaction to the digest of its block."""


def read_log(
    spark: SparkSession, definition: PipelineDefinition, ranges: Sequence[TransactionRange]
) -> DataFrame:
    """Return the transactions of `ranges`, of which each is of another partition."""
    reader = (
        spark.read.format("waltz")
        .option("cluster", definition.cluster)
        .option("partitions", ",".join(str(each.partition_id) for each in ranges))
        .option("startingOffsets", json.dumps({each.partition_id: each.first for each in ranges}))
        .option("endingOffsets", json.dumps({each.partition_id: each.end for each in ranges}))
        .option("minPartitions", spark.sparkContext.defaultParallelism)
    )
    if definition.archive is not None:
        reader = reader.option("archive", str(definition.archive))
    for option, path in (
        ("tlsCa", definition.tls.authorities),
        ("tlsCert", definition.tls.certificate),
        ("tlsKey", definition.tls.key),
        ("tokenFile", definition.tls.token_file),
    ):
        if path:
            reader = reader.option(option, path)
    return reader.load()


PRUNING: Final = "spark.sql.inMemoryColumnarStorage.partitionPruning"


@contextmanager
def kept(spark: SparkSession, frame: DataFrame) -> Iterator[DataFrame]:
    """Keep a frame in memory or on disk during the block, for several queries.

    Spark skips blocks of a kept frame by the largest value in them, for which it ignores NaN,
    though `d > 1.5` is true of NaN: transactions would silently be missing.
    """
    before = spark.conf.get(PRUNING)
    spark.conf.set(PRUNING, "false")
    frame = frame.persist()
    try:
        yield frame
    finally:
        frame.unpersist()
        assert before is not None
        spark.conf.set(PRUNING, before)


def decoded(log: DataFrame, tables: TablesDefinition) -> DataFrame:
    """Return the columns of the log and the fields of the data.

    Raises ConfigurationError: a field has no type that Spark knows, or none that data other than
    JSON can have.
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
    text = f.coalesce(f.expr(WITHOUT_ENVELOPE).cast("string"), f.lit(""))
    formats = {header: each.format for header, each in tables.decoding.schemas}
    if set(formats.values()) == {"json"} and None in formats:
        found = log.withColumn("waltz_body", f.from_json(text, schema, options))
        # Spark does not complain of an empty text, nor of one that is not a JSON object.
        broken = f.when(f.expr(f"waltz_body.{CORRUPT}").isNotNull() | (f.trim(text) == ""), text)
        return found.select(
            *log.columns,
            *(f.col(f"waltz_body.{name}").alias(name) for name, _ in fields),
            broken.alias(CORRUPT),
        )
    wanted = StructType(schema.fields[:-1])
    _expect_arrow(wanted)
    as_json = frozenset(header for header, each in formats.items() if each == "json")
    named = [header for header in formats if header is not None]
    if None in as_json:
        others = [header for header in named if header not in as_json]
        is_json = ~f.col("header").isin(others)
    else:
        is_json = f.col("header").isin([header for header in named if header in as_json])
    other_schemas = tuple(each for each in tables.decoding.schemas if each[0] not in as_json)
    rows = StructType(
        [*log.schema.fields, StructField(BODY, wanted), StructField(CAUSE, StringType())]
    )
    found = log.mapInArrow(Decoded(other_schemas, wanted, as_json), rows).withColumn(
        "waltz_body", f.from_json(f.when(is_json, text), schema, options)
    )
    broken = f.when(f.expr(f"waltz_body.{CORRUPT}").isNotNull() | (f.trim(text) == ""), text)
    return found.select(
        *log.columns,
        *(
            f.when(is_json, f.col(f"waltz_body.{name}"))
            .otherwise(f.col(f"{BODY}.{name}"))
            .alias(name)
            for name, _ in fields
        ),
        f.when(is_json, broken).otherwise(f.col(CAUSE)).alias(CORRUPT),
    )


def _expect_arrow(fields: StructType) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    for each in fields:
        try:
            to_arrow_schema(type(fields)([each]), timezone="UTC")
        except Exception as error:  # whatever error Spark has for a type without an Arrow form
            raise mistake(
                f"decode: field {each.name} is {each.dataType.simpleString()}, which only data in"
                " JSON can have"
            ) from error


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


def judged_layouts(spark: SparkSession, tables: TablesDefinition) -> list[Layout]:
    """Return the tables with the types that Spark finds.

    Raises ConfigurationError: an expression, a measure or a type that cannot be proven.
    """
    from waltz.spark.log_columns import log_schema

    judge = Judge(spark)
    nothing = decoded(spark.createDataFrame([], log_schema()), tables)
    layouts = []
    for table in tables.tables:
        judge.expect_each(table, nothing)
        judge.expect_sound(table, _with_elements(nothing, table))
        layouts.append(_layout(nothing, table))
    return layouts


def _with_elements(frame: DataFrame, table: TableDefinition) -> DataFrame:
    """Return a row per element of the table's array, with its position.

    Raises ConfigurationError: `each` is no array.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    if table.each is None:
        return frame
    try:
        return frame.select("*", f.posexplode(f.expr(table.each)).alias(POSITION, ELEMENT))
    except AnalysisException as error:
        text = str(error).strip().partition("\n")[0]
        raise mistake(f"table {table.name}: each is no array: {text}") from error


def grouped(frame: DataFrame, table: TableDefinition, floats: Collection[str] = ()) -> DataFrame:
    """Return `table` of the transactions in `frame`; `floats` are its measures of that type.

    Raises Spark's errors about expressions.
    """
    from pyspark.sql import functions as f

    frame = _with_elements(frame, table)
    if table.where is not None:
        frame = frame.where(table.where)
    place = f.struct("transaction_id", "partition")
    # Elements of one transaction have the same place: only with the position is there one first.
    order = f.struct(place, POSITION) if table.each is not None else place
    found = frame.groupBy(*(f.expr(text).alias(name) for name, text in table.keys)).agg(
        *(_measure(each, order, is_float=each.name in floats) for each in table.measures),
        f.min(place).alias("waltz_first"),
        f.max(place).alias("waltz_last"),
    )
    places = (f"waltz_{name.split('_')[0]}.{name.split('_', 1)[1]}" for name in PLACES)
    names = [*(name for name, _ in table.keys), *(each.name for each in table.measures)]
    return found.select(
        *names, *(f.col(path).alias(name) for path, name in zip(places, PLACES, strict=True))
    )


def _measure(measure: Measure, order: SparkColumn, *, is_float: bool) -> SparkColumn:
    from pyspark.sql import functions as f

    if measure.function in ("count", "count_if"):
        return f.expr(f"{measure.function}({measure.expression})").alias(measure.name)
    value = f.expr(measure.expression)
    if is_float:
        # SQLite has no NaN, and no zero with a sign: both would depend on how rows are batched.
        value = f.when(~f.isnan(value), value + f.lit(0.0))
    if measure.function == "first":
        found = f.min_by(value, order)
    elif measure.function == "last":
        found = f.max_by(value, order)
    else:
        found = {"sum": f.sum, "min": f.min, "max": f.max}[measure.function](value)
    return found.alias(measure.name)


def _layout(nothing: DataFrame, table: TableDefinition) -> Layout:
    from pyspark.errors import AnalysisException

    try:
        schema = grouped(nothing, table).schema
    except AnalysisException as error:
        text = str(error).strip().partition("\n")[0]
        raise ConfigurationError(f"{INVALID_DEFINITION} table {table.name}: {text}") from error
    sums = {each.name for each in table.measures if each.function == "sum"}
    return Layout(
        table,
        tuple(
            Column(each.name, _sqlite_type(table, each.name, each.dataType, each.name in sums))
            for each in schema
        ),
    )


def float_columns(layout: Layout) -> list[str]:
    """Return the names of the table's columns that are floats."""
    return [each.name for each in layout.columns if each.type == "REAL"]


def _sqlite_type(table: TableDefinition, name: str, found: DataType, is_sum: bool) -> str:
    from pyspark.sql import types as t

    is_key = name in dict(table.keys)
    for kinds, sqlite in (
        ((t.BooleanType, t.IntegralType), "INTEGER"),
        ((t.StringType, t.DateType, t.TimestampType), "TEXT"),
        ((t.DoubleType, t.FloatType), None if is_sum or is_key else "REAL"),
        ((t.BinaryType,), None if is_key else "BLOB"),
    ):
        is_plain = not isinstance(found, t.StringType) or found == t.StringType()  # no collation
        if isinstance(found, kinds) and sqlite is not None and is_plain:
            return sqlite
    raise ConfigurationError(
        f"{INVALID_DEFINITION} table {table.name}: {name} is {found.simpleString()}; expected"
        " numbers, texts without a collation, dates or times, and whole numbers in sums, which are"
        " exact in any order: cast it, as in `sum(cast(amount * 100 as bigint))`"
    )


@dataclass(frozen=True, slots=True)
class Grouped:
    """The rows of a batch in one table, which Spark has yet to compute."""

    layout: Layout
    frame: DataFrame

    @property
    def values(self) -> list[tuple[Any, ...]]:
        """Compute the rows and return them all, in the order of the columns. Raises as
        `collected`."""
        return collected(self.frame)


def collected(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Return the rows with values that SQLite has: numbers, texts, bytes, and times as texts of UTC
    whose order is that of the times.

    Raises CorruptionError: a time has no text of that form, or a text is not UTF-8.
    """
    plain, texts = plain_columns(frame)
    table = plain.toArrow()
    columns = [stored_array(each, table.column(each), texts) for each in table.column_names]
    return list(zip(*(each.to_pylist() for each in columns), strict=True))


def plain_columns(frame: DataFrame) -> tuple[DataFrame, dict[str, Callable[[int], str]]]:
    """Return the frame with numbers instead of times, and for these columns what makes the texts
    of them."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    plain: list[SparkColumn] = []
    texts: dict[str, Callable[[int], str]] = {}
    for each in frame.schema:
        column = f.col(each.name)
        if isinstance(each.dataType, t.DateType):
            column, texts[each.name] = f.unix_date(column), _date_text
        elif isinstance(each.dataType, t.TimestampType):
            column, texts[each.name] = f.unix_micros(column), _time_text
        plain.append(column.alias(each.name))
    return frame.select(*plain), texts


def stored_array(name: str, column: Any, texts: Mapping[str, Callable[[int], str]]) -> Any:
    """Return a column of `plain_columns`, an Arrow array, with texts for times. Raises
    CorruptionError as `collected`."""
    import pyarrow as pa

    try:
        if name in texts:
            return pa.array(
                (None if each is None else texts[name](each) for each in column.to_pylist()),
                pa.string(),
            )
        column.validate(full=True)
    except (OverflowError, UnicodeDecodeError, pa.ArrowInvalid) as error:
        raise CorruptionError(
            f"{INVALID_TABLES} column {name}: {error}; expected texts in UTF-8, and times of"
            " the years 1 to 9999: leave out others with `where`"
        ) from error
    return column


def _date_text(days: int) -> str:
    return (date(1970, 1, 1) + timedelta(days)).isoformat()


def _time_text(microseconds: int) -> str:
    found = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    text = found.strftime("%H:%M:%S.%f").rstrip("0").rstrip(".")
    return f"{found.date().isoformat()} {text}"
