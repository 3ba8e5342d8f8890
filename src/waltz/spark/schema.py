"""The columns of the log in Spark and in Arrow, and how transactions become record batches.

Spark compares the schema of every batch with the declared one to the letter, nullability included,
so the Arrow schema is made from the declared one here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.types import StructType

from waltz import BlockData, TransactionColumns
from waltz.errors import ConfigurationError
from waltz.spark.codes import UNKNOWN_COLUMN
from waltz.spark.log_columns import KINDS, TIME_KINDS
from waltz.types import PartitionId, TransactionId

BATCH_ROWS: Final = 10_000
BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of one record batch, unless a single transaction is larger. Spark's throughput is flat from
some thousand rows on, and memory is not."""

REQUEST_ID_BYTES: Final = 16

INLINE_BYTES_MAX: Final = 12
PREFIX_BYTES: Final = 4
_VIEW: Final = np.dtype(
    [("length", "<i4"), ("prefix", f"V{PREFIX_BYTES}"), ("buffer", "<i4"), ("offset", "<i4")]
)
"""An Arrow view of bytes: short values are in the view after the length, of longer ones only the
prefix."""


@dataclass(frozen=True, slots=True)
class Places:
    """Transactions of which nothing but the place in the log is known: `count` of them, with dense
    IDs from `first_transaction_id` on."""

    first_transaction_id: TransactionId
    count: int

    def __len__(self) -> int:
        return self.count


def _numbers(kind: Any, values: NDArray[Any]) -> Any:
    """Return the Arrow array of `values`, contiguous numbers of the Arrow type `kind`."""
    # `pa.array` would import pandas, which costs a worker more than all of Waltz.
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _partition(partition_id: PartitionId, places: TransactionColumns | Places) -> Any:
    return _numbers(pa.int32(), np.full(len(places), partition_id, np.int32))


def _transaction_id(partition_id: PartitionId, places: TransactionColumns | Places) -> Any:
    first = places.first_transaction_id
    return _numbers(pa.int64(), np.arange(first, first + len(places), dtype=np.int64))


