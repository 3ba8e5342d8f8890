"""The columns of the log as Spark sees them, without Arrow.

Spark asks a process of its own which columns a data source has. That process needs neither Arrow
nor anything that reads, and imports this module instead of those that do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from waltz.errors import ConfigurationError
from waltz.spark.codes import INVALID_OPTION

KINDS: Final[Mapping[str, DataType]] = {
    "partition": IntegerType(),
    "transaction_id": LongType(),
    "request_id": BinaryType(),
    "header": IntegerType(),
    "data": BinaryType(),
}
"""Spark's type of each column that is read from the log, in their order."""

TIME_KINDS: Final[Mapping[str, DataType]] = {
    "committed_after": TimestampType(),
    "committed_before": TimestampType(),
}
"""Spark's type of each column that only storage nodes know."""

QUARANTINE: Final = "undecodable"
"""The column with data that could not be decoded, unchanged; null in all other rows."""


def log_schema(*, with_data: bool = True, with_times: bool = False) -> StructType:
    """Return every column, or all but the data, and the times if they are wanted: the schema of a
    read that asks for none of its own."""
    kinds = {**KINDS, **TIME_KINDS} if with_times else KINDS
    return StructType(
        [StructField(name, kind) for name, kind in kinds.items() if with_data or name != "data"]
    )


def decoded_schema(schema: StructType, serializer: str | None, undecodable: str) -> StructType:
    """Return the columns of a read without a schema of its own.

    Raises ConfigurationError: only the user knows the type of the data.
    """
    if serializer is None or "data" not in schema.names:
        return schema
    if serializer != "string":
        raise ConfigurationError(
            f"{INVALID_OPTION} option serializer is {serializer!r}: the read needs a schema that"
            " says what data is, such as"
            " .schema('partition int, transaction_id bigint, data struct<name:string>')"
        )
    fields = [
        StructField("data", StringType()) if each.name == "data" else each for each in schema.fields
    ]
    if undecodable == "quarantine":
        fields.append(StructField(QUARANTINE, BinaryType()))
    return StructType(fields)
