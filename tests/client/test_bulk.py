"""Rows of `append_many`: the same as appends one by one, in columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz.client.appends.append_batches import AppendBatches
from waltz.client.bulk import Bulk, BulkRows, ManyAppends, lock_hashes
from waltz.client.transaction import PartitionLocalLock, TransactionBuilder
from waltz.errors import LocalProtocolError
from waltz.limits import DATA_BYTES_MAX, LOCKS_MAX
from waltz.types import NOTHING, ClientId, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.columns import AppendColumns

MARK = TransactionId(7)
FIRST = RequestId(ClientId(1), Generation(2), PartitionId(3), 5)
LOCKS = st.lists(
    st.builds(PartitionLocalLock, st.sampled_from("ab"), st.integers(0, 3)), max_size=3
)
APPEND = st.tuples(st.binary(max_size=5), st.integers(-9, 9), LOCKS, LOCKS, LOCKS)


def bulk_of(rows: BulkRows) -> Bulk:
    return Bulk(rows, np.full(len(rows), NOTHING, np.int64))


def one_by_one(appends: list[Any]) -> list[TransactionBuilder]:
    drafts = []
    for data, header, write, read, append in appends:
        builder = TransactionBuilder()
        builder.set_data(data)
        builder.set_header(header)
        builder.set_write_locks(write)
        builder.set_read_locks(read)
        builder.set_append_locks(append)
        drafts.append(builder)
    return drafts


def together(drafts: list[TransactionBuilder]) -> AppendColumns:
    batches = AppendBatches()
    for number, draft in enumerate(drafts):
        batches.add(FIRST._replace(sequence_number=number), [draft], [MARK])
    (batch,) = batches.take()
    return batch.appends


@given(st.lists(APPEND, min_size=1, max_size=6), st.data())
def test_rows_say_what_drafts_say(appends: list[Any], draw: st.DataObject) -> None:
    """B-3: whichever rows are sent together."""
    data, headers, write, read, append = zip(*appends, strict=True)
    rows = BulkRows(data, headers=headers, write_locks=write, read_locks=read, append_locks=append)
    drafts = one_by_one(appends)
    chosen = draw.draw(st.sets(st.sampled_from(range(len(appends))), min_size=1))
    places = np.array(sorted(chosen))
    assert rows.columns(places, MARK) == together([drafts[place] for place in places.tolist()])
    assert rows.is_checked == any(each[2] or each[3] for each in appends)


@given(st.text(max_size=4), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5))
def test_hashes_in_columns_are_those_of_locks(name: str, ids: list[int]) -> None:
    """PM-25."""
    assert lock_hashes(name, ids).tolist() == [PartitionLocalLock(name, n).hash for n in ids]


@pytest.mark.parametrize(
    ("hashes", "each"), [(np.zeros((3, 0), np.int32), 0), (np.arange(3, dtype=np.int32), 1)]
)
def test_rows_of_hashes_may_be_empty_or_single(hashes: Any, each: int) -> None:
    rows = BulkRows([b"", b"a", b"b"], read_locks=hashes)
    assert rows.lock_counts.tolist() == [[0, each, 0]] * 3
    assert rows.lock_hashes.tolist() == hashes.ravel().tolist()


def test_locks_may_be_a_row_of_hashes_each() -> None:
    hashes = np.array([[1, 2], [3, 4]], np.int32)
    rows = BulkRows([b"", b"a"], append_locks=hashes)
    columns = rows.columns(np.array([1]), MARK)
    assert columns.lock_counts.tolist() == [[0, 0, 2]]
    assert columns.lock_hashes.tolist() == [3, 4]
    assert not rows.is_checked


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"headers": [1, 2]}, "2 headers; expected 1"),
        ({"headers": [2**31]}, "expected -2147483648 to 2147483647"),
        ({"write_locks": [(), ()]}, "write locks of 2 transactions; expected 1"),
        ({"read_locks": np.array([1.5])}, "read locks as numbers of type float64"),
        ({"append_locks": np.zeros((1, LOCKS_MAX + 1), np.int32)}, "append locks of one"),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns: Any, said: str) -> None:
    with pytest.raises(LocalProtocolError, match=said):
        BulkRows([b""], **columns)


def test_data_that_is_too_large_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="expected at most"):
        BulkRows([b"", bytes(DATA_BYTES_MAX + 1)])


def test_rows_are_cut_in_order_within_the_bounds_and_at_least_one() -> None:
    bulk = bulk_of(BulkRows([bytes(10)] * 6, append_locks=np.zeros((6, 2), np.int32)))
    row_bytes = bulk.byte_count(np.array([0]))
    assert bulk.cut(2, 10**6, 10**6).tolist() == [0, 1]
    assert bulk.cut(9, 2 * row_bytes, 10**6).tolist() == [2, 3]
    assert bulk.cut(9, 10**6, 3).tolist() == [4]
    assert bulk.cut(9, 1, 1).tolist() == [5]
    assert bulk.waiting == 0


def test_rows_that_were_given_back_come_first() -> None:
    bulk = bulk_of(BulkRows([b""] * 8))
    bulk.cut(5, 10**6, 10**6)
    bulk.give_back(np.array([3]))
    bulk.give_back(np.array([1]))
    assert bulk.waiting == 5
    assert bulk.cut(3, 10**6, 10**6).tolist() == [1, 3, 5]
    assert bulk.cut(3, 10**6, 10**6).tolist() == [6, 7]


def test_where_rows_are_in_the_log_is_known_as_it_comes() -> None:
    context = ManyAppends(0, BulkRows([b"a", b"b", b"c"]))
    bulk = Bulk(context.rows, context.transaction_ids)
    bulk.commit(np.array([0, 2]), np.array([10, 11]))
    assert context.transaction_ids.tolist() == [10, -1, 11]
    assert (bulk.left, bulk.last_transaction_id) == (1, 11)
    assert list(bulk.data_between(11, 12)) == [(11, b"c")]
    with pytest.raises(LocalProtocolError, match="3 transactions"):
        context.execute(TransactionBuilder())
