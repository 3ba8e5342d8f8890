"""Digests of runs of the log, to compare two copies of it without transferring them.

A block is a run of transactions of one partition that ends at a multiple of `BLOCK_TRANSACTIONS`,
or at the end of what is digested. Its digest covers every byte of its transactions, and the
boundaries between the data of one and the next. Pure: the caller brings the batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from waltz.errors import CorruptionError
from waltz.spark.offsets import TransactionRange
from waltz.spark.schema import REQUEST_ID_BYTES
from waltz.types import TransactionId

BLOCK_TRANSACTIONS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Block:
    """A run of transactions and its digest, 64 hexadecimal digits."""

    range: TransactionRange
    digest: str


def block_ranges(wanted: TransactionRange) -> Iterator[TransactionRange]:
    """Yield the blocks of a range, in order: cut at the multiples of `BLOCK_TRANSACTIONS`."""
    first = wanted.first
    while first < wanted.end:
        end = min(wanted.end, first - first % BLOCK_TRANSACTIONS + BLOCK_TRANSACTIONS)
        yield TransactionRange(wanted.partition_id, first, TransactionId(end))
        first = TransactionId(end)


def at_block_ends(
    wanted: TransactionRange,
    batches: Iterable[Any],
    cut: Iterable[TransactionRange] | None = None,
) -> Iterator[tuple[TransactionRange, Any]]:
    """Yield the rows of `batches`, in batches within one block each, with that block.

    The blocks are those of `cut`, which joined up are `wanted`; None: as `block_ranges` cuts.
    Raises CorruptionError: the rows are not the dense run `wanted`.
    """
    blocks = block_ranges(wanted) if cut is None else iter(cut)
    block = next(blocks, None)
    position = int(wanted.first)
    for batch in batches:
        _expect_dense(batch, wanted, position)
        taken = 0
        while taken < len(batch):
            if block is None:
                raise CorruptionError(f"{wanted}: there are rows from transaction {position} on")
            count = min(len(batch) - taken, block.end - position)
            yield block, batch.slice(taken, count)
            taken += count
            position += count
            if position == block.end:
                block = next(blocks, None)
    if position != wanted.end:
        raise CorruptionError(f"{wanted}: the last transaction is {position - 1}")


def digested(
    wanted: TransactionRange,
    batches: Iterable[Any],
    cut: Iterable[TransactionRange] | None = None,
) -> Iterator[Block]:
    """Yield the blocks of `wanted` as Arrow record batches of all columns bring it, in order.

    The digests do not depend on how the rows are spread over batches. `cut` and CorruptionError are
    as in `at_block_ends`; it is also raised if a request ID is not one or data is missing.
    """
    digester = BlockDigester()
    for block, batch in at_block_ends(wanted, batches, cut):
        if (whole := digester.add(block, batch)) is not None:
            yield whole


def _expect_dense(batch: Any, wanted: TransactionRange, position: int) -> None:
    ids = batch.column("transaction_id").to_numpy(zero_copy_only=False)
    expected = np.arange(position, position + len(batch), dtype=np.int64)
    partitions = batch.column("partition").to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero((ids != expected) | (partitions != wanted.partition_id))
    if len(wrong):
        row = int(wrong[0])
        raise CorruptionError(
            f"{wanted}: in the place of transaction {position + row} is {ids[row]} of partition"
            f" {partitions[row]}"
        )


class BlockDigester:
    """Digests block after block, column by column, from pieces of any size."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._columns = tuple(sha256() for _ in range(4))
        self._rows = 0

    def add(self, block: TransactionRange, batch: Any) -> Block | None:
        """Take the next piece of `block`; return the block once it is whole. Raises as `take`."""
        self.take(block, batch)
        return None if self._rows < block.row_count else self.finish(block)

    def take(self, block: TransactionRange, batch: Any) -> None:
        """Take the next piece of a block, of which `block` is what is known so far.

        Raises CorruptionError: a request ID is not one, or data is missing.
        """
        request_ids, headers, lengths, content = self._columns
        id_lengths, ids = binary_content(batch.column("request_id"))
        if (id_lengths != REQUEST_ID_BYTES).any():
            raise CorruptionError(f"{block}: a request ID does not have {REQUEST_ID_BYTES} bytes")
        data_lengths, data = binary_content(batch.column("data"))
        request_ids.update(ids)
        headers.update(
            batch.column("header").to_numpy(zero_copy_only=False).astype("<i4").tobytes()
        )
        lengths.update(data_lengths.astype("<i8").tobytes())
        content.update(data)
        self._rows += len(batch)

    def finish(self, block: TransactionRange) -> Block:
        """Return the block of all that was taken since the last one."""
        whole = sha256(np.array([block.partition_id, block.first, block.end], "<i8").tobytes())
        for column in self._columns:
            whole.update(column.digest())
        self._start()
        return Block(block, whole.hexdigest())


def binary_content(array: Any) -> tuple[NDArray[np.int64], memoryview]:
    """Return the lengths of the values of an Arrow binary array, and the values back to back.

    Raises CorruptionError: a value is missing.
    """
    if array.null_count:
        raise CorruptionError(f"the column lacks {array.null_count} values")
    count = len(array)
    if not count:
        return np.zeros(0, np.int64), memoryview(b"")
    _, offsets_buffer, values = array.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, count + 1, 4 * array.offset)
    content = memoryview(values or b"")[offsets[0] : offsets[-1]]
    return np.diff(offsets).astype(np.int64), content
