"""Digests of blocks: they see every byte and no boundary of a batch."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spark.test_schema import columns
from waltz.errors import CorruptionError
from waltz.spark.block_digests import BLOCK_TRANSACTIONS, binary_content, block_ranges, digested
from waltz.spark.log_columns import log_schema
from waltz.spark.offsets import TransactionRange
from waltz.spark.schema import arrow_schema, record_batch
from waltz.types import PartitionId, TransactionId

SCHEMA = arrow_schema(log_schema())
PARTITION = PartitionId(3)


def span(first: int, end: int) -> TransactionRange:
    return TransactionRange(PARTITION, TransactionId(first), TransactionId(end))


def batch(first: int, data: list[bytes]) -> Any:
    return record_batch(PARTITION, columns(first, data), SCHEMA)


def digest_of(first: int, *batches: Any) -> str:
    (block,) = digested(span(first, first + sum(map(len, batches))), batches)
    return block.digest


@given(st.integers(0, 5 * BLOCK_TRANSACTIONS), st.integers(0, 5 * BLOCK_TRANSACTIONS))
def test_blocks_end_at_round_numbers_or_where_the_range_does(first: int, count: int) -> None:
    blocks = list(block_ranges(span(first, first + count)))
    assert sum(each.row_count for each in blocks) == count
    assert all(left.end == right.first for left, right in pairwise(blocks))
    assert all(left.end % BLOCK_TRANSACTIONS == 0 for left in blocks[:-1])
    assert not blocks or (blocks[0].first, blocks[-1].end) == (first, first + count)
    assert all(0 < each.row_count <= BLOCK_TRANSACTIONS for each in blocks)


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=12), st.data())
def test_a_digest_does_not_depend_on_batches(data: list[bytes], draw: st.DataObject) -> None:
    whole = batch(5, data)
    cut = draw.draw(st.integers(0, len(data)))
    parts = (whole.slice(0, cut), whole.slice(cut))
    assert digest_of(5, *parts) == digest_of(5, whole) == digest_of(5, batch(5, data))


def test_a_long_range_has_the_digests_of_its_blocks() -> None:
    first = BLOCK_TRANSACTIONS - 2
    found = list(digested(span(first, first + 5), [batch(first, [b"a"] * 5)]))
    assert [(each.range.first, each.range.end) for each in found] == [
        (first, BLOCK_TRANSACTIONS),
        (BLOCK_TRANSACTIONS, BLOCK_TRANSACTIONS + 3),
    ]
    assert found[0].digest == digest_of(first, batch(first, [b"a"] * 2))


def changed(column: str, values: Any) -> Any:
    whole = batch(5, [b"ab", b"c"])
    index = whole.schema.get_field_index(column)
    arrays = [values if n == index else whole.column(n) for n in range(whole.num_columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def test_every_column_counts() -> None:
    whole = batch(5, [b"ab", b"c"])
    ids = whole.column("request_id").to_pylist()
    others = [
        changed("data", pa.array([b"ab", b"d"], pa.binary())),
        changed("data", pa.array([b"a", b"bc"], pa.binary())),
        changed("data", pa.array([b"ab", b""], pa.binary())),
        changed("header", pa.array([7, 7], pa.int32())),
        changed("request_id", pa.array(ids[::-1], pa.binary())),
    ]
    digests = [digest_of(5, each) for each in [whole, *others]]
    moved = next(digested(span(6, 8), [batch(6, [b"ab", b"c"])])).digest
    assert len({*digests, moved}) == len(digests) + 1


@pytest.mark.parametrize(
    ("batches", "fault"),
    [
        ([], "the last transaction is 4"),
        ([batch(5, [b"a"])], "the last transaction is 5"),
        ([batch(6, [b"a", b"b"])], "in the place of transaction 5 is 6 of partition 3"),
        ([batch(5, [b"a", b"b", b"c"])], "there are rows from transaction 7 on"),
        ([changed("partition", pa.array([3, 4], pa.int32()))], " is 6 of partition 4"),
        (
            [changed("request_id", pa.array([b"", b""], pa.binary()))],
            "a request ID does not have 16",
        ),
        ([changed("data", pa.array([b"", None], pa.binary()))], "the column lacks 1 values"),
    ],
)
def test_what_is_no_dense_run_is_refused(batches: list[Any], fault: str) -> None:
    with pytest.raises(CorruptionError, match=fault):
        list(digested(span(5, 7), batches))


def test_the_content_of_a_slice_is_its_own() -> None:
    array = pa.array([b"one", b"", b"three", b"4"], pa.binary()).slice(1, 2)
    lengths, content = binary_content(array)
    assert (lengths.tolist(), bytes(content)) == ([0, 5], b"three")
    assert bytes(binary_content(array.slice(0, 0))[1]) == b""
