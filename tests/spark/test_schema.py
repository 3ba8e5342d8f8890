"""Columns by value: what transactions become in Arrow, and how batches are regrouped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from waltz import BlockData, TransactionColumns
from waltz.errors import ConfigurationError
from waltz.spark.log_columns import KINDS, log_schema
from waltz.spark.schema import COLUMNS, arrow_schema, record_batch, regroup
from waltz.types import PartitionId, TransactionId


def columns(first: int, data: Sequence[bytes]) -> TransactionColumns:
    """Transactions from `first` on; headers are negative IDs, request IDs count their bytes."""
    ids = range(first, first + len(data))
    return TransactionColumns(
        first_transaction_id=TransactionId(first),
        request_ids=b"".join(each.to_bytes(16, "big") for each in ids),
        headers=np.array([-each for each in ids], np.int32),
        data=list(data),
    )


def test_every_column_is_there_in_arrow() -> None:
    assert arrow_schema(log_schema()) == pa.schema(
        [
            ("partition", pa.int32()),
            ("transaction_id", pa.int64()),
            ("request_id", pa.binary()),
            ("header", pa.int32()),
            ("data", pa.binary()),
        ]
    )


@given(st.lists(st.binary(max_size=20) | st.binary(min_size=12, max_size=13), min_size=1))
def test_data_in_a_block_become_the_same_column(data: list[bytes]) -> None:
    """B-6: by views, up to twelve bytes of which lie in the view itself."""
    gaps = [b"gap%d" % (n % 7) for n in range(len(data))]
    block = b"".join(gap + each for gap, each in zip(gaps, data, strict=True))
    ends = np.cumsum([len(g) + len(d) for g, d in zip(gaps, data, strict=True)]).astype(np.int64)
    starts = ends - np.array([len(each) for each in data], np.int64)
    in_block = replace(columns(7, data), data=BlockData(block, starts, ends))
    found = record_batch(PartitionId(3), in_block, arrow_schema(log_schema()))
    found.validate(full=True)
    assert found == record_batch(PartitionId(3), columns(7, data), arrow_schema(log_schema()))


def test_transactions_become_rows() -> None:
    batch = record_batch(PartitionId(3), columns(7, [b"", b"\x00\xff"]), arrow_schema(log_schema()))
    batch.validate(full=True)
    assert batch.to_pylist() == [
        {
            "partition": 3,
            "transaction_id": 7,
            "request_id": bytes(15) + b"\x07",
            "header": -7,
            "data": b"",
        },
        {
            "partition": 3,
            "transaction_id": 8,
            "request_id": bytes(15) + b"\x08",
            "header": -8,
            "data": b"\x00\xff",
        },
    ]


def test_some_columns_in_any_order_are_honoured_with_their_nullability() -> None:
    wanted = StructType(
        [
            StructField("header", IntegerType(), nullable=False),
            StructField("transaction_id", LongType()),
        ]
    )
    batch = record_batch(PartitionId(0), columns(5, [b"x"]), arrow_schema(wanted))
    assert batch.schema == pa.schema(
        [pa.field("header", pa.int32(), nullable=False), pa.field("transaction_id", pa.int64())]
    )
    assert batch.to_pylist() == [{"header": -5, "transaction_id": 5}]


@pytest.mark.parametrize(
    ("field", "found"),
    [
        (StructField("payload", LongType()), "payload bigint"),
        (StructField("data", StringType()), "data string"),
        (StructField("header", LongType()), "header bigint"),
    ],
)
def test_a_column_the_log_does_not_have_is_refused(field: StructField, found: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^WALTZ-1004 the schema asks for {found};"):
        arrow_schema(StructType([field]))


def test_a_schema_without_columns_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1004"):
        arrow_schema(StructType([]))


@given(
    sizes=st.lists(st.lists(st.integers(0, 50), max_size=12), max_size=8),
    rows_max=st.integers(1, 10),
    bytes_max=st.integers(1, 400),
)
def test_regrouping_keeps_rows_and_both_bounds(
    sizes: list[list[int]], rows_max: int, bytes_max: int
) -> None:
    schema = arrow_schema(log_schema())
    batches = []
    first = 0
    for each in sizes:
        data = [bytes([index % 256]) * size for index, size in enumerate(each, first)]
        batches.append(record_batch(PartitionId(1), columns(first, data), schema))
        first += len(each)
    regrouped = list(regroup(batches, rows_max=rows_max, bytes_max=bytes_max))
    for batch in regrouped:
        assert batch.schema == schema
        assert 1 <= len(batch) <= rows_max
        assert len(batch) == 1 or batch.nbytes <= bytes_max
    assert [row for batch in regrouped for row in batch.to_pylist()] == [
        row for batch in batches for row in batch.to_pylist()
    ]


def test_small_batches_are_joined() -> None:
    schema = arrow_schema(log_schema())
    batches = [record_batch(PartitionId(0), columns(n, [b"x"]), schema) for n in range(25)]
    regrouped = regroup(batches, rows_max=10, bytes_max=1 << 20)
    assert [len(each) for each in regrouped] == [10, 10, 5]


def test_every_column_is_declared_in_both_worlds() -> None:
    assert list(KINDS) == list(COLUMNS)
    for name, (arrow_type, _) in COLUMNS.items():
        assert arrow_schema(StructType([StructField(name, KINDS[name])])).types == [arrow_type]
