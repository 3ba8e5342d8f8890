"""What the columns of a batch are made of, against the plain way."""

from __future__ import annotations

from itertools import pairwise
from zlib import crc32

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.strategies import bodies
from waltz.record import NewRecord, pack_records, request_id_bytes
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.columns import FeedColumns, feed_columns, request_id_runs

SMALL = st.integers(0, 2)
REQUEST_IDS = st.lists(
    st.builds(RequestId, *[SMALL] * 3, st.integers(0, 4) | st.just(2**31 - 1) | st.just(-(2**31))),
    min_size=1,
    max_size=12,
)


@given(REQUEST_IDS)
def test_runs_are_the_fewest_that_say_all_request_ids(request_ids: list[RequestId]) -> None:
    rows = np.frombuffer(b"".join(map(request_id_bytes, request_ids)), np.uint8).reshape(-1, 16)
    found = FeedColumns(request_id_runs(rows), np.zeros(len(rows), np.int32), None)
    assert list(found.request_ids()) == request_ids
    breaks = sum(
        later[:3] != earlier[:3] or later[3] != earlier[3] + 1
        for earlier, later in pairwise(request_ids)
    )
    assert len(found.runs) == breaks + 1


def test_a_carry_from_the_sequence_number_into_the_partition_is_no_run() -> None:
    rows = np.array([[1, 2, 3, -1], [1, 2, 4, 0], [1, 2, 4, 1]], ">i4").view(np.uint8)
    assert request_id_runs(rows).tolist() == [[1, 2, 3, -1, 1], [1, 2, 4, 0, 2]]


def test_a_feed_has_what_the_records_have() -> None:
    """CS-15."""
    request_id = RequestId(ClientId(7), Generation(3), PartitionId(2), 5)
    data = [b"a", b"", b"ccc"]
    batch = pack_records(
        TransactionId(100),
        [
            NewRecord(
                request_id_bytes(request_id._replace(sequence_number=5 + index)),
                index - 1,
                each,
                crc32(each),
            )
            for index, each in enumerate(data)
        ],
    )
    expected = FeedColumns(
        np.array([[7, 3, 2, 5, 3]], np.int32), np.array([-1, 0, 1], np.int32), bodies(data)
    )
    assert feed_columns(batch, with_data=True) == expected
    assert feed_columns(batch, with_data=False) == FeedColumns(
        expected.runs, expected.headers, None
    )
    assert feed_columns(batch, with_data=True) != feed_columns(batch, with_data=False)
