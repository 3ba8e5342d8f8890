"""The rows that a sink takes: their columns, and how Arrow record batches become appends.

Pure: a schema or a batch in, values or an error that names the column out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from waltz import PartitionLocalLock
from waltz.errors import ConfigurationError, LocalProtocolError
from waltz.spark.codes import INVALID_ROW, UNKNOWN_COLUMN

LOCKS: Final = StructType([StructField("name", StringType()), StructField("id", LongType())])
LOCK_COLUMNS: Final = ("write_locks", "read_locks", "append_locks")
SINK_COLUMNS: Final[dict[str, tuple[DataType, ...]]] = {
    "partition": (IntegerType(),),
    "header": (IntegerType(),),
    "data": (BinaryType(), StringType()),
    **{name: (ArrayType(LOCKS),) for name in LOCK_COLUMNS},
}
"""Per column: the types it may have, whatever may be null."""

REQUIRED: Final = ("partition", "data")
DIGEST_BYTES: Final = 16

_HEADER: Final = 4


@dataclass(frozen=True, slots=True)
class SinkRow:
    """One append."""

    partition_id: int
    header: int
    data: bytes
    write_locks: tuple[PartitionLocalLock, ...] = ()
    read_locks: tuple[PartitionLocalLock, ...] = ()
    append_locks: tuple[PartitionLocalLock, ...] = ()


def content_digest(header: int, data: bytes) -> bytes:
    """Return a digest that identifies the content of a transaction, 16 bytes."""
    digest = blake2b(header.to_bytes(_HEADER, "big", signed=True), digest_size=DIGEST_BYTES)
    digest.update(data)
    return digest.digest()


def check_sink_schema(schema: StructType) -> None:
    """Raise ConfigurationError for the first column that is missing, unknown or of another type;
    columns may be nullable and in any order."""
    known = ", ".join(
        f"{name} {' or '.join(kind.simpleString() for kind in kinds)}"
        for name, kinds in SINK_COLUMNS.items()
    )
    for name in REQUIRED:
        if name not in schema.names:
            raise ConfigurationError(
                f"{UNKNOWN_COLUMN} column {name} is missing; the sink takes {known}"
            )
    for field in schema.fields:
        kinds = SINK_COLUMNS.get(field.name, ())
        found = field.dataType.simpleString()
        # Compared as text, which has the type but not whether it may be null.
        if found not in {kind.simpleString() for kind in kinds}:
            raise ConfigurationError(
                f"{UNKNOWN_COLUMN} column {field.name} is {found}; the sink takes {known}"
            )


def sink_rows(batch: Any, *, partition_count: int, first_row: int = 0) -> Iterator[SinkRow]:
    """Yield the rows of an Arrow record batch in order; `first_row` is the number of its first one.

    Raises ConfigurationError, naming column and row: a null where a value is required, a partition
    that does not exist, an invalid lock.
    """
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    absent = [None] * len(batch)
    rows = zip(
        *(columns.get(name, absent) for name in ("partition", "header", "data", *LOCK_COLUMNS)),
        strict=True,
    )
    for number, (partition, header, data, *locks) in enumerate(rows, first_row):
        if partition is None or data is None:
            name = "partition" if partition is None else "data"
            raise ConfigurationError(
                f"{INVALID_ROW} row {number} of the task: {name} is null; expected a value"
            )
        if not 0 <= partition < partition_count:
            raise ConfigurationError(
                f"{INVALID_ROW} row {number} of the task: partition is {partition}; the cluster has"
                f" partitions 0 to {partition_count - 1}"
            )
        yield SinkRow(
            partition,
            0 if header is None else header,
            data.encode() if isinstance(data, str) else bytes(data),
            *(_locks(number, name, each) for name, each in zip(LOCK_COLUMNS, locks, strict=True)),
        )


def _locks(
    number: int, column: str, given: list[dict[str, Any] | None] | None
) -> tuple[PartitionLocalLock, ...]:
    if not given:
        return ()
    try:
        return tuple([PartitionLocalLock(each["name"], each["id"]) for each in given])  # type: ignore[index]
    except (TypeError, LocalProtocolError):
        raise ConfigurationError(
            f"{INVALID_ROW} row {number} of the task: {column} is {given!r:.200}; expected locks"
            " with a name and an id"
        ) from None