def _request_id(partition_id: PartitionId, columns: TransactionColumns) -> Any:
    # Request IDs have a fixed size: their offsets are computed and their bytes used unchanged.
    count = len(columns.headers)
    offsets = np.arange(0, REQUEST_ID_BYTES * (count + 1), REQUEST_ID_BYTES, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(columns.request_ids)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _header(partition_id: PartitionId, columns: TransactionColumns) -> Any:
    return _numbers(pa.int32(), np.ascontiguousarray(columns.headers, np.int32))


def _data(partition_id: PartitionId, columns: TransactionColumns) -> Any:
    data = columns.data
    if not isinstance(data, BlockData):
        return pa.array(data, pa.binary())
    return _views(data).cast(pa.binary())


def _views(data: BlockData) -> Any:
    """Return an Arrow array of views over the block: nothing is done per transaction."""
    lengths = data.ends - data.starts
    views = np.zeros(len(data), _VIEW)
    views["length"] = lengths
    is_long = lengths > INLINE_BYTES_MAX
    starts = data.starts[is_long]
    # A view with a prefix at every byte, so that each one is copied with one call.
    prefix_count = max(0, len(data.block) - PREFIX_BYTES + 1)
    prefixes: Any = np.ndarray((prefix_count,), views.dtype["prefix"], data.block, 0, (1,))
    views["prefix"][is_long] = prefixes[starts]
    views["offset"][is_long] = starts
    if is_long.all():
        return _array_of_views(views, data)
    block = np.frombuffer(data.block, np.uint8)
    places = np.arange(INLINE_BYTES_MAX)
    rows = np.minimum(data.starts[~is_long][:, np.newaxis] + places, len(block) - 1)
    inline = np.where(places < lengths[~is_long][:, np.newaxis], block[rows], 0)
    views.view(np.uint8).reshape(-1, _VIEW.itemsize)[~is_long, PREFIX_BYTES:] = inline
    return _array_of_views(views, data)


def _array_of_views(views: Any, data: BlockData) -> Any:
    buffers = [None, pa.py_buffer(views), pa.py_buffer(data.block)]
    return pa.Array.from_buffers(pa.binary_view(), len(data), buffers)


COLUMNS: Final[dict[str, tuple[Any, Callable[[PartitionId, Any], Any]]]] = {
    "partition": (pa.int32(), _partition),
    "transaction_id": (pa.int64(), _transaction_id),
    "request_id": (pa.binary(), _request_id),
    "header": (pa.int32(), _header),
    "data": (pa.binary(), _data),
}
"""Per column of `KINDS`: Arrow's type, and how it is cut from the transactions read."""

TIME_COLUMNS: Final[dict[str, Any]] = dict.fromkeys(TIME_KINDS, pa.timestamp("us", "UTC"))
"""Arrow's type of each column that only storage nodes know. It is null where nothing was noted, and
there only if it is asked for."""

PLACE_COLUMNS: Final = frozenset({"partition", "transaction_id"})
"""Columns that follow from the place of a transaction in the log: IDs have no holes, so of a range
that the log has these are known without reading it."""

PLACE_ROWS_MAX: Final = BATCH_BYTES_MAX // 12
"""Rows of a record batch of these columns that has at most `BATCH_BYTES_MAX` bytes."""


def arrow_schema(schema: StructType) -> Any:
    """Return the Arrow schema of batches for `schema`: some of the columns, in any order.

    Raises ConfigurationError, naming the first column that the log does not have in that type.
    """
    if not schema.fields:
        raise ConfigurationError(
            f"{UNKNOWN_COLUMN} the schema has no columns; expected at least one"
        )
    kinds = {**KINDS, **TIME_KINDS}
    arrow_types = {name: arrow for name, (arrow, _) in COLUMNS.items()} | TIME_COLUMNS
    fields = []
    for field in schema.fields:
        if field.dataType != kinds.get(field.name):
            known = ", ".join(f"{name} {kind.simpleString()}" for name, kind in kinds.items())
            raise ConfigurationError(
                f"{UNKNOWN_COLUMN} the schema asks for {field.name}"
                f" {field.dataType.simpleString()}; the log has {known}"
            )
        fields.append(pa.field(field.name, arrow_types[field.name], nullable=field.nullable))
    return pa.schema(fields)


def record_batch(
    partition_id: PartitionId, columns: TransactionColumns | Places, schema: Any
) -> Any:
    """Return the Arrow record batch of `columns`, in the columns of the Arrow schema `schema`; of
    `Places` in the columns of `PLACE_COLUMNS` only."""
    arrays = [COLUMNS[name][1](partition_id, columns) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def regroup(batches: Iterable[Any], *, rows_max: int, bytes_max: int) -> Iterator[Any]:
    """Yield the same rows in few record batches, each within both bounds unless it is one row.

    None is empty. Neighbours are joined as long as they fit; a row that is joined is copied once.
    """
    waiting: list[Any] = []
    row_count = byte_count = 0
    for piece in _pieces(batches, rows_max=rows_max, bytes_max=bytes_max):
        row_count += len(piece)
        byte_count += piece.nbytes
        if waiting and (row_count > rows_max or byte_count > bytes_max):
            yield _joined(waiting)
            waiting, row_count, byte_count = [], len(piece), piece.nbytes
        waiting.append(piece)
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[Any]) -> Any:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _pieces(batches: Iterable[Any], *, rows_max: int, bytes_max: int) -> Iterator[Any]:
    """Halve whatever is larger than one batch may be."""
    for batch in batches:
        if len(batch) > 1 and (len(batch) > rows_max or batch.nbytes > bytes_max):
            half = len(batch) // 2
            halves = [batch.slice(0, half), batch.slice(half)]
            yield from _pieces(halves, rows_max=rows_max, bytes_max=bytes_max)
        elif len(batch):
            yield batch
