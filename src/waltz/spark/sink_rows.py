"""The rows that a sink takes: their columns, and how Arrow record batches become appends.

Pure: a schema or a batch in, values or an error that names the column out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SinkRow:
    """One append."""

    partition_id: int
    header: int
    data: bytes
    write_locks: tuple[PartitionLocalLock, ...] = ()
    read_locks: tuple[PartitionLocalLock, ...] = ()
    append_locks: tuple[PartitionLocalLock, ...] = ()


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Appends without locks of their own, an entry per append in each column."""

    partition_ids: NDArray[np.int32]
    headers: NDArray[np.int32]
    data: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.data)

    def of_each_partition(self) -> Iterator[SinkColumns]:
        """Yield the appends to each partition, in their order."""
        for partition_id in np.unique(self.partition_ids):
            rows = np.flatnonzero(self.partition_ids == partition_id)
            data = [self.data[row] for row in rows.tolist()]
            yield SinkColumns(self.partition_ids[rows], self.headers[rows], data)


def content_digest(header: int, data: bytes) -> bytes:
    """Return a digest that identifies the content of a transaction, 16 bytes."""
    head = header.to_bytes(_HEADER, "big", signed=True)
    return blake2b(head + data, digest_size=DIGEST_BYTES).digest()


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


def sink_columns(batch: Any, *, partition_count: int, first_row: int = 0) -> SinkColumns:
    """Return the rows of an Arrow record batch without their locks; `first_row` is the number of
    the first one.

    Raises ConfigurationError, naming column and row: a null where a value is required, a partition
    that does not exist.
    """
    for name in REQUIRED:
        column = batch.column(name)
        if column.null_count:
            number = first_row + column.is_null().index(True).as_py()
            raise ConfigurationError(
                f"{INVALID_ROW} row {number} of the task: {name} is null; expected a value"
            )
    partition_ids = batch.column("partition").to_numpy()
    is_missing = (partition_ids < 0) | (partition_ids >= partition_count)
    if is_missing.any():
        row = int(is_missing.argmax())
        raise ConfigurationError(
            f"{INVALID_ROW} row {first_row + row} of the task: partition is {partition_ids[row]};"
            f" the cluster has partitions 0 to {partition_count - 1}"
        )
    headers = np.zeros(len(batch), np.int32)
    if "header" in batch.schema.names:
        headers = batch.column("header").fill_null(0).to_numpy()
    return SinkColumns(partition_ids, headers, batch.column("data").cast(pa.binary()).to_pylist())


def has_locks(batch: Any) -> bool:
    """Return whether any row of an Arrow record batch has locks of its own."""
    return any(
        pc.any(pc.list_value_length(batch.column(name)).fill_null(0).cast(pa.bool_())).as_py()
        for name in LOCK_COLUMNS
        if name in batch.schema.names
    )


def locked_rows(batch: Any, columns: SinkColumns, *, first_row: int = 0) -> Iterator[SinkRow]:
    """Yield the rows of an Arrow record batch in order with their locks; `columns` has the rest.

    Raises ConfigurationError, naming column and row: an invalid lock.
    """
    names = [name for name in LOCK_COLUMNS if name in batch.schema.names]
    given = {name: batch.column(name).to_pylist() for name in names}
    absent = [None] * len(batch)
    rows = zip(
        columns.partition_ids.tolist(),
        columns.headers.tolist(),
        columns.data,
        *(given.get(name, absent) for name in LOCK_COLUMNS),
        strict=True,
    )
    for number, (partition_id, header, data, *locks) in enumerate(rows, first_row):
        found = (_locks(number, name, each) for name, each in zip(LOCK_COLUMNS, locks, strict=True))
        yield SinkRow(partition_id, header, data, *found)


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
